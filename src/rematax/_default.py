r"""The schedule where none is given: a rule on static sizes.

What each schedule holds is compared, in bytes: the tapes of :class:`rematax.StoreAll`; the states,
the tape and the cut pieces of xs and ys of :class:`rematax.Nested`; the states, the tape and the
table, four bytes a step, of :class:`rematax.Binomial`. A *state* is what of the carry a derivative
needs.

1. Everything is stored where recomputing would not halve the bytes: for a few steps, for steps that
   are all but linear, and where a large leaf of the carry is read in small pieces.
2. Else the schedule that holds less is taken. For states under 1 kB that is ``Nested``, unless it
   holds twice as much: there the time that it takes to look things up in a table shows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax

from . import _jax
from ._jax import Leaves, pick, remembered
from ._loop import Loop, Parts, negated
from ._schedules import Binomial, Nested, Schedule, StoreAll
from ._sizes import leaf_bytes
from ._sweeps import pullback

SMALL_STATE = 1024
"""Bytes of a state below which the binomial schedule's table shows in the time."""


def choose(n: int, state: int, tape: int, x: int, y: int) -> Schedule:
    """Apply the rule to ``n`` steps, with the bytes of state, tape, x and y of one step."""

    def held(schedule: Schedule) -> int:
        states, tapes = schedule.stored(n)
        return (states + 2) * state + tapes * tape  # two more are being worked on

    binomial = held(Binomial()) + 4 * n
    nested = held(Nested()) + pieces(Nested(), n, x, y)
    prefer_nested = nested <= (2 if state < SMALL_STATE else 1) * binomial
    least = min(nested, binomial)
    if n * tape <= 2 * least:
        return StoreAll()
    return Nested() if prefer_nested else Binomial()


def pieces(schedule: Nested, n: int, x: int, y: int) -> int:
    """Count the bytes of what blocks hold of xs, of ys, and of their gradients.

    Each open block has its part of them; if the last is shorter, all are cut and joined as well.
    """
    radices = schedule.blocks(n)
    blocks = [min(math.prod(radices[level:]), n) for level in range(1, len(radices))]
    cut = n * (x + y) if n % math.prod(radices[1:]) else 0
    return sum(blocks) * (5 * x + 4 * y) // 2 + cut


def decided(loop: Loop, given: Parts) -> Loop:
    """Settle the schedule of a loop whose derivatives are taken along the given inputs."""
    if loop.schedule is not None:
        return loop
    return _decided(loop, given, _jax.rematerialises_late())


@remembered
def _decided(loop: Loop, given: Parts, late: bool) -> Loop:
    linear = linearised(loop, given)
    x, y = (sum(map(leaf_bytes, part)) for part in (loop.types.xs, loop.y_types))
    schedule = choose(loop.length, kept_bytes(linear), tape_bytes(linear), x, y)
    if isinstance(schedule, Nested) and late:
        schedule = Binomial()
    return replace(loop, schedule=schedule)


def linearised(loop: Loop, given: Parts) -> Loop:
    """Give the loop of the tangents along the given inputs, with what values it depends on."""
    twice, _ = loop.doubled(given)
    return twice.linear()[0]


def kept_bytes(linear: Loop) -> int:
    """Count the bytes of what a derivative needs of a state."""
    return sum(map(leaf_bytes, pick(linear.types.carry, negated(linear.tangents.carry))))


def tape_bytes(loop: Loop) -> int:
    """Count the bytes of one step's tape that a gradient which stores everything would stack."""
    tangents = loop.tangents
    values = Parts(*(pick(t, negated(m)) for t, m in zip(loop.types, tangents.inputs, strict=True)))

    def tape(*leaves: Any) -> Leaves:
        rest = iter(leaves)
        step = Parts(*([next(rest) for _ in part] for part in values))
        return jax.tree.leaves(pullback(loop, tangents, tangents.inputs, step))

    first_x = len(values.consts) + len(values.carry)
    program = _jax.traced(tape, values.flat)
    free = range(first_x, len(values.flat))
    return sum(map(leaf_bytes, _jax.stacked(program, len(values.consts), free)))
