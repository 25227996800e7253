r"""What JAX is told about the checkpointed loop: its derivatives of every order.

Write the loop as :math:`F`, its inputs (constants, first carry, xs) as :math:`x`. Three linear
maps are all that is needed, and each is a :func:`rematax._linear.linear_call`:

- the *tangent map* :math:`J(x)\,\dot x`, by a sweep of the doubled loop, which carries tangents
  along with values; it gives the tangents of the snapshots as well;
- the *adjoint map* :math:`J(x)^T \bar y`, by the table-driven reverse sweep. It is the transpose
  of the tangent map, and the tangent map is its transpose;
- the *curvature map*, the derivative of the adjoint map, :math:`(\dot x, \dot{\bar y}) \mapsto
  (\bar y \cdot F''(x))\,\dot x + J(x)^T \dot{\bar y}`: by a reverse sweep of the doubled loop. A
  Hessian being symmetric, its transpose is made of the same parts: :math:`w \mapsto
  ((\bar y \cdot F''(x))\,w,\; J(x)\,w)`.

Since the doubled loop is again a loop, the maps are differentiable as often as one likes, and each
derivative of any order, in forward or reverse mode, runs with the same few snapshots: forward over
reverse, and reverse over reverse too. (The *second-order adjoint* of the literature is the
curvature map.)

The snapshots depend on the inputs, but derivatives with respect to :math:`x` above are total:
whoever transposes these maps gets nothing for the snapshots.

References:
    A. Griewank and A. Walther (2008), "Evaluating Derivatives", 2nd edition, SIAM.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from ._linear import NO_COTANGENT, as_array, linear_call
from ._loop import Inputs, Leaves, Loop, Outputs, doubled, inexact, pick, put, varying
from ._reverse import forward_sweep, plain_scan, reverse_sweep


def checkpointed_scan(loop: Loop, inputs: Inputs, unrepeatable: tuple[str, ...] = ()) -> Outputs:
    """Run the loop; its derivatives keep snapshots only.

    Args:
        loop: The loop.
        inputs: Leaves of its inputs.
        unrepeatable: Effects of the step that a replay would get wrong.

    Returns:
        The outputs. Without differentiation this is ``jax.lax.scan`` and nothing else.

    Raises:
        NotImplementedError: When differentiated, if there are unrepeatable effects.
    """

    @jax.custom_jvp
    def run(inputs):
        return plain_scan(loop, inputs)

    def rule(primals, tangents):
        if unrepeatable:
            raise NotImplementedError(
                "rx.scan: the derivative with rx.Binomial re-runs steps, but the step has effects "
                f"that must happen once and in order ({', '.join(unrepeatable)}); print with "
                "ordered=False, carry the array instead of mutating it, or use rx.StoreAll()."
            )
        (inputs,), (tangents,) = primals, tangents
        inputs = jax.tree.map(as_array, inputs)  # JAX may hand over Python scalars
        outputs, snapshots = _swept(loop, inputs)
        return outputs, _pushed(loop, inputs, tangents, outputs, snapshots)[0]

    run.defjvp(rule, symbolic_zeros=True)
    return run(jax.tree.map(as_array, inputs))


def _swept(loop: Loop, inputs: Inputs) -> tuple[Outputs, Leaves]:
    """Run the forward sweep, as a function that can be differentiated again."""

    @jax.custom_jvp
    def run(inputs):
        return forward_sweep(loop, inputs)

    def rule(primals, tangents):
        (inputs,), (tangents,) = primals, tangents
        inputs = jax.tree.map(as_array, inputs)  # JAX may hand over Python scalars
        outputs, snapshots = _swept(loop, inputs)
        return (outputs, snapshots), _pushed(loop, inputs, tangents, outputs, snapshots)

    run.defjvp(rule, symbolic_zeros=True)
    return run(inputs)


def _reversed(
    loop: Loop, wanted: Inputs, inputs: Inputs, snapshots: Leaves, cotangents: Outputs
) -> Inputs:
    """Run the reverse sweep, as a function that can be differentiated again."""

    @jax.custom_jvp
    def run(inputs, snapshots, cotangents):
        return reverse_sweep(loop, wanted, inputs, snapshots, cotangents)

    def rule(primals, tangents):
        primals = inputs, snapshots, cotangents = jax.tree.map(as_array, primals)
        directions, along = _perturbed(loop, inputs, tangents[0])
        d_snapshots = _written(
            *(_where(part, directions.carry) for part in (tangents[1], snapshots))
        )
        d_cotangents = _written(tangents[2], cotangents)
        out = _reversed(loop, wanted, inputs, snapshots, cotangents)
        return out, _curvature_map(
            loop, wanted, directions, primals, (along, d_snapshots, d_cotangents)
        )

    run.defjvp(rule, symbolic_zeros=True)
    return run(*jax.tree.map(as_array, (inputs, snapshots, cotangents)))


def _tangent_map(
    loop: Loop,
    directions: Inputs,
    inputs: Inputs,
    snapshots: Leaves,
    tangents: Inputs,
    like: tuple[Outputs, Leaves] | None = None,
) -> tuple[Outputs, Leaves]:
    """Push tangents of the inputs forward, to the outputs and to the snapshots."""

    def forward(residuals, tangents):
        inputs, _ = residuals
        outputs, snapshots = _swept(doubled(loop, directions), _joined(inputs, tangents))
        values, nothing = len(inputs.carry), [None] * len(inputs.carry)
        d_carry = put(nothing, directions.carry, outputs.carry[values:])
        d_snapshots = put(nothing, directions.carry, snapshots[values:])
        return Outputs(d_carry, outputs.ys[len(loop.outs) :]), d_snapshots

    def transpose(residuals, cotangents):
        return _adjoint_map(loop, directions, *residuals, cotangents[0])

    return linear_call(forward, transpose, (inputs, snapshots), tangents, like)


def _adjoint_map(
    loop: Loop, wanted: Inputs, inputs: Inputs, snapshots: Leaves, cotangents: Outputs
) -> Inputs:
    """Pull cotangents of the outputs back, to the wanted inputs."""
    like = Inputs(*map(pick, inputs, wanted))
    cotangents = cotangents._replace(carry=_where(cotangents.carry, wanted.carry))

    def forward(residuals, cotangents):
        return _reversed(loop, wanted, *residuals, cotangents)

    def transpose(residuals, tangents):
        tangents = _filled(tangents, residuals[0], wanted)
        d_outputs, _ = _tangent_map(loop, wanted, *residuals, tangents)
        return _where_given(d_outputs, cotangents)

    return linear_call(forward, transpose, (inputs, snapshots), cotangents, like)


def _curvature_map(
    loop: Loop,
    wanted: Inputs,
    directions: Inputs,
    residuals: tuple[Inputs, Leaves, Outputs],
    operand: tuple[Inputs, Leaves, Outputs],
) -> Inputs:
    """Push tangents of inputs, snapshots and cotangents through the adjoint map."""
    like = Inputs(*map(pick, residuals[0], wanted))
    _, snapshot_tangents, cotangent_tangents = operand

    def forward(residuals, operand):
        return _curved(loop, wanted, directions, residuals, operand)

    def transpose(residuals, tangents):
        inputs, snapshots, _ = residuals
        tangents = _filled(tangents, inputs, wanted)
        d_outputs, d_snapshots = _tangent_map(loop, wanted, inputs, snapshots, tangents)
        zero = jax.tree.map(lambda _: None, d_outputs)
        return (
            _curved(loop, directions, wanted, residuals, (tangents, d_snapshots, zero)),
            jax.tree.map(lambda _: NO_COTANGENT, snapshot_tangents),
            _where_given(d_outputs, cotangent_tangents),
        )

    return linear_call(forward, transpose, residuals, operand, like)


def _curved(loop, wanted, directions, residuals, operand):
    r"""Evaluate the curvature map: one reverse sweep of the doubled loop.

    Of the doubled loop :math:`(x, \dot x) \mapsto (F(x), F'(x) \dot x)`, the pullback of
    the cotangents (d_cotangents, cotangents) with respect to :math:`x` is what is asked for.
    """
    inputs, snapshots, cotangents = residuals
    tangents, d_snapshots, d_cotangents = operand
    gradient = _adjoint_map(
        doubled(loop, directions),
        Inputs(
            wanted.consts + (False,) * len(tangents.consts),
            wanted.carry + tuple(pick(wanted.carry, directions.carry)),
            wanted.xs + (False,) * len(tangents.xs),
        ),
        _joined(inputs, tangents),
        [*snapshots, *pick(d_snapshots, directions.carry)],
        Outputs(
            [*d_cotangents.carry, *pick(cotangents.carry, directions.carry)],
            [*d_cotangents.ys, *cotangents.ys],
        ),
    )
    return gradient._replace(carry=gradient.carry[: sum(wanted.carry)])


def _pushed(loop, inputs, tangents, outputs, snapshots):
    """Evaluate the tangent map, on tangents and for tangents as JAX has them."""
    directions, along = _perturbed(loop, inputs, tangents)
    carry, kept = (_where(part, directions.carry) for part in (outputs.carry, snapshots))
    like = Outputs(carry, pick(outputs.ys, loop.outs)), kept
    (d_carry, d_ys), d_kept = _tangent_map(loop, directions, inputs, snapshots, along, like)
    d_ys = put([None] * len(outputs.ys), loop.outs, d_ys)

    def as_jax_has_them(tangents, primals):
        return [
            SymbolicZero(jax.typeof(x).to_tangent_aval()) if t is None else t
            for t, x in zip(tangents, primals, strict=True)
        ]

    d_outputs = Outputs(as_jax_has_them(d_carry, outputs.carry), as_jax_has_them(d_ys, outputs.ys))
    return d_outputs, as_jax_has_them(d_kept, snapshots)


def _perturbed(loop: Loop, inputs: Inputs, tangents: Inputs) -> tuple[Inputs, Inputs]:
    """Find what varies, and its tangents: zero where a leaf of the carry varies later only."""
    nonzero = Inputs(
        *(
            tuple(inexact(x) and not _is_zero(t) for x, t in zip(*parts, strict=True))
            for parts in zip(inputs, tangents, strict=True)
        )
    )
    directions = varying(loop, inputs, nonzero)
    along, at = (Inputs(*map(pick, part, directions)) for part in (tangents, inputs))
    return directions, _written(along, at)


def _joined(inputs: Inputs, tangents: Inputs) -> Inputs:
    """Give the inputs of the doubled loop."""
    return Inputs(*([*a, *b] for a, b in zip(inputs, tangents, strict=True)))


def _filled(tangents: Inputs, inputs: Inputs, chosen: Inputs) -> Inputs:
    """Write out the zeros (``None``) among tangents of the chosen inputs."""
    return _written(tangents, Inputs(*map(pick, inputs, chosen)))


def _written(tangents: Any, primals: Any) -> Any:
    """Write out the zeros among tangents, each of its primal's type."""

    def leaf(primal, tangent):
        return jnp.zeros_like(primal) if tangent is None or _is_zero(tangent) else tangent

    return jax.tree.map(leaf, primals, tangents)


def _where(leaves: Leaves, chosen: tuple[bool, ...]) -> Leaves:
    """Put ``None`` for the leaves that are not marked."""
    return [leaf if take else None for leaf, take in zip(leaves, chosen, strict=True)]


def _where_given(values: Outputs, given: Outputs) -> Outputs:
    """Leave out what belongs to cotangents that are ``None``."""
    return Outputs(
        *(
            [None if ct is None else v for v, ct in zip(part, cts, strict=True)]
            for part, cts in zip(values, given, strict=True)
        )
    )


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, SymbolicZero)
