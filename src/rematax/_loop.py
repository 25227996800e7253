r"""A loop on flat lists of leaves, and the loops that are made of it.

A :class:`Loop` holds its step as a traced program, so that it can be looked into and transformed
as a whole:

- :meth:`Loop.doubled` carries tangents along with values (the *tangent-linear model* of the
  literature). Being a loop again, it can be run forward, in reverse, or be doubled once more;
- :meth:`Loop.batched` maps the step over an axis, with only those leaves mapped that depend on it:
  a weight that a batch shares stays one weight, and its cotangent is summed within each step;
- :meth:`Loop.pruned` keeps what is needed for the outputs asked for: a leaf of the carry stays
  only if such an output, now or in a later step, depends on it.

In each, the leaves of the carry are found by iterating to a fixed point over the loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp

from . import _jax
from ._jax import Captured, Leaves, Mask, Program, divide, pick, remembered
from ._schedules import Binomial, Schedule


class Parts(NamedTuple):
    """What a loop takes: leaves of the constants, of the first carry, of the stacked xs.

    The same three fields also hold tangents, cotangents, types and masks of these leaves.
    """

    consts: Any
    carry: Any
    xs: Any

    @property
    def flat(self) -> Leaves:
        """All leaves, as one list."""
        return [*self.consts, *self.carry, *self.xs]

    def only(self, kept: Parts) -> Parts:
        """Give the masks of the kept leaves."""
        return Parts(*(tuple(pick(mask, k)) for mask, k in zip(self, kept, strict=True)))


class Marks(NamedTuple):
    """Masks of the leaves of a loop; that of the carry is of the first carry and of the last."""

    consts: Mask
    carry: Mask
    xs: Mask
    ys: Mask

    @property
    def inputs(self) -> Parts:
        """The masks of what the loop takes."""
        return Parts(self.consts, self.carry, self.xs)

    def only(self, kept: Marks) -> Marks:
        """Give the masks of the kept leaves."""
        return Marks(*(tuple(pick(mask, k)) for mask, k in zip(self, kept, strict=True)))

    def __and__(self, other: Marks) -> Marks:
        return Marks(*map(both, self, other))

    def __invert__(self) -> Marks:
        return Marks(*map(negated, self))


def put(leaves: Sequence[Any], chosen: Sequence[bool], new: Sequence[Any]) -> Leaves:
    """Replace the marked leaves."""
    rest = iter(new)
    out = [next(rest) if take else leaf for leaf, take in zip(leaves, chosen, strict=True)]
    if next(rest, None) is not None:
        raise AssertionError("more leaves than marks.")
    return out


def spread(new: Sequence[Any], chosen: Sequence[bool]) -> Leaves:
    """Put the leaves where the marks are, None elsewhere."""
    return put([None] * len(chosen), chosen, new)


def masked(leaves: Sequence[Any], chosen: Sequence[bool]) -> Leaves:
    """Put None for the leaves that are not marked."""
    return spread(pick(leaves, chosen), chosen)


def negated(mask: Sequence[bool]) -> Mask:
    """Mark the leaves that are not marked."""
    return tuple(not m for m in mask)


def both(a: Sequence[bool], b: Sequence[bool]) -> Mask:
    """Mark the leaves that both mark; None is no mark."""
    return tuple(bool(x and y) for x, y in zip(a, b, strict=True))


def either(a: Sequence[bool], b: Sequence[bool]) -> Mask:
    """Mark the leaves that one of the two marks."""
    return tuple(bool(x or y) for x, y in zip(a, b, strict=True))


@dataclass(frozen=True)
class Loop:
    """A loop of a fixed number of steps, and the schedule of its reversal.

    Attributes:
        program: The step, a program of consts, carry and x that returns carry and y.
        sizes: Numbers of leaves of consts, carry and x.
        length: Number of steps, at least 1.
        reverse: Whether the loop runs from the last entry of xs to the first.
        unroll: Steps per iteration of the forward sweeps, as in ``jax.lax.scan``.
        schedule: What its gradient keeps; None for the default rule.
        tangents: Which leaves are tangents, of which the step is a linear function.
    """

    program: Program
    sizes: tuple[int, ...]
    length: int
    reverse: bool
    unroll: int
    schedule: Schedule | None
    tangents: Marks = None  # type: ignore[assignment]  # of none

    @classmethod
    def of(cls, call: Captured, schedule: Schedule | None) -> Loop:
        """Give the loop of a scan that was traced."""
        return cls(call.program, call.sizes, call.length, call.reverse, call.unroll, schedule)

    def __post_init__(self) -> None:
        if self.tangents is None:
            object.__setattr__(self, "tangents", self.none)

    def parts(self, leaves: Sequence[Any]) -> Parts:
        """Take a flat list of leaves of the inputs apart."""
        return Parts(*divide(leaves, self.sizes))

    def step(self, consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        """Run one step."""
        out = self.program(*consts, *carry, *x)
        return out[: self.sizes[1]], out[self.sizes[1] :]

    @property
    def types(self) -> Parts:
        """Abstract values of consts, carry and x."""
        return self.parts(self.program.in_types)

    @property
    def y_types(self) -> Leaves:
        """Abstract values of the leaves of y."""
        return self.program.out_types[self.sizes[1] :]

    @property
    def is_structural(self) -> bool:
        """Whether its derivative is that of scans and ``jax.checkpoint``."""
        return not isinstance(self.schedule, Binomial)

    def filled(
        self, inputs: Parts, chosen: Parts, cotangents: bool = False, one_step: bool = False
    ) -> Parts:
        """Write out the zeros, which are None, among the marked inputs.

        Args:
            inputs: Inputs of the loop, or tangents or cotangents of them.
            chosen: Masks of inputs, all of which have tangents.
            cotangents: Whether the zeros are to be cotangents.
            one_step: Whether the xs are those of one step, and not stacked.
        """

        def filled(leaves: Leaves, types: Leaves, marks: Mask, stacked: bool) -> Leaves:
            out = list(leaves)
            for i, aval in enumerate(types):
                if marks[i] and out[i] is None:
                    zero = _jax.zeros(_jax.cotangent_type(aval) if cotangents else aval)
                    shape = (self.length, *zero.shape)
                    out[i] = jnp.broadcast_to(zero, shape) if stacked else zero
            return out

        return Parts(*map(filled, inputs, self.types, chosen, (False, False, not one_step)))

    @property
    def none(self) -> Marks:
        """Mark no leaf."""
        return Marks(*((False,) * size for size in (*self.sizes, len(self.y_types))))

    @remembered
    def doubled(self, given: Parts, all_ys: bool = False) -> tuple[Loop, Marks]:
        """Give the loop that carries tangents along with values.

        Args:
            given: Masks of the inputs that have tangents.
            all_ys: Whether to give each y a tangent, where it is zero as well.

        Returns:
            A loop each of whose parts is followed by the tangents of its varying leaves, which are
            its ``tangents``; and the marks of what varies. A leaf of the carry that does not, such
            as a clock, is a constant to the derivative, as it is to that of ``jax.lax.scan``.
        """
        consts, carry, xs = given
        ys = tuple(all_ys and _jax.has_tangent(t) for t in self.y_types)
        while True:
            program, varies = _jax.double(self.program, (*consts, *carry, *xs), (*carry, *ys))
            out_carry, out_ys = varies[: self.sizes[1]], varies[self.sizes[1] :]
            if out_carry == carry:
                break
            carry = either(carry, out_carry)
        varying = Marks(consts, carry, xs, out_ys)
        inputs = _interleaved(self.sizes, [sum(m) for m in (consts, carry, xs)])
        outputs = _interleaved((self.sizes[1], len(out_ys)), [sum(carry), sum(out_ys)])
        return replace(
            self,
            program=_jax.rearrange(program, inputs, outputs),
            sizes=tuple(len(m) + sum(m) for m in (consts, carry, xs)),
            tangents=Marks(*((False,) * len(m) + (True,) * sum(m) for m in varying)),
        ), varying

    @remembered
    def batched(self, axis: Any, mapped: Parts, all_ys: Mask) -> tuple[Loop, Marks]:
        """Give the loop over a mapped axis, and the marks of what is mapped.

        Args:
            axis: The axis, as a batching rule is told it.
            mapped: Masks of the inputs that have the axis.
            all_ys: Mask of the ys that are to have it, whether they depend on it or not.
        """
        consts, carry, xs = mapped
        while True:
            program, out = _jax.batch(self.program, axis, (*consts, *carry, *xs), (*carry, *all_ys))
            out_carry, ys = out[: self.sizes[1]], out[self.sizes[1] :]
            if out_carry == carry:
                return replace(self, program=program), Marks(consts, carry, xs, ys)
            carry = either(carry, out_carry)

    @remembered
    def pruned(self, carry: Mask, ys: Mask) -> tuple[Loop, Marks]:
        """Give the loop of what is needed for some outputs, and the marks of what is left.

        Args:
            carry: Mask of the leaves of the last carry asked for.
            ys: Mask of the ys asked for.
        """
        n_consts, _, n_xs = self.sizes
        while True:
            instantiate = (False,) * n_consts + carry + (False,) * n_xs
            program, needed = _jax.prune(self.program, (*carry, *ys), instantiate)
            left = self.parts(needed)
            if tuple(left.carry) == carry:
                break
            carry = either(carry, left.carry)
        marks = Marks(tuple(left.consts), carry, tuple(left.xs), ys)
        return replace(
            self,
            program=program,
            sizes=tuple(map(sum, marks.inputs)),
            tangents=self.tangents.only(marks),
        ), marks

    def values(self) -> tuple[Loop, Marks]:
        """Give the loop without its tangents."""
        tangents = self.tangents
        loop, left = self.pruned(negated(tangents.carry), negated(tangents.ys))
        if any((left & tangents).inputs.flat):
            # Dead code is not seen in a lax.while_loop; which of its outputs are known is.
            program, is_known = _jax.known(self.program, tangents.inputs.flat)
            if is_known != (*negated(tangents.carry), *negated(tangents.ys)):
                raise AssertionError("a value depends on tangents.")
            left = ~tangents
            sizes = tuple(map(sum, left.inputs))
            loop = replace(self, program=program, sizes=sizes, tangents=tangents.only(left))
        return loop, left

    def linear(self) -> tuple[Loop, Marks]:
        """Give the loop of its tangents, with what of the values they depend on."""
        return self.pruned(self.tangents.carry, self.tangents.ys)


def _interleaved(sizes: Sequence[int], more: Sequence[int]) -> list[int]:
    """Number leaves so that each part is followed by the part added to it."""
    first, second = itertools.count(), itertools.count(sum(sizes))
    order: list[int] = []
    for size, added in zip(sizes, more, strict=True):
        order += [*itertools.islice(first, size), *itertools.islice(second, added)]
    return order
