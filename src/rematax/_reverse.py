r"""The table-driven reverse sweep: the gradient of a loop from a few of its states.

Two loops carry out a binomial schedule (see :mod:`rematax._schedules`), and the schedule is data
to both: their programs are the same for every number of steps, and no branch is taken on the way.

*Forward*: :func:`forward_sweep` is the scan itself, and writes each state into the slot of the
snapshot that comes next; what stays there is the state at which the next slot begins. Writing
always is cheaper than writing sometimes, as a buffer that passes through a conditional is copied.

*Reverse*: :func:`reverse_sweep` visits the steps from the last to the first. For each it loads the
newest snapshot, advances from stop to stop writing snapshots on the way, and at the step itself
turns: one taped evaluation, and its pullback. The snapshots form a stack; their positions are kept
beside them, so that only the stops need a table.

State and tape are meant as in the schedules; loops and their leaves are those of
:mod:`rematax._loop`.

References:
    A. Griewank and A. Walther (2000), "Algorithm 799: revolve", ACM Transactions on Mathematical
    Software 26(1):19-45.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ._loop import Inputs, Leaves, Loop, Outputs, pick, put, read, write


def plain_scan(loop: Loop, inputs: Inputs) -> Outputs:
    """Run the loop and keep nothing."""

    def body(carry, x):
        return loop.step(inputs.consts, carry, x)

    return Outputs(*_scan(loop, body, inputs.carry, inputs.xs))


def forward_sweep(loop: Loop, inputs: Inputs) -> tuple[Outputs, Leaves]:
    """Run the loop and keep the states with which the reverse sweep begins.

    Returns:
        The outputs, and the snapshots: for each leaf of the carry a stack of ``slots + 1``, which
        holds the state at 0, at each of the first stops, and at the last step.
    """
    stops = jnp.asarray(loop.first_stops())

    def body(state, x):
        i, filled, carry, snapshots = state
        snapshots = write(snapshots, carry, filled)
        filled = filled + (i == read(stops, filled - np.int32(1))).astype(filled.dtype)
        carry, y = loop.step(inputs.consts, carry, x)
        return (i + np.int32(1), filled, carry, snapshots), y

    snapshots = [jnp.broadcast_to(c, (loop.slots + 1, *c.shape)) for c in inputs.carry]
    state = (jnp.int32(0), jnp.int32(1), inputs.carry, snapshots)
    (_, _, carry, snapshots), ys = _scan(loop, body, state, inputs.xs)
    return Outputs(carry, ys), snapshots


def reverse_sweep(
    loop: Loop, wanted: Inputs, inputs: Inputs, snapshots: Leaves, cotangents: Outputs
) -> Inputs:
    """Pull cotangents of the outputs back to the inputs.

    Args:
        loop: The loop.
        wanted: Masks of the inputs whose cotangents are asked for; the mask of the carry holds
            whatever in it varies with them, see :func:`rematax._loop.varying`.
        inputs: The inputs of :func:`forward_sweep`.
        snapshots: Its snapshots.
        cotangents: Of the leaves of the carry, and of the inexact leaves of ys; ``None`` for zero.

    Returns:
        Cotangents of the wanted inputs.
    """
    start = np.append(np.int32(0), loop.first_stops())
    rows = jnp.asarray(np.append(loop.stops[len(start) - 1 :], np.int32(0)))
    # Added to zeros, so that it is of the mesh in use, as what is written to it will be.
    positions = jnp.zeros(loop.slots + 1, np.int32) + np.resize(start, loop.slots + 1)

    def turn(state, slices):
        i, row, top, positions, snapshots, cotangent, gradient = state
        x, ct_y = slices
        state = read(positions, top), row, top, positions, snapshots, read(snapshots, top)
        _, row, top, positions, snapshots, carry = _descend(loop, inputs, rows, i, state)
        gradient_step, cotangent, gradient_x = _turn(
            loop, wanted, Inputs(inputs.consts, carry, x), Outputs(cotangent, ct_y)
        )
        gradient = [total + part for total, part in zip(gradient, gradient_step, strict=True)]
        top = top - (read(positions, top) == i).astype(top.dtype)
        return (i - np.int32(1), row, top, positions, snapshots, cotangent, gradient), gradient_x

    like = pick(inputs.carry, wanted.carry)
    cotangent = [
        jnp.zeros_like(c) if ct is None else ct
        for c, ct in zip(like, pick(cotangents.carry, wanted.carry), strict=True)
    ]
    gradient = [jnp.zeros_like(c) for c in pick(inputs.consts, wanted.consts)]
    last, top = jnp.int32(loop.length - 1), jnp.int32(len(start) - 1)
    state = last, jnp.int32(0), top, positions, snapshots, cotangent, gradient
    state, gradient_xs = lax.scan(
        turn, state, (inputs.xs, cotangents.ys), loop.length, reverse=not loop.backwards
    )
    return Inputs(state[-1], state[-2], gradient_xs)


def _descend(loop, inputs, rows, i, state):
    """Advance from the newest snapshot to step ``i``, writing snapshots on the way.

    Each round writes the state it starts from, and only then advances: the state at ``i`` itself
    is never written, and the first round's write, of a state into its own slot, changes nothing.
    """

    def advance(state):
        p, carry = state
        at = np.int32(loop.length - 1) - p if loop.backwards else p
        carry, _ = loop.step(inputs.consts, carry, read(inputs.xs, at))
        return p + np.int32(1), carry

    def to_next_stop(state):
        p, row, top, positions, snapshots, carry = state
        top = top + (p > read(positions, top)).astype(top.dtype)
        positions, snapshots = write(positions, p, top), write(snapshots, carry, top)
        stop = read(rows, row)
        p, carry = lax.while_loop(lambda s: s[0] < stop, advance, (p, carry))
        return p, row + np.int32(1), top, positions, snapshots, carry

    return lax.while_loop(lambda s: s[0] < i, to_next_stop, state)


def _turn(loop, wanted, at, cotangents):
    """Tape one step and pull its cotangents back."""

    def differentiable(consts, carry, x):
        out, y = loop.step(
            put(at.consts, wanted.consts, consts),
            put(at.carry, wanted.carry, carry),
            put(at.xs, wanted.xs, x),
        )
        return pick(out, wanted.carry), pick(y, loop.outs)

    (_, y), pullback = jax.vjp(differentiable, *map(pick, at, wanted))
    ct_y = [jnp.zeros_like(a) if ct is None else ct for a, ct in zip(y, cotangents.ys, strict=True)]
    return pullback((cotangents.carry, ct_y))


def _scan(loop, body, init, xs):
    return lax.scan(body, init, xs, loop.length, reverse=loop.backwards, unroll=loop.unroll)
