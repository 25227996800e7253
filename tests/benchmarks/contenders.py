"""The ways to differentiate a loop: each a name, and a function of a workload.

A name is a kind and its numbers: ``rx.scan 30`` is the binomial schedule with 30 snapshots,
``nested 16 8 8`` nesting by hand with these radices, ``equinox 30`` equinox's checkpointed loop
with 30 snapshots, ``recursive 30`` diffrax's recursive adjoint with 30 checkpoints. A name that
ends in ``by hand`` is the same on the workload's program written by hand.
"""

from __future__ import annotations

import functools
import math

import jax

BY_HAND = " by hand"


def gradient(name, work):
    """Give ``(c, k) -> (value, gradients)`` for a contender's name."""
    if name == "forward":
        return lambda c, k: (_loss(_plain(work, c, k)), (c, k))
    if name == "turns":
        return lambda c, k: _turns(work, c, k)
    if name.endswith(BY_HAND):
        return gradient(name.removesuffix(BY_HAND), work._replace(program=work.by_hand))
    run = result(name)

    def loss(c, k):
        return _loss(run(work, c, k))

    def curvature(c, k):
        _, along = jax.jvp(jax.grad(loss, (0, 1)), (c, k), (c, k))
        return (c * along[0]).sum(), along

    if work.order == 0:
        return lambda c, k: (loss(c, k), (c, k))
    return curvature if work.order == 2 else jax.value_and_grad(loss, (0, 1))


def _loss(c):
    """Give a number as it is, so that a scan outside of jit is timed and nothing else."""
    return (c**2).sum() if c.ndim else c


def _plain(work, c, k):
    return work.run(jax.lax.scan, c, k)


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


def result(name):
    """Give ``(work, c, k) -> last state``, or what the workload's program returns, for a name."""
    kind, *rest = name.split(" ")
    numbers = [int(word) for word in rest if word.isdigit()]
    if kind == "lax.scan":
        return _plain
    if kind == "per-step":
        return lambda work, c, k: work.run(_per_step, c, k)
    if kind == "nested":
        return lambda work, c, k: work.run(functools.partial(_nested, radices=numbers), c, k)
    if kind == "equinox":
        return lambda work, c, k: _equinox(work, c, k, numbers[0])
    if kind in ("recursive", "direct"):
        return lambda work, c, k: _diffrax(work, c, k, kind, numbers)
    return lambda work, c, k: work.run(_ours(rest), c, k)


def _per_step(body, c, xs, length=None):
    return jax.lax.scan(jax.checkpoint(body, prevent_cse=False), c, xs, length)


def _nested(body, c, xs, length, radices):
    """Nest scans by hand, each block and each step checkpointed."""
    assert xs is None and math.prod(radices) == length

    def level(c, radices):
        if not radices:
            return body(c, None)[0]
        inner = jax.checkpoint(lambda c: level(c, radices[1:]), prevent_cse=False)
        return jax.lax.scan(lambda c, _: (inner(c), None), c, None, radices[0])[0]

    return level(c, radices), None


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
        case ["store"]:
            return rx.StoreAll()
        case ["step"]:
            return rx.EveryStep()
        case ["nested"]:
            return rx.Nested()
        case ["nested", *radices]:
            return rx.Nested(radices=tuple(map(int, radices)))
        case [number]:
            return rx.Binomial(int(number))
    raise ValueError(f"no schedule of rx.scan is called {' '.join(words)!r}.")


def _ours(words):
    import rematax as rx

    # Without one named, as a reader would write it.
    return functools.partial(rx.scan, schedule=schedule(words)) if words else rx.scan


def evaluations(name, work):
    """Count the runs of the step in one gradient, where it is known."""
    n, (kind, *rest) = work.n, name.removesuffix(BY_HAND).split(" ")
    if work.order != 1:
        return None
    if kind == "lax.scan":
        return n
    if kind == "per-step":
        return 2 * n
    if kind == "nested":
        assert math.prod(map(int, rest)) == n
        return (len(rest) + 1) * n
    if kind == "rx.scan" and rest:  # what it takes by itself depends on the step
        return schedule(rest).evaluations(n)
    return None


def label(name):
    """Name a contender as a reader would."""
    if name.endswith(BY_HAND):
        return label(name.removesuffix(BY_HAND)) + ", written by hand"
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
            named = f"{schedule(rest)}".replace("snapshots=", "") if rest else "no schedule named"
            return f"rx.scan, {named}"
        case "forward":
            return "the loop alone, no gradient"
        case "turns":
            return "taped steps and pullbacks alone"
    return name
