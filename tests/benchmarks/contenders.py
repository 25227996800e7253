"""The ways to differentiate a loop: each a name, and a function of a workload.

A name is a kind and its numbers: ``rx.scan 30`` is the binomial schedule with 30 snapshots,
``nested 16 8 8`` nesting by hand with these radices, ``equinox 30`` equinox's checkpointed loop
with 30 snapshots, ``recursive 30`` diffrax's recursive adjoint with 30 checkpoints.
"""

from __future__ import annotations

import math

import jax


def gradient(name, work):
    """Give ``(c, k) -> (value, gradients)`` for a contender's name."""
    if name == "forward":
        return lambda c, k: (_loss(_plain(work, c, k)), (c, k))
    if name == "turns":
        return lambda c, k: _turns(work, c, k)
    run = last_state(name)
    return jax.value_and_grad(lambda c, k: _loss(run(work, c, k)), (0, 1))


def _loss(c):
    return (c**2).sum()


def _body(work, k):
    return lambda c, _: (work.step(c, k), None)


def _plain(work, c, k):
    return jax.lax.scan(_body(work, k), c, None, work.n)[0]


def _turns(work, c, k):
    """Go back through each step once, from states that are there already: part of the work bound.

    A turn is the step with its tape and its pullback. The states are not those of the problem, but
    as large and as costly: the cotangent, scaled down, disturbs the state that the next turn starts
    from, so that no turn can be hoisted out of the loop.
    """

    def turn(carry, _):
        c, slope, ct = carry
        _, pullback = jax.vjp(work.step, c, k)
        ct, more = pullback(ct)
        return (c + 1e-30 * ct, slope + more, ct), None

    (c, slope, ct), _ = jax.lax.scan(turn, (c, 0 * k, c), None, work.n)
    return _loss(c), (ct, slope)


def last_state(name):
    """Give ``(work, c, k) -> last state`` for a contender's name."""
    kind, *rest = name.split(" ")
    numbers = [int(word) for word in rest if word.isdigit()]
    if kind == "lax.scan":
        return _plain
    if kind == "per-step":
        return lambda work, c, k: jax.lax.scan(
            jax.checkpoint(_body(work, k), prevent_cse=False), c, None, work.n
        )[0]
    if kind == "nested":
        return lambda work, c, k: _nested(_body(work, k), c, numbers)
    if kind == "equinox":
        return lambda work, c, k: _equinox(work, c, k, numbers[0])
    if kind in ("recursive", "direct"):
        return lambda work, c, k: _diffrax(work, c, k, kind, numbers)
    return lambda work, c, k: _ours(work, c, k, rest)


def _nested(body, c, radices):
    """Nest scans by hand, each block and each step checkpointed."""

    def level(c, radices):
        if not radices:
            return body(c, None)[0]
        inner = jax.checkpoint(lambda c: level(c, radices[1:]), prevent_cse=False)
        return jax.lax.scan(lambda c, _: (inner(c), None), c, None, radices[0])[0]

    return level(c, radices)


def _equinox(work, c, k, snapshots):
    import equinox.internal as eqxi

    return eqxi.while_loop(
        lambda state: state[0] < work.n,
        lambda state: (state[0] + 1, work.step(state[1], k)),
        (0, c),
        max_steps=work.n,
        kind="checkpointed",
        checkpoints=snapshots,
    )[1]


def _diffrax(work, c, k, kind, numbers):
    import diffrax

    adjoint = (
        diffrax.DirectAdjoint()
        if kind == "direct"
        else diffrax.RecursiveCheckpointAdjoint(*numbers)
    )
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, c, k: work.rate(c, k)),
        diffrax.Tsit5(),
        t0=0.0,
        t1=work.n * work.h,
        dt0=work.h,
        y0=c,
        args=k,
        adjoint=adjoint,
        stepsize_controller=diffrax.ConstantStepSize(),
        max_steps=work.n + 1,
    )
    return solution.ys[-1]


def schedule(words):
    """Give the schedule of an ``rx.scan`` contender: a number, or the name of a schedule."""
    import rematax as rx

    match words:
        case []:
            return rx.Binomial()
        case ["store"]:
            return rx.StoreAll()
        case ["step"]:
            return rx.EveryStep()
        case ["nested", *radices]:
            return rx.Nested(radices=tuple(map(int, radices)))
        case [number]:
            return rx.Binomial(int(number))
    raise ValueError(f"no schedule of rx.scan is called {' '.join(words)!r}.")


def _ours(work, c, k, words):
    import rematax as rx

    return rx.scan(_body(work, k), c, None, work.n, schedule=schedule(words))[0]


def evaluations(name, n):
    """Count the runs of the step in one gradient, where it is known."""
    kind, *rest = name.split(" ")
    if kind == "lax.scan":
        return n
    if kind == "per-step":
        return 2 * n
    if kind == "nested":
        assert math.prod(map(int, rest)) == n
        return (len(rest) + 1) * n
    if kind == "rx.scan":
        return schedule(rest).evaluations(n)
    return None


def label(name):
    """Name a contender as a reader would."""
    kind, *rest = name.split(" ")
    numbers = " x ".join(rest)
    match kind:
        case "per-step":
            return "jax.checkpoint on each step"
        case "nested":
            return f"nested by hand, {numbers}"
        case "equinox":
            return f"equinox, {numbers} checkpoints"
        case "recursive":
            return "diffrax, recursive" + (f", {numbers} checkpoints" if rest else "")
        case "direct":
            return "diffrax, direct"
        case "rx.scan":
            return f"rx.scan, {schedule(rest)}".replace("snapshots=", "")
        case "forward":
            return "the loop alone, no gradient"
        case "turns":
            return "taped steps and pullbacks alone"
    return name
