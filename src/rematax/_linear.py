r"""A linear map that brings its own transpose: all that touches JAX's extension points.

Reverse mode in JAX is "linearize, then transpose": the tangent of a function is traced as a linear
program, and that program is turned around. A loop which keeps few states cannot be turned around
that way, but its transpose is known: it is the checkpointed reverse sweep. So the tangent is
handed to JAX as one equation, :func:`linear_call`, that says how to evaluate the linear map and
how to evaluate its transpose. Forward mode runs the one, reverse mode the other, and neither is
traced through the other's loops. The names for this in the literature are *linear call* and
*custom transposition*; it is how JAX treats linear solves [Frostig2021]_.

What a primitive has to answer for, and how it is answered here:

- *evaluate, lower*: run ``forward``;
- *transpose*: run ``transpose`` (which may itself be a linear call whose transpose is ``forward``);
- *jvp*: the map itself on the tangent of the operand; where the residuals vary as well,
  the derivative of ``forward``, which its author has made differentiable;
- *batch*: the linear call of the two functions under :func:`jax.vmap`.

JAX's own ``jax.custom_derivatives.linear_call`` has no rule for differentiation with respect to
the residuals, which is what Hessians need.

The other extension points used are :func:`as_array`, which gets NumPy arrays under ``jax.vmap``
into shape for ``jax.custom_jvp``, :func:`closed`, the program of a function with its closed-over
values as explicit arguments (JAX's public closure conversion hoists only some of them), the
reading of a program in :func:`dependent`, and the comparison of abstract values in
:func:`same_type`.

Checked on JAX 0.8.2, 0.10.2 and 0.12.0.1, with ``jax_remat3`` off and (where it exists) on.

References:
    .. [Frostig2021] R. Frostig, M. J. Johnson, D. Maclaurin, A. Paszke and A. Radul (2021),
       "Decomposing reverse-mode automatic differentiation", arXiv:2105.09469.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

PyTree = Any

NO_COTANGENT = object()
"""What a ``transpose`` returns for an operand that receives no cotangent."""

_PLAIN = (bool, int, float, complex, np.generic, np.ndarray)  # numbers that are not JAX's

_linear_p = Primitive("rematax_linear")
_linear_p.multiple_results = True


def linear_call(
    forward: Callable[[PyTree, PyTree], PyTree],
    transpose: Callable[[PyTree, PyTree], PyTree],
    residuals: PyTree,
    operand: PyTree,
    like: PyTree | None = None,
) -> PyTree:
    r"""Evaluate a linear map, and tell JAX its transpose.

    Computes ``forward(residuals, operand)``, linear in ``operand``. In reverse mode the cotangent
    of ``operand`` is ``transpose(residuals, cotangent)``; JAX itself transposes neither function.

    Args:
        forward: Function of ``(residuals, operand)``, linear in the second, differentiable in the
            first as often as derivatives of this call are taken.
        transpose: Function of ``(residuals, cotangent)``, where ``cotangent`` has the structure of
            the result with ``None`` for every leaf whose cotangent is zero. It returns the
            structure of ``operand``, with :data:`NO_COTANGENT` for leaves that receive none.
        residuals: Any pytree of arrays.
        operand: Pytree of arrays of inexact dtypes.
        like: Arrays with the structure, shapes, dtypes and shardings of the result. Default: found
            by tracing ``forward`` once more.

    Returns:
        ``forward(residuals, operand)``.
    """
    residual_leaves, residual_tree = jax.tree.flatten(residuals)
    operand_leaves, operand_tree = jax.tree.flatten(operand)
    split = len(residual_leaves)
    if like is None:
        program, like = jax.make_jaxpr(forward, return_shape=True)(residuals, operand)
        types = program.out_avals
    else:
        types = [jax.typeof(leaf) for leaf in jax.tree.leaves(like)]
    out_tree = jax.tree.structure(like)

    def flat_forward(*leaves):
        out = forward(
            jax.tree.unflatten(residual_tree, leaves[:split]),
            jax.tree.unflatten(operand_tree, leaves[split:]),
        )
        return jax.tree.leaves(out)

    def flat_transpose(leaves, cotangents):
        out = transpose(
            jax.tree.unflatten(residual_tree, leaves), jax.tree.unflatten(out_tree, cotangents)
        )
        return [None if ct is NO_COTANGENT else ct for ct in jax.tree.leaves(out)]

    out = _bind(flat_forward, flat_transpose, residual_leaves, operand_leaves, types)
    return jax.tree.unflatten(out_tree, out)


def _bind(forward, transpose, residuals, operand, types):
    return _linear_p.bind(
        *residuals,
        *operand,
        forward=forward,
        transpose=transpose,
        split=len(residuals),
        types=tuple(aval.update(weak_type=False) for aval in types),
    )


def _evaluate(*args, forward, **_):
    return forward(*args)


def _abstract(*args, types, **_):
    return list(types)


def _transpose(cotangents, *args, transpose, split, **_):
    residuals, operand = list(args[:split]), args[split:]
    given = [None if type(ct) is ad.Zero else ct for ct in cotangents]
    if all(ct is None for ct in given):
        return [None] * len(args)
    out = transpose(residuals, given)
    wanted = map(ad.is_undefined_primal, operand)
    return [None] * split + [ct if want else None for ct, want in zip(out, wanted, strict=True)]


def _jvp(primals, tangents, *, forward, transpose, split, types):
    varying = [type(t) is not ad.Zero for t in tangents]
    if not any(varying[:split]):
        out = _bind(forward, transpose, primals[:split], primals[split:], types)
        operand = [ad.instantiate_zeros(t) for t in tangents[split:]]
        return out, _bind(forward, transpose, primals[:split], operand, types)

    # With the residuals varying the map is as nonlinear as what `forward` does with them. Only
    # what does vary is shown to `forward`, so that it can leave the rest alone.
    def along(*some):
        rest = iter(some)
        return forward(*(next(rest) if v else p for p, v in zip(primals, varying, strict=True)))

    return jax.jvp(
        along,
        [p for p, v in zip(primals, varying, strict=True) if v],
        [t for t, v in zip(tangents, varying, strict=True) if v],
    )


def _batch(axis, args, dims, *, forward, transpose, split, types):
    unnamed = type(axis.name) is object  # how jax.vmap says so
    if unnamed and all(d is None for d in dims):
        out = _bind(forward, transpose, args[:split], args[split:], types)
        return out, [None] * len(out)
    # Over a named axis, collectives in the step may well depend on it where no operand does.
    residuals, residual_dims = args[:split], list(dims[:split])
    operand = [
        batching.bdim_at_front(x, d, axis.size, axis.explicit_mesh_axis)
        for x, d in zip(args[split:], dims[split:], strict=True)
    ]

    def over_axis(fun, in_axes):
        return jax.vmap(
            fun, in_axes, axis_name=axis.name, axis_size=axis.size, spmd_axis_name=axis.spmd_name
        )

    batched_forward = over_axis(forward, (*residual_dims, *[0] * len(operand)))
    types = jax.make_jaxpr(batched_forward)(*residuals, *operand).out_avals
    batched_transpose = over_axis(transpose, (residual_dims, 0))
    out = _bind(batched_forward, batched_transpose, residuals, operand, types)
    return out, [0] * len(out)


# Outside jit, compile the map as one program and not loop by loop.
_linear_p.def_impl(lambda *args, forward, **_: jax.jit(forward)(*args))
_linear_p.def_abstract_eval(_abstract)
mlir.register_lowering(_linear_p, mlir.lower_fun(_evaluate, multiple_results=True))
ad.primitive_transposes[_linear_p] = _transpose
ad.primitive_jvps[_linear_p] = _jvp
batching.fancy_primitive_batchers[_linear_p] = _batch


def as_array(x: Any) -> Any:
    """Make an array of a Python scalar; and of a NumPy array that :func:`jax.vmap` hides.

    ``jax.custom_jvp`` hands on what is batched as it is, and newer JAX (seen in 0.10 and 0.12)
    refuses a NumPy array there. An operation on it, here a copy, gets it into the program.
    """
    if isinstance(x, _PLAIN):
        return jnp.asarray(x)
    inner = x
    while hasattr(inner, "batch_dim"):
        inner = inner.val
    return jnp.copy(x) if isinstance(inner, _PLAIN) else x


class Closed(NamedTuple):
    """A traced function whose closed-over values are explicit.

    Attributes:
        call: ``call(consts, leaves)`` runs the program on the leaves of the arguments and returns
            the leaves of the result.
        consts: The values closed over, tracers of any transformation among them.
        types: Abstract values of the leaves of the result.
        out: The result, as a pytree of :class:`jax.ShapeDtypeStruct`.
        unrepeatable: Names of the effects that must happen once and in order.
    """

    call: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    consts: list[Any]
    types: list[Any]
    out: PyTree
    unrepeatable: tuple[str, ...]


def closed(fun: Callable[..., PyTree], *args: PyTree) -> Closed:
    """Trace a function once, and make what it closes over an explicit argument.

    Args:
        fun: Function of ``args``; may close over arrays and tracers of any transformation.
        *args: Pytrees of arrays.

    Returns:
        The traced function.
    """
    program, out = jax.make_jaxpr(fun, return_shape=True)(*args)
    jaxpr = program.jaxpr

    def call(consts, leaves):
        return jaxpr_as_fun(ClosedJaxpr(jaxpr, list(consts)))(*leaves)

    # JAX has no public names for these kinds of effects: ordered ones, and those on mutable arrays.
    kinds = [[kind.__name__ for kind in type(effect).__mro__] for effect in program.effects]
    unrepeatable = {
        names[0] for names in kinds if names[0].startswith("Ordered") or "RefEffect" in names
    }
    types = list(program.out_avals)
    return Closed(call, list(program.consts), types, out, tuple(sorted(unrepeatable)))


def dependent(fun: Callable[..., PyTree], *args: PyTree) -> list[bool]:
    """Find which leaves of a result depend on the arguments at all.

    Args:
        fun: Function of ``args``.
        *args: Pytrees of arrays.

    Returns:
        For each leaf of the result, False if the traced program computes it from nothing but
        constants, as JAX does with a tangent that is zero.
    """
    jaxpr = jax.make_jaxpr(fun)(*args).jaxpr
    reached = set(jaxpr.invars)
    for eqn in jaxpr.eqns:
        if not reached.isdisjoint(v for v in eqn.invars if not isinstance(v, Literal)):
            reached.update(eqn.outvars)
    return [not isinstance(v, Literal) and v in reached for v in jaxpr.outvars]


def same_type(a: Any, b: Any) -> bool:
    """Compare two abstract values: shape, dtype, sharding and varying axes, but not weak types."""
    return a.update(weak_type=False) == b.update(weak_type=False)
