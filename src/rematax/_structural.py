r"""The schedules that JAX can spell out itself: scans, and ``jax.checkpoint`` around step or block.

References:
    T. Chen, B. Xu, C. Zhang and C. Guestrin (2016), "Training deep nets with sublinear memory
    cost", arXiv:1604.06174.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from jax import lax

from ._jax import Leaves, divide, pick
from ._loop import Loop, Marks, Parts, put
from ._schedules import EveryStep, Nested, StoreAll


def structural_scan(loop: Loop, inputs: Parts) -> Leaves:
    """Run the loop so that its derivative keeps what its schedule says: last carry, then ys."""

    def step(carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        return loop.step(inputs.consts, carry, x)

    radices: tuple[int, ...]
    match loop.schedule:
        case StoreAll():
            radices, tapes = (loop.length,), True
        case EveryStep():
            radices, tapes = (loop.length,), False
        case Nested(tapes=tapes) as nested:
            radices = nested.blocks(loop.length)
        case other:
            raise TypeError(f"rx.scan: no engine for a schedule of type {type(other).__name__}.")
    carry, ys = _nested(
        step, inputs.carry, inputs.xs, loop.length, radices, tapes, loop.reverse, loop.unroll
    )
    return [*carry, *ys]


def structural_pullback(
    loop: Loop, linear: Marks, wanted: Parts, inputs: Parts, cts: Leaves
) -> Parts:
    """Pull cotangents back through the loop, in blocks, so that it can be differentiated again.

    The arguments are those of :func:`rematax._sweeps.reverse_sweep`, but that the inputs have None
    for the linear ones.
    """
    loop = replace(loop, schedule=Nested())
    marks = wanted.flat
    at = loop.filled(inputs, linear.inputs).flat

    def run(*some: Any) -> Leaves:
        out = structural_scan(loop, loop.parts(put(at, marks, some)))
        return pick(out, (*linear.carry, *linear.ys))

    out = jax.linear_transpose(run, *map(jax.typeof, pick(at, marks)))(cts)
    return Parts(*divide(out, tuple(map(sum, wanted))))


def _nested(
    step: Callable[[Leaves, Leaves], tuple[Leaves, Leaves]],
    carry: Leaves,
    xs: Leaves,
    n: int,
    radices: tuple[int, ...],
    tapes: bool,
    reverse: bool,
    unroll: int,
) -> tuple[Leaves, Leaves]:
    """Run ``n`` steps in blocks; what does not fill a block is a shorter block of its own."""
    if len(radices) == 1:
        leaf = step if tapes else jax.checkpoint(step, prevent_cse=False)
        return lax.scan(leaf, carry, xs, n, reverse, unroll)

    def block(carry: Leaves, xs: Leaves, steps: int) -> tuple[Leaves, Leaves]:
        carry, ys = _nested(step, carry, xs, steps, radices[1:], tapes, reverse, unroll)
        # The axis added is merged below. It keeps integer ys of a scan from leaving a checkpoint
        # untouched, which JAX 0.10 cannot transpose where jax_remat3 is on.
        return carry, [y[None] for y in ys]

    size = math.prod(radices[1:])
    full, rest = divmod(n, size)
    # The shorter block runs last, so that it lies at the end of xs, or at the start if reversed.
    cut = [_halves(x, rest if reverse else full * size) for x in xs]
    whole = [lax.reshape(pair[reverse], (full, size, *pair[reverse].shape[1:])) for pair in cut]
    part = [pair[not reverse] for pair in cut]
    pieces = []
    if full:
        body = jax.checkpoint(lambda c, x: block(c, x, size), prevent_cse=False)
        carry, ys = lax.scan(body, carry, whole, full, reverse)
        pieces.append([lax.reshape(y, (full * size, *y.shape[3:])) for y in ys])
    if rest:
        carry, ys = jax.checkpoint(lambda c, x: block(c, x, rest))(carry, part)
        pieces.append([y[0] for y in ys])
    if len(pieces) == 1:
        return carry, pieces[0]
    return carry, [
        lax.concatenate(ys, 0) for ys in zip(*pieces[:: -1 if reverse else 1], strict=True)
    ]


def _halves(x: Any, size: int) -> tuple[Any, Any]:
    """Cut an array in two along its leading axis, if both have something in them."""
    if size in (0, x.shape[0]):
        return x, x
    return x[:size], x[size:]
