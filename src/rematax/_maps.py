r"""What JAX is told about the checkpointed loop: three maps, and their derivatives of every order.

Write the loop as :math:`F`, its inputs (constants, first carry, xs) as :math:`x`. Each map below is
one equation to JAX, and each knows how it is transformed (see :class:`rematax._jax.Map`):

- :class:`Forward` is :math:`F(x)`, by a sweep that can keep snapshots. Its derivative is
  ``Forward`` of the doubled loop: value and tangent come from one sweep. Only where JAX knows the
  values and not the tangents, as in reverse mode, is that sweep taken apart: into the ``Forward``
  of the values, with snapshots, and the ``Tangent``;
- :class:`Tangent` is :math:`\dot x \mapsto J(x)\,\dot x`. Its transpose is ``Adjoint``;
- :class:`Adjoint` is :math:`\bar y \mapsto J(x)^T \bar y`, by the table-driven reverse sweep. Its
  transpose is ``Tangent``, and its derivative is ``Adjoint`` of the doubled loop, which again gives
  value and tangent in one sweep.

The last deserves a word. The step is, given :math:`x`, a linear function :math:`L(x)` of
:math:`\dot x`. Doubled along :math:`x'` it is :math:`(\dot x, \dot x') \mapsto (L \dot x,\; L'
\dot x + L \dot x')`, linear again, and pulling cotangents :math:`(\bar y', \bar y)` back through
that gives :math:`(L^T \bar y' + L'^T \bar y,\; L^T \bar y)`: tangent and value of the gradient (the
*second-order adjoint* of the literature). Taken apart, the tangent alone is the *curvature map*,
linear in :math:`(x', \bar y')`; its transpose at :math:`w` is made of the same parts, :math:`L w`
for :math:`\bar y'`, and for :math:`x'` the pullback of :math:`\bar y` through :math:`L' w`.

Since the doubled loop is again a loop, the maps are differentiable as often as one likes, and each
derivative of any order, in forward or reverse mode, runs with the same few snapshots.

The snapshots depend on the inputs, but derivatives with respect to :math:`x` above are total:
whoever transposes these maps gets nothing for the snapshots.

References:
    A. Griewank and A. Walther (2008), "Evaluating Derivatives", 2nd edition, SIAM.

    R. Frostig, M. J. Johnson, D. Maclaurin, A. Paszke and A. Radul (2021), "Decomposing
    reverse-mode automatic differentiation", arXiv:2105.09469.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from . import _jax
from ._default import decided
from ._jax import Leaves, Map, Mask, Program, Pruned, Split, apply, divide, pick, remembered
from ._loop import Loop, Marks, Parts, both, either, masked, negated, put, spread
from ._structural import structural_pullback, structural_scan
from ._sweeps import forward_sweep, reverse_sweep


@dataclass(frozen=True)
class LoopMap(Map):
    """A map of a loop, beside whose step is kept what is made of the map."""

    loop: Loop

    @property
    def program(self) -> Program:
        """The step."""
        return self.loop.program


@dataclass(frozen=True)
class Forward(LoopMap):
    """Run a loop: from consts, first carry and xs to the last carry, the ys and the snapshots.

    Attributes:
        loop: The loop.
        kept: Mask of the leaves of the carry that have snapshots.
    """

    kept: Mask

    @property
    def once(self) -> Map:
        """The loop without snapshots."""
        return Forward(self.loop, self.loop.none.carry)

    def evaluate(self, *args: Any) -> Leaves:
        """Sweep forward."""
        carry, ys, snapshots = forward_sweep(self.loop, self.kept, self.loop.parts(args))
        return [*carry, *ys, *snapshots]

    def outputs(self, leaves: Sequence[Any]) -> list[Leaves]:
        """Take outputs apart: last carry, ys, snapshots."""
        return divide(leaves, (len(self.kept), len(self.loop.y_types), sum(self.kept)))

    def jvp(self, args: Leaves, tangents: Leaves) -> tuple[Leaves, Leaves]:
        """Sweep over the doubled loop: value and tangent at once."""
        given = Parts(*map(_is_given, self.loop.parts(tangents)))
        loop = decided(self.loop, given)
        twice, varies = loop.doubled(given)
        values = loop.parts(args)
        joined = Parts(*map(_with_tangents, values, loop.parts(tangents), varies.inputs))
        if loop.is_structural:
            return _structural_jvp(loop, values, joined, varies)
        doubled = Forward(twice, _twice(self.kept, varies.carry))
        out = doubled.outputs(apply(doubled, *joined.flat))
        masks = varies.carry, varies.ys, tuple(pick(varies.carry, self.kept))
        pairs = [
            divide(part, (len(mask), sum(mask))) for part, mask in zip(out, masks, strict=True)
        ]
        return (
            [leaf for old, _ in pairs for leaf in old],
            [
                leaf
                for (_, new), mask in zip(pairs, masks, strict=True)
                for leaf in spread(new, mask)
            ],
        )

    def split(self, unknown: Mask) -> Split | None:
        """Take values and tangents apart; snapshots go from the one to the other."""
        loop, kept = self.loop, self.kept
        tangents = loop.tangents
        if any(u and not t for u, t in zip(unknown, tangents.inputs.flat, strict=True)):
            return None
        values, for_values = loop.values()
        linear, for_linear = loop.linear()
        is_value = negated(tangents.carry)
        needed = both(for_linear.carry, is_value)
        held = both(either(kept, needed), is_value)
        carry, ys, snapshots = self.outputs(range(len(kept) + len(loop.y_types) + sum(kept)))
        snapshots = spread(snapshots, kept)
        known_outputs = [*pick(carry, is_value), *pick(ys, negated(tangents.ys))]
        first = len(known_outputs)
        return Split(
            known=Forward(values, tuple(pick(held, is_value))),
            known_inputs=_where(for_values.inputs.flat),
            known_outputs=[*known_outputs, *pick(snapshots, held)],
            residuals=[first + i for i in _where(pick(needed, held))],
            linear=Tangent(linear, tuple(pick(kept, tangents.carry))),
            linear_inputs=_where(for_linear.inputs.flat),
            linear_outputs=[
                *pick(carry, tangents.carry),
                *pick(ys, tangents.ys),
                *pick(snapshots, both(kept, tangents.carry)),
            ],
        )

    def transpose(self, cotangents: Leaves, args: Leaves, linear: Mask) -> Leaves:
        """Transpose a loop that is linear in some of its inputs, which may be no tangents."""
        given = Parts(*map(tuple, self.loop.parts(linear)))
        loop = decided(self.loop, given)
        _, reached = loop.doubled(given)
        loop = replace(loop, tangents=reached)
        if loop.is_structural:
            return _structural_transpose(loop, cotangents, args, linear)
        parts = Forward(loop, self.kept).split(linear)
        if parts is None:
            raise AssertionError("the loop is not linear in its tangents.")
        known = apply(parts.known, *(args[i] for i in parts.known_inputs))
        inputs = [*(args[i] for i in parts.linear_inputs), *(known[i] for i in parts.residuals)]
        marks = tuple(
            i < len(parts.linear_inputs) and linear[parts.linear_inputs[i]]
            for i in range(len(inputs))
        )
        out = parts.linear.transpose([cotangents[i] for i in parts.linear_outputs], inputs, marks)
        full = [None] * len(args)
        for i, ct in zip(parts.linear_inputs, out, strict=False):
            full[i] = ct
        return full

    def batched(self, axis: Any, args: Leaves, axes: Leaves) -> tuple[Leaves, Leaves]:
        """Map the step."""
        loop, marks, inputs = _batched(
            self.loop, axis, self.loop.parts(args), self.loop.parts(axes)
        )
        out = apply(Forward(loop, self.kept), *inputs)
        mapped = [marks.carry, marks.ys, pick(marks.carry, self.kept)]
        return out, [p if m else None for p, ms in zip((0, 1, 1), mapped, strict=True) for m in ms]

    def pruned(self, used: Mask) -> Pruned:
        """Leave out ys, leaves of the carry, and snapshots."""
        carry, ys, snapshots = self.outputs(used)
        kept = tuple(put(self.kept, self.kept, snapshots))
        loop, left = self.loop.pruned(either(carry, kept), tuple(ys))
        outputs = (*left.carry, *ys, *snapshots)
        return Pruned(
            Forward(loop, tuple(pick(kept, left.carry))), tuple(left.inputs.flat), outputs
        )


@dataclass(frozen=True)
class Tangent(LoopMap):
    """Push tangents forward: to those of the last carry, of the ys, and of the snapshots.

    It takes what the loop takes, and the snapshots of the values in its carry, for its transpose.

    Attributes:
        loop: A loop of whose values nothing is left that its tangents do not depend on.
        kept: Mask of the tangents in its carry that have snapshots.
    """

    kept: Mask

    @property
    def _whole(self) -> Forward:
        """The map that gives the values as well."""
        tangents = self.loop.tangents.carry
        return Forward(self.loop, tuple(put((False,) * len(tangents), tangents, self.kept)))

    def _apart(self, leaves: Sequence[Any]) -> tuple[Parts, Leaves]:
        """Take inputs and snapshots apart."""
        size = sum(self.loop.sizes)
        return self.loop.parts(leaves[:size]), list(leaves[size:])

    def _chosen(self, leaves: Sequence[Any]) -> Leaves:
        """Choose the tangents among the outputs of the whole."""
        carry, ys, snapshots = self._whole.outputs(leaves)
        return [*pick(carry, self.loop.tangents.carry), *ys, *snapshots]

    def evaluate(self, *args: Any) -> Leaves:
        """Sweep forward."""
        return self._chosen(self._whole.evaluate(*self._apart(args)[0].flat))

    def jvp(self, args: Leaves, tangents: Leaves) -> tuple[Leaves, Leaves]:
        """Sweep over the doubled loop."""
        inputs, along = self._apart(args)[0], self._apart(tangents)[0]
        out, out_tangents = self._whole.jvp(inputs.flat, along.flat)
        return self._chosen(out), self._chosen(out_tangents)

    def split(self, unknown: Mask) -> Split | None:
        """Stay whole: there is nothing in it but what is linear in the tangents."""
        return None

    def transpose(self, cotangents: Leaves, args: Leaves, linear: Mask) -> Leaves:
        """Sweep in reverse."""
        inputs, snapshots = self._apart(args)
        wanted, _ = self._apart(linear)
        tangents = self.loop.tangents
        ct_carry, ct_ys, _ = divide(
            cotangents, (sum(tangents.carry), len(tangents.ys), sum(self.kept))
        )
        out = _pulled_back(
            replace(self.loop, tangents=self.loop.none),
            tangents,
            wanted,
            inputs,
            spread(snapshots, negated(tangents.carry)),
            spread(ct_carry, tangents.carry),
            ct_ys,
        )
        return [*out.flat, *[None] * len(snapshots)]

    def batched(self, axis: Any, args: Leaves, axes: Leaves) -> tuple[Leaves, Leaves]:
        """Map the step."""
        (inputs, snapshots), (input_axes, snapshot_axes) = self._apart(args), self._apart(axes)
        tangents = self.loop.tangents
        is_value = negated(tangents.carry)
        # A value of the carry is mapped where its snapshots are, whatever its first carry is.
        from_snapshots = _is_given(spread(snapshot_axes, is_value))
        loop, marks, moved = _batched(self.loop, axis, inputs, input_axes, from_snapshots)
        snapshots = _moved(axis, snapshots, snapshot_axes, pick(marks.carry, is_value), 1)
        out = apply(Tangent(loop, self.kept), *moved, *snapshots)
        carry = pick(marks.carry, tangents.carry)
        mapped = [carry, marks.ys, pick(carry, self.kept)]
        return out, [p if m else None for p, ms in zip((0, 1, 1), mapped, strict=True) for m in ms]

    def pruned(self, used: Mask) -> Pruned:
        """Leave out tangents, and what they alone depend on."""
        tangents = self.loop.tangents
        sizes = sum(tangents.carry), len(tangents.ys), sum(self.kept)
        carry, ys, snapshots = divide(used, sizes)
        kept = put(self.kept, self.kept, snapshots)
        asked = put((False,) * len(tangents.carry), tangents.carry, either(carry, kept))
        loop, left = self.loop.pruned(tuple(asked), tuple(ys))
        left_tangents = pick(left.carry, tangents.carry)
        map = Tangent(loop, tuple(pick(kept, left_tangents)))
        for_snapshots = pick(left.carry, negated(tangents.carry))
        inputs = (*left.inputs.flat, *for_snapshots)
        return Pruned(map, inputs, (*left_tangents, *ys, *snapshots))


@dataclass(frozen=True)
class Adjoint(LoopMap):
    """Pull cotangents back: from those of the linear outputs to those of the linear inputs.

    It takes the consts, the first carry and the xs that are not linear, the snapshots of such
    leaves of the carry, and cotangents of the linear leaves of the last carry and of the ys.

    Attributes:
        loop: A loop of whose values nothing is left that its linear outputs do not depend on. Its
            ys are all linear. Its tangents are those of the newest derivative: there are some where
            this is the derivative of another such map, and then to each linear leaf belongs a
            linear tangent, in the same order.
        linear: Marks of the leaves of which it is a linear function, given the others.
        wanted: Masks of the linear inputs whose cotangents are asked for.
    """

    linear: Marks
    wanted: Parts

    def _apart(self, leaves: Sequence[Any]) -> tuple[Parts, Leaves, Leaves, Leaves]:
        """Take inputs apart: those of the loop, snapshots, cotangents of its carry and of its ys.

        None stands for what is not there: linear inputs, and cotangents of the others.
        """
        values = (~self.linear).inputs
        *parts, snapshots, ct_carry, ct_ys = divide(leaves, self._sizes)
        inputs = Parts(*map(spread, parts, values))
        return (
            inputs,
            spread(snapshots, values.carry),
            spread(ct_carry, self.linear.carry),
            ct_ys,
        )

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Numbers of inputs: consts, carry, xs, snapshots, cotangents of carry and of ys."""
        consts, carry, xs = map(sum, (~self.linear).inputs)
        return consts, carry, xs, carry, sum(self.linear.carry), len(self.linear.ys)

    def _outputs(self, leaves: Sequence[Any]) -> Parts:
        """Take outputs apart; None stands for what is not wanted."""
        return Parts(*map(spread, divide(leaves, tuple(map(sum, self.wanted))), self.wanted))

    def evaluate(self, *args: Any) -> Leaves:
        """Sweep in reverse."""
        inputs, snapshots, ct_carry, ct_ys = self._apart(args)
        values = (~self.linear).inputs
        return reverse_sweep(
            self.loop,
            self.linear,
            self.wanted,
            Parts(*map(pick, inputs, values)),
            pick(snapshots, values.carry),
            (pick(ct_carry, self.linear.carry), ct_ys),
        ).flat

    def jvp(self, args: Leaves, tangents: Leaves) -> tuple[Leaves, Leaves]:
        """Sweep over the doubled loop: the gradient and its tangent at once."""
        if _jax.is_one_way(self.program):
            return _jvp_of(self.spelled_out, args, tangents)
        inputs, snapshots, ct_carry, ct_ys = self._apart(args)
        along, d_snapshots, d_carry, d_ys = self._apart(tangents)
        given = [either(m, _is_given(t)) for m, t in zip(self.linear.inputs, along, strict=True)]
        given[1] = either(given[1], _is_given(d_snapshots))
        loop, varies = self.loop.doubled(Parts(*given), True)
        new_ct = [_or_zero(ct, d) for ct, d in zip(ct_carry, d_carry, strict=True)]
        new_ct_ys = [_or_zero(ct, d) for ct, d in zip(ct_ys, d_ys, strict=True)]
        out = _pulled_back(
            loop,
            Marks(*map(_twice, self.linear, varies)),
            Parts(*map(_twice, self.wanted, varies.inputs)),
            Parts(*map(_with_tangents, inputs, along, varies.inputs)),
            _with_tangents(snapshots, d_snapshots, varies.carry),
            [*new_ct, *pick(ct_carry, varies.carry)],
            [*new_ct_ys, *pick(ct_ys, varies.ys)],
        )
        # The tangent belongs to the old leaves, the gradient to their tangents.
        halves = [
            divide(part, (len(m), sum(m))) for part, m in zip(out, varies.inputs, strict=True)
        ]
        tangent = Parts(*(old for old, _ in halves))
        gradient = Parts(
            *(spread(new, m) for (_, new), m in zip(halves, varies.inputs, strict=True))
        )

        def filled(result: Parts) -> Leaves:
            full = self.loop.filled(result, self.wanted, cotangents=True)
            return Parts(*map(pick, full, self.wanted)).flat

        return filled(gradient), filled(tangent)

    def spelled_out(self, *args: Any) -> Leaves:
        """Pull back in JAX's own terms, for steps with a custom_vjp, which cannot be doubled."""
        inputs, _, ct_carry, ct_ys = self._apart(args)
        cts = [*pick(ct_carry, self.linear.carry), *ct_ys]
        return structural_pullback(self.loop, self.linear, self.wanted, inputs, cts).flat

    def split(self, unknown: Mask) -> Split | None:
        """Take the gradient and its tangent apart."""
        tangents, linear = self.loop.tangents, self.linear
        if not any(any(both(w, t)) for w, t in zip(self.wanted, tangents.inputs, strict=True)):
            return None
        old, new = linear & ~tangents, linear & tangents
        inputs, snapshots, ct_carry, ct_ys = self._apart(range(len(unknown)))
        # The cotangents of the old leaves are tangents, those of the new ones are values.
        known = {
            *(
                i
                for part, m in zip(inputs, tangents.inputs, strict=True)
                for i in pick(part, negated(m))
            ),
            *pick(snapshots, negated(tangents.carry)),
            *pick(ct_carry, new.carry),
            *pick(ct_ys, new.ys),
        }
        if any(unknown[i] for i in known if i is not None):
            return None
        base, left = self.loop.pruned(old.carry, old.ys)
        wanted = Parts(
            *(
                tuple(put((False,) * len(o), o, pick(w, n)))
                for o, n, w in zip(old.inputs, new.inputs, self.wanted, strict=True)
            )
        )
        is_value = (~linear & left).inputs
        outputs = self._outputs(range(sum(map(sum, self.wanted))))
        is_new = [both(w, n) for w, n in zip(self.wanted, new.inputs, strict=True)]
        is_old = [both(w, o) for w, o in zip(self.wanted, old.inputs, strict=True)]
        return Split(
            known=Adjoint(base, linear.only(left), wanted.only(left.inputs)),
            known_inputs=[
                *Parts(*map(pick, inputs, is_value)).flat,
                *pick(snapshots, is_value.carry),
                *pick(ct_carry, new.carry),
                *pick(ct_ys, new.ys),
            ],
            known_outputs=Parts(*map(pick, outputs, is_new)).flat,
            residuals=[],
            linear=Adjoint(self.loop, linear, Parts(*is_old)),
            linear_inputs=list(range(len(unknown))),
            linear_outputs=Parts(*map(pick, outputs, is_old)).flat,
        )

    def transpose(self, cotangents: Leaves, args: Leaves, linear: Mask) -> Leaves:
        """Push forward; of the curvature map, pull back through the tangent as well."""
        loop, tangents = self.loop, self.loop.tangents
        inputs, snapshots, ct_carry, ct_ys = self._apart(args)
        asked, asked_snapshots, asked_carry, asked_ys = self._apart(linear)
        curvature = any(asked.flat) or any(asked_snapshots)
        old = self.linear & ~tangents if curvature else self.linear
        along = loop.filled(self._outputs(cotangents), old.inputs)
        at = Parts(*map(put, inputs, old.inputs, map(pick, along, old.inputs)))
        out_carry, out_ys, along_snapshots = _pushed(loop, old, at, snapshots, curvature)
        out_inputs = Parts(*([None] * size for size in loop.sizes))
        if curvature:
            new = self.linear & tangents
            out_inputs = _pulled_back(
                replace(loop, tangents=loop.none),
                tangents,
                asked,
                at,
                put(snapshots, old.carry, pick(along_snapshots, old.carry)),
                masked(ct_carry, new.carry),
                masked(ct_ys, new.ys),
            )
        values = (~self.linear).inputs
        return [
            *Parts(*map(pick, out_inputs, values)).flat,
            *[None] * sum(values.carry),
            *pick(masked(out_carry, asked_carry), self.linear.carry),
            *masked(out_ys, asked_ys),
        ]

    def batched(self, axis: Any, args: Leaves, axes: Leaves) -> tuple[Leaves, Leaves]:
        """Map the step. Whatever is linear is mapped, since it is for a batch of cotangents.

        A gradient that is the same for all is found once, apart from its tangents.
        """
        parts = self.split((False,) * len(args))
        if parts and _jax.unnamed(axis) and all(axes[i] is None for i in parts.known_inputs):
            known = apply(parts.known, *(args[i] for i in parts.known_inputs))
            mapped, where = parts.linear.batched(axis, args, axes)
            numbers = [*parts.known_outputs, *parts.linear_outputs]
            places = [numbers.index(i) for i in range(len(numbers))]
            out, where = [*known, *mapped], [*[None] * len(known), *where]
            return [out[i] for i in places], [where[i] for i in places]
        if _jax.is_one_way(self.program):
            outside = Mapped(self, axis, tuple(axes))
            return apply(outside, *args), [0] * sum(map(sum, self.wanted))
        inputs, snapshots, ct_carry, ct_ys = self._apart(args)
        input_axes, snapshot_axes, *ct_axes = self._apart(axes)
        linear = self.linear
        mapped = [either(m, _is_given(a)) for m, a in zip(linear.inputs, input_axes, strict=True)]
        mapped[1] = either(mapped[1], _is_given(snapshot_axes))
        loop, marks = self.loop.batched(axis, Parts(*mapped), linear.ys)
        values = (~linear).inputs
        inputs = Parts(
            *(
                _moved(axis, pick(x, v), pick(a, v), pick(m, v), to)
                for x, a, m, v, to in zip(
                    inputs, input_axes, marks, values, (0, 0, 1), strict=False
                )
            )
        )
        snapshots, snapshot_axes, masks = (
            pick(x, values.carry) for x in (snapshots, snapshot_axes, marks.carry)
        )
        out = apply(
            Adjoint(loop, linear, self.wanted),
            *inputs.flat,
            *_moved(axis, snapshots, snapshot_axes, masks, 1),
            *_moved(
                axis,
                pick(ct_carry, linear.carry),
                pick(ct_axes[0], linear.carry),
                (True,) * sum(linear.carry),
                0,
            ),
            *_moved(axis, ct_ys, ct_axes[1], linear.ys, 1),
        )
        return out, [
            to for to, w in zip((0, 0, 1), self.wanted, strict=True) for _ in range(sum(w))
        ]

    def pruned(self, used: Mask) -> Pruned:
        """Leave out cotangents."""
        wanted = Parts(*map(both, self._outputs(used), self.wanted))
        inputs = (True,) * sum(self._sizes)
        return Pruned(Adjoint(self.loop, self.linear, wanted), inputs, tuple(used))


@dataclass(frozen=True)
class Mapped(Map):
    """Pull back over a mapped axis, from outside the loop.

    For steps with a custom_vjp: what JAX makes of its pullback can be mapped only where it is used.

    Attributes:
        map: The map.
        axis: The axis, as a batching rule is told it.
        axes: Where each input has it; None for nowhere. The outputs have it first.
    """

    map: Adjoint | Mapped
    axis: Any
    axes: tuple[int | None, ...]

    @property
    def program(self) -> Program:
        """The step, beside which is kept what is made of this map."""
        return self.map.program

    def evaluate(self, *args: Any) -> Leaves:
        """Pull back for each along the axis."""
        return _jax.over_axis(self.map.evaluate, self.axis, self.axes)(*args)

    def spelled_out(self, *args: Any) -> Leaves:
        """Pull back for each in JAX's own terms."""
        return _jax.over_axis(self.map.spelled_out, self.axis, self.axes)(*args)

    def jvp(self, args: Leaves, tangents: Leaves) -> tuple[Leaves, Leaves]:
        """Differentiate the pullback in JAX's own terms."""
        return _jvp_of(self.spelled_out, args, tangents)

    def transpose(self, cotangents: Leaves, args: Leaves, linear: Mask) -> Leaves:
        """Refuse: forward mode would be needed."""
        raise TypeError(
            "rx.scan: the pullback of a step with a jax.custom_vjp can't be transposed under "
            "jax.vmap; give the step a jax.custom_jvp, or use schedule=rx.Nested()."
        )

    def batched(self, axis: Any, args: Leaves, axes: Leaves) -> tuple[Leaves, Leaves]:
        """Map once more."""
        out = apply(Mapped(self, axis, tuple(axes)), *args)
        return out, [0] * len(out)

    def split(self, unknown: Mask) -> Split | None:
        """Stay whole."""
        return None

    def pruned(self, used: Mask) -> Pruned:
        """Stay whole."""
        return Pruned(self, (True,) * len(self.axes), (True,) * len(used))


# -- From map to map, on lists that hold None for what is not there -------------------------------
def _pulled_back(
    loop: Loop,
    linear: Marks,
    wanted: Parts,
    inputs: Parts,
    snapshots: Leaves,
    ct_carry: Leaves,
    ct_ys: Leaves,
) -> Parts:
    """Apply the adjoint of what the given cotangents depend on.

    Args:
        loop: The loop.
        linear: Marks of the leaves of which it is a linear function.
        wanted: Masks of the inputs whose cotangents are asked for; those not linear do not matter.
        inputs: Inputs of the loop; the linear ones do not matter.
        snapshots: For each leaf of the carry; of the linear ones, they do not matter.
        ct_carry: Cotangents of the last carry; None for zero.
        ct_ys: Cotangents of the ys; None for zero.

    Returns:
        Cotangents of the wanted inputs; None for zero, and for what is not wanted.
    """
    wanted = Parts(*map(both, wanted, linear.inputs))
    if not any(wanted.flat):
        return Parts(*([None] * size for size in loop.sizes))
    types = loop.types.carry
    loop, left = loop.pruned(
        both(linear.carry, _is_given(ct_carry)), both(linear.ys, _is_given(ct_ys))
    )
    is_value = (~linear & left).inputs
    is_linear = linear & left
    cts = [
        _zeros(t) if ct is None else ct
        for ct, t in zip(pick(ct_carry, is_linear.carry), pick(types, is_linear.carry), strict=True)
    ]
    adjoint = Adjoint(loop, linear.only(left), wanted.only(left.inputs))
    out = apply(
        adjoint,
        *Parts(*map(pick, inputs, is_value)).flat,
        *pick(snapshots, is_value.carry),
        *cts,
        *pick(ct_ys, left.ys),
    )
    return Parts(*map(spread, adjoint._outputs(out), left.inputs))


def _pushed(
    loop: Loop, linear: Marks, inputs: Parts, snapshots: Leaves, with_snapshots: bool
) -> tuple[Leaves, Leaves, Leaves]:
    """Apply the tangent map of what is linear, and give tangents of last carry, ys, snapshots."""
    loop, left = replace(loop, tangents=linear).linear()
    is_value = negated(linear.carry)
    kept = (with_snapshots,) * sum(linear.carry)
    tangent = Tangent(loop, kept)
    out = apply(
        tangent,
        *Parts(*map(pick, inputs, left.inputs)).flat,
        *pick(snapshots, both(is_value, left.carry)),
    )
    carry, ys, tangent_snapshots = divide(out, (len(kept), sum(linear.ys), sum(kept)))
    tangent_snapshots = tangent_snapshots or [None] * len(kept)
    return (
        spread(carry, linear.carry),
        spread(ys, linear.ys),
        spread(tangent_snapshots, linear.carry),
    )


@remembered
def spelled_out(map: Forward) -> Callable[..., Leaves]:
    """Give the loop in JAX's own terms: one function, so that JAX finds what it compiled of it."""
    return jax.jit(lambda *args: structural_scan(map.loop, map.loop.parts(args)))


def _structural_jvp(
    loop: Loop, values: Parts, joined: Parts, varies: Marks
) -> tuple[Leaves, Leaves]:
    """Differentiate the loop as it is in JAX's own terms."""
    marks = tuple(varies.inputs.flat)
    along = [leaf for old, new in zip(values, joined, strict=True) for leaf in new[len(old) :]]
    whole = spelled_out(Forward(loop, loop.none.carry))

    def run(*some: Any) -> Leaves:
        return whole(*put(values.flat, marks, some))

    out, tangents = jax.jvp(run, pick(values.flat, marks), along)
    varying = (*varies.carry, *varies.ys)
    return out, [t if v else None for t, v in zip(tangents, varying, strict=True)]


def _structural_transpose(loop: Loop, cotangents: Leaves, args: Leaves, linear: Mask) -> Leaves:
    """Transpose the loop as it is in JAX's own terms."""
    given = _is_given(cotangents)

    def run(*some: Any) -> Leaves:
        return pick(structural_scan(loop, loop.parts(put(args, linear, some))), given)

    types = [a.aval for a in pick(args, linear)]
    return spread(jax.linear_transpose(run, *types)(pick(cotangents, given)), linear)


def _jvp_of(fun: Callable[..., Leaves], args: Leaves, tangents: Leaves) -> tuple[Leaves, Leaves]:
    """Differentiate a function of a flat list along the tangents that are not None."""
    varies = _is_given(tangents)
    return jax.jvp(
        lambda *some: fun(*put(args, varies, some)), pick(args, varies), pick(tangents, varies)
    )


# -- Lists of leaves ------------------------------------------------------------------------------
def _is_given(leaves: Any) -> Mask:
    return tuple(leaf is not None for leaf in leaves)


def _where(mask: Any) -> list[int]:
    return [i for i, m in enumerate(mask) if m]


def _twice(mask: Mask, varies: Mask) -> Mask:
    """Mark leaves of a doubled part: the marked ones, and the tangents of the marked ones."""
    return (*mask, *pick(mask, varies))


def _zeros(type: Any) -> Any:
    """Make a zero cotangent of a value of the type."""
    return _jax.zeros(_jax.cotangent_type(type))


def _or_zero(value: Any, tangent: Any) -> Any:
    """Write out a tangent that is zero, of a value that is there."""
    return _jax.zero_tangent(value) if tangent is None and value is not None else tangent


def _with_tangents(leaves: Any, tangents: Any, varies: Mask) -> Leaves:
    """Put the tangents of the varying leaves behind a part's leaves."""
    return [*leaves, *map(_or_zero, pick(leaves, varies), pick(tangents, varies))]


def _batched(
    loop: Loop, axis: Any, inputs: Parts, axes: Parts, carry: Mask | None = None
) -> tuple[Loop, Marks, Leaves]:
    """Map a loop, and bring the axes of its inputs to their places."""
    mapped = Parts(*map(_is_given, axes))
    if carry is not None:
        mapped = mapped._replace(carry=either(mapped.carry, carry))
    loop, marks = loop.batched(axis, mapped, (False,) * len(loop.y_types))
    moved = [
        leaf
        for part, where, mask, to in zip(inputs, axes, marks.inputs, (0, 0, 1), strict=True)
        for leaf in _moved(axis, part, where, mask, to)
    ]
    return loop, marks, moved


def _moved(axis: Any, leaves: Leaves, axes: Leaves, mapped: Sequence[bool], to: int) -> Leaves:
    """Bring the mapped axis of the mapped leaves to its place."""
    return [
        _jax.move_axis(leaf, where, to, axis) if m else leaf
        for leaf, where, m in zip(leaves, axes, mapped, strict=True)
    ]
