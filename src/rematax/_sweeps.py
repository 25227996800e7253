r"""The sweeps over a loop: forward, with snapshots, and the table-driven reverse sweep.

Two loops carry out a binomial schedule (see :mod:`rematax._schedules`), and the schedule is data
to both: their programs are the same for every number of steps, and no branch is taken on the way.

*Forward*: :func:`forward_sweep` is the scan itself, and writes each state into the slot of the
snapshot that comes next; what stays there is the state at which the next slot begins. Writing
always is cheaper than writing sometimes, as a buffer that passes through a conditional is copied.

*Reverse*: :func:`reverse_sweep` visits the steps from the last to the first. For each it loads the
newest snapshot, advances from stop to stop writing snapshots on the way, and at the step itself
turns: one taped evaluation, and its pullback. The snapshots form a stack; their positions are kept
beside them, so that only the stops need a table.

Snapshots hold the leaves of the carry that the pullback of some step depends on. Neither the steps
that are replayed nor those that are taped see any others.

State and tape are meant as in the schedules; loops and their leaves are those of
:mod:`rematax._loop`.

References:
    A. Griewank and A. Walther (2000), "Algorithm 799: revolve", ACM Transactions on Mathematical
    Software 26(1):19-45.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from . import _jax
from ._jax import Leaves, Mask, pick
from ._loop import Loop, Marks, Parts, negated, put, spread
from ._schedules import Binomial


def plain_scan(loop: Loop, inputs: Parts) -> tuple[Leaves, Leaves]:
    """Run the loop and keep nothing."""

    def body(carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        return loop.step(inputs.consts, carry, x)

    return _scan(loop, body, inputs.carry, inputs.xs)


def forward_sweep(loop: Loop, kept: Mask, inputs: Parts) -> tuple[Leaves, Leaves, Leaves]:
    """Run the loop and keep the states with which the reverse sweep begins.

    Returns:
        The last carry, the ys, and the snapshots: for each leaf of the carry that is marked in
        ``kept`` a stack of ``slots + 1``, which holds the state at 0, at each of the first stops,
        and at the last step.
    """
    if not any(kept):
        return *plain_scan(loop, inputs), []
    first, slots, _ = _table(loop)
    stops = jnp.asarray(first)

    def body(state: Any, x: Leaves) -> tuple[Any, Leaves]:
        i, filled, carry, snapshots = state
        snapshots = write(snapshots, pick(carry, kept), filled)
        filled = filled + (i == read(stops, filled - np.int32(1))).astype(filled.dtype)
        carry, y = loop.step(inputs.consts, carry, x)
        return (i + np.int32(1), filled, carry, snapshots), y

    with jax.named_scope("forward"):
        snapshots = [jnp.broadcast_to(c, (slots + 1, *c.shape)) for c in pick(inputs.carry, kept)]
        state = (jnp.int32(0), jnp.int32(1), inputs.carry, snapshots)
        (_, _, carry, snapshots), ys = _scan(loop, body, state, inputs.xs)
    return carry, ys, snapshots


def reverse_sweep(
    loop: Loop, linear: Marks, wanted: Parts, inputs: Parts, snapshots: Leaves, cotangents: Any
) -> Parts:
    """Pull cotangents back through the loop.

    Args:
        loop: The loop, all of whose ys are linear.
        linear: Marks of the leaves of which it is a linear function, given the others.
        wanted: Masks of the linear inputs whose cotangents are asked for.
        inputs: The other consts, the other leaves of the first carry, the other xs.
        snapshots: Of the other leaves of the carry, as :func:`forward_sweep` leaves them.
        cotangents: Of the linear leaves of the last carry, and of the ys.

    Returns:
        Cotangents of the wanted inputs.
    """
    ct_carry, ct_ys = cotangents
    replay, left = replace(loop, tangents=linear).values()
    consts, xs = (
        pick(_among(values, is_linear), needed)
        for values, is_linear, needed in zip(
            (inputs.consts, inputs.xs),
            (linear.consts, linear.xs),
            (left.consts, left.xs),
            strict=True,
        )
    )
    rows = positions = top = jnp.int32(0)  # where there is nothing to replay
    if snapshots:
        first, slots, rest = _table(loop)
        start, rows = np.append(np.int32(0), first), jnp.asarray(rest)
        # Added to zeros, so that it is of the mesh in use, as what is written to it will be.
        positions = jnp.zeros(slots + 1, np.int32) + np.resize(start, slots + 1)
        top = jnp.int32(len(start) - 1)

    def turn(state: Any, slices: Any) -> tuple[Any, Leaves]:
        i, row, top, positions, snapshots, cotangent, gradient = state
        x, ct_y = slices
        carry: Leaves = []
        if snapshots:
            at = read(positions, top), row, top, positions, snapshots, read(snapshots, top)
            with jax.named_scope("descend"):
                at = _descend(replay, consts, xs, rows, i, at)
            _, row, top, positions, snapshots, carry = at
            top = top - (read(positions, top) == i).astype(top.dtype)
        with jax.named_scope("turn"):
            step = Parts(inputs.consts, carry, x)
            new, cotangent, gradient_x = _turn(loop, linear, wanted, step, cotangent, ct_y)
        gradient = list(map(_jax.add, gradient, new))
        return (i - np.int32(1), row, top, positions, snapshots, cotangent, gradient), gradient_x

    gradient = [_jax.zeros(_jax.cotangent_type(t)) for t in pick(loop.types.consts, wanted.consts)]
    last = jnp.int32(loop.length - 1)
    state: Any = last, jnp.int32(0), top, positions, snapshots, ct_carry, gradient
    (*_, ct_carry, gradient), gradient_xs = lax.scan(
        turn, state, (inputs.xs, ct_ys), loop.length, reverse=not loop.reverse
    )
    return Parts(gradient, pick(spread(ct_carry, linear.carry), wanted.carry), gradient_xs)


def _among(values: Leaves, linear: Mask) -> Leaves:
    """Put values where they stand among values and tangents."""
    return spread(values, negated(linear))


def _descend(replay: Loop, consts: Leaves, xs: Leaves, rows: Any, i: Any, state: Any) -> Any:
    """Advance from the newest snapshot to step ``i``, writing snapshots on the way.

    Each round writes the state it starts from, and only then advances: the state at ``i`` itself
    is never written, and the first round's write, of a state into its own slot, changes nothing.
    """

    def advance(state: Any) -> Any:
        p, carry = state
        at = np.int32(replay.length - 1) - p if replay.reverse else p
        carry, _ = replay.step(consts, carry, read(xs, at))
        return p + np.int32(1), carry

    def to_next_stop(state: Any) -> Any:
        p, row, top, positions, snapshots, carry = state
        top = top + (p > read(positions, top)).astype(top.dtype)
        positions, snapshots = write(positions, p, top), write(snapshots, carry, top)
        stop = read(rows, row)
        p, carry = lax.while_loop(lambda s: s[0] < stop, advance, (p, carry))
        return p, row + np.int32(1), top, positions, snapshots, carry

    return lax.while_loop(lambda s: s[0] < i, to_next_stop, state)


def _turn(
    loop: Loop, linear: Marks, wanted: Parts, step: Parts, ct_carry: Leaves, ct_y: Leaves
) -> Any:
    """Tape one step and pull its cotangents back."""
    asked = Parts(wanted.consts, linear.carry, wanted.xs)
    return pullback(loop, linear, asked, step)((ct_carry, ct_y))


def pullback(loop: Loop, linear: Marks, asked: Parts, step: Parts) -> Any:
    """Tape one step: give the transpose of its linear map, whose leaves are the tape.

    Args:
        loop: The loop, all of whose ys are linear.
        linear: Marks of the leaves of which it is a linear function, given the others.
        asked: Masks of the linear inputs whose cotangents are asked for.
        step: The other inputs of one step.
    """
    at = loop.filled(Parts(*map(_among, step, linear.inputs)), linear.inputs, one_step=True)

    def differential(*some: Any) -> tuple[Leaves, Leaves]:
        carry, y = loop.step(*map(put, at, asked, some))
        return pick(carry, linear.carry), y

    return jax.linear_transpose(differential, *map(pick, loop.types, asked))


def _table(loop: Loop) -> tuple[npt.NDArray[np.int32], int, npt.NDArray[np.int32]]:
    """Give the stops of the forward sweep, the number of snapshots, and the stops after that.

    The forward sweep's stops are the first snapshots, and the last step.
    """
    schedule = loop.schedule
    if not isinstance(schedule, Binomial):
        raise AssertionError(f"{schedule!r} has no table.")
    stops = schedule.stops(loop.length)
    first = stops[: int(np.argmax(stops)) + 1] if loop.length > 1 else np.zeros(1, np.int32)
    rest = np.append(stops[len(first) :], np.int32(0))
    return first, schedule.slots(loop.length), rest


def read(tree: Any, i: Any) -> Any:
    """Take entry ``i`` of the leading axis of every leaf."""
    return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, i, keepdims=False), tree)


def write(tree: Any, value: Any, i: Any) -> Any:
    """Replace entry ``i`` of the leading axis of every leaf."""
    return jax.tree.map(lambda a, v: lax.dynamic_update_index_in_dim(a, v, i, axis=0), tree, value)


def _scan(loop: Loop, body: Callable[..., Any], init: Any, xs: Leaves) -> Any:
    return lax.scan(body, init, xs, loop.length, reverse=loop.reverse, unroll=loop.unroll)
