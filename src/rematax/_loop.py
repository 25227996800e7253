r"""A loop on flat lists of leaves, its doubled loop, and what in it varies.

The engine of the binomial schedule sees a scan as a :class:`Loop`: a step from lists of leaves to
lists of leaves, whose closed-over values are inputs like the others. From one loop another can be
made, the *doubled* loop, which carries tangents along with values (the *tangent-linear model* of
the literature). Being a loop again, it can be run forward, in reverse, or be doubled once more.

Derivatives exist for leaves of inexact dtype only; the rest (integers, booleans, random keys) is
carried along.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from ._linear import dependent

Leaves = list[Any]
Mask = tuple[bool, ...]


class Inputs(NamedTuple):
    """What a loop depends on: leaves of the constants, of the first carry, of the stacked xs.

    The same three fields also hold tangents, cotangents and masks of these leaves.
    """

    consts: Any
    carry: Any
    xs: Any


class Outputs(NamedTuple):
    """What a loop returns: leaves of the last carry and of the stacked ys, or their cotangents.

    A cotangent that is ``None`` is zero.
    """

    carry: Any
    ys: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A loop of a fixed number of steps, and the schedule of its reversal.

    Attributes:
        step: ``(consts, carry, x) -> (carry, y)`` on lists of leaves.
        length: Number of steps, at least 1.
        backwards: Whether the loop runs from the last entry of xs to the first.
        unroll: Steps per iteration of the forward sweeps, as in ``jax.lax.scan``.
        outs: Mask of the leaves of y, see :func:`mask`.
        stops: The schedule, see :meth:`rematax.Binomial.stops`.
        slots: Number of snapshots.
    """

    step: Callable[[Leaves, Leaves, Leaves], tuple[Leaves, Leaves]]
    length: int
    backwards: bool
    unroll: int | bool
    outs: Mask
    stops: npt.NDArray[np.int32]
    slots: int

    def first_stops(self) -> npt.NDArray[np.int32]:
        """Give the stops of the forward sweep: the first snapshots, and the last step."""
        if self.length == 1:
            return np.zeros(1, np.int32)
        return self.stops[: int(np.argmax(self.stops)) + 1]


def inexact(leaf: Any) -> bool:
    """Tell whether a leaf can carry a derivative: real or complex floating point."""
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def mask(leaves: Iterable[Any]) -> Mask:
    """Mark the leaves that can carry a derivative."""
    return tuple(map(inexact, leaves))


def pick(leaves: Sequence[Any], chosen: Mask) -> Leaves:
    """Keep the marked leaves."""
    return [leaf for leaf, take in zip(leaves, chosen, strict=True) if take]


def put(leaves: Sequence[Any], chosen: Mask, new: Sequence[Any]) -> Leaves:
    """Replace the marked leaves."""
    rest = iter(new)
    return [next(rest) if take else leaf for leaf, take in zip(leaves, chosen, strict=True)]


def doubled(loop: Loop, directions: Inputs) -> Loop:
    """Give the loop that carries tangents along with values.

    Args:
        loop: The loop.
        directions: Masks of the inputs along which to differentiate; the mask of the carry holds
            whatever in it varies with them, see :func:`varying`.

    Returns:
        A loop whose consts, carry and xs are those of ``loop``, each followed by the tangents of
        its marked leaves, and whose ys are followed by their tangents.
    """
    sizes = [len(chosen) for chosen in directions]

    def step(*parts):
        values = [part[:size] for part, size in zip(parts, sizes, strict=True)]
        tangents = [part[size:] for part, size in zip(parts, sizes, strict=True)]
        (carry, y), (d_carry, d_y) = _step_tangent(loop, directions, values, tangents)
        kept = tuple(pick(directions.carry, mask(carry)))
        return [*carry, *pick(d_carry, kept)], [*y, *d_y]

    return dataclasses.replace(loop, step=step, outs=loop.outs + (True,) * sum(loop.outs))


def varying(loop: Loop, inputs: Inputs, directions: Inputs) -> Inputs:
    """Add to the marked inputs the leaves of the carry that come to vary with them.

    A leaf that does not, such as a clock, is a constant to the derivative, as it is to that of
    ``jax.lax.scan``: the step may do with it what has no derivative.

    Args:
        loop: The loop.
        inputs: Its inputs.
        directions: Masks of inputs that vary.

    Returns:
        The masks, that of the carry completed.
    """
    can_vary = mask(inputs.carry)
    at = Inputs(inputs.consts, inputs.carry, [read(x, 0) for x in inputs.xs])
    while directions.carry != can_vary:

        def tangent(*tangents, directions=directions):
            return _step_tangent(loop, directions, at, tangents)[1][0]

        reached = dependent(tangent, *map(pick, at, directions))
        grown = put(directions.carry, can_vary, reached)
        carry = tuple(a or b for a, b in zip(directions.carry, grown, strict=True))
        if carry == directions.carry:
            break
        directions = directions._replace(carry=carry)
    return directions


def _step_tangent(loop, directions, values, tangents):
    """Give one step's carry and y, and the tangents of their inexact leaves."""

    def differentiable(*some):
        carry, y = loop.step(*map(put, values, directions, some))
        return (pick(carry, mask(carry)), pick(y, mask(y))), (carry, y)

    along = tuple(map(pick, values, directions))
    _, tangents, out = jax.jvp(differentiable, along, tuple(tangents), has_aux=True)
    return out, tangents


def read(tree: Any, i: Any) -> Any:
    """Take entry ``i`` of the leading axis of every leaf."""
    return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, i, keepdims=False), tree)


def write(tree: Any, value: Any, i: Any) -> Any:
    """Replace entry ``i`` of the leading axis of every leaf."""
    return jax.tree.map(lambda a, v: lax.dynamic_update_index_in_dim(a, v, i, axis=0), tree, value)
