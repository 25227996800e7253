r"""A scan whose gradient recomputes instead of storing: the contract of ``jax.lax.scan``.

The loop is always the same; what differs is what its gradient keeps, which a schedule decides (see
:mod:`rematax._schedules`). Two engines carry the schedules out:

- the *structural* schedules are spelled out in JAX's own terms, as (nested) ``jax.lax.scan``
  with :func:`jax.checkpoint` around the step or the block;
- the *binomial* schedule is a table, and its gradient the table-driven reverse sweep of
  :mod:`rematax._reverse`, which :mod:`rematax._rules` hands to JAX.

This module turns a user's step (any pytrees, any closure) into a step on flat lists of leaves,
once, and checks what there is to check. Its names for things are those of ``jax.lax.scan``.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from ._linear import closed, same_type
from ._loop import Inputs, Loop, inexact
from ._rules import checkpointed_scan
from ._schedules import Binomial, EveryStep, Nested, Schedule, StoreAll
from ._tracing import is_array, is_number

Carry = TypeVar("Carry")
PyTree = Any


def scan(
    f: Callable[[Carry, Any], tuple[Carry, Any]],
    init: Carry,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    schedule: Schedule | None = None,
) -> tuple[Carry, PyTree]:
    r"""Run ``carry, y = f(carry, x)`` over the leading axis of ``xs``, as ``jax.lax.scan`` does.

    The results are those of ``jax.lax.scan``, and so are all derivatives, to rounding; only the
    memory and the work of reverse mode are different. With ``n`` steps, the gradient runs ``f``
    ``schedule.evaluations(n)`` times and keeps ``schedule.stored(n)`` states and tapes, beside
    what any gradient needs: ``xs``, ``ys``, and the gradients asked for. Replayed steps repeat
    their effects (prints, callbacks).

    Every transformation of JAX applies, in any order: :func:`jax.grad`, :func:`jax.jvp`,
    ``jax.jacfwd``, :func:`jax.linearize`, ``jax.hessian``, :func:`jax.vmap`,
    :func:`jax.jit`, :func:`jax.checkpoint`, ``jax.shard_map``. Derivatives of derivatives keep
    to the schedule too: a Hessian-vector product by forward over reverse,
    ``jax.jvp(jax.grad(loss), ...)``, holds twice the states; reverse over forward and, with
    ``Binomial``, reverse over reverse hold a few times as many. Reverse over reverse with
    ``EveryStep`` or ``Nested`` tapes what the first reverse mode computed again, and so holds what
    a schedule of one level less would. A step with a :func:`jax.custom_vjp` has no second
    derivatives with ``Binomial``, since those need its forward mode: JAX says so. Use ``Nested``
    there, or a :func:`jax.custom_jvp`.

    Args:
        f: The step, a function of ``(carry, x)`` that returns ``(carry, y)``. Carry, x and y are
            pytrees of arrays; the carry keeps its structure, shapes and dtypes. ``f`` is traced
            once, or twice where ``init`` holds Python scalars that have to be promoted. It may
            close over arrays, differentiated ones included. It must not write to mutable arrays.
        init: The first carry, of any unit and dtype. Leaves of integer, boolean or key dtype are
            carried but have no derivative.
        xs: Pytree of arrays with a common leading axis of length ``n``; ``None`` for no input.
        length: Number of steps ``n``, static, at least 0. Default: the leading axis of ``xs``.
        reverse: Whether to run from the last entry of ``xs`` to the first, filling ``ys`` likewise.
        unroll: Steps per iteration of the compiled loop, as in ``jax.lax.scan``. With
            :class:`rematax.Binomial` it applies to the forward sweep, with
            :class:`rematax.Nested` to the innermost loop.
        schedule: What the gradient keeps: :class:`rematax.StoreAll`, :class:`rematax.EveryStep`,
            :class:`rematax.Nested` or :class:`rematax.Binomial`. Default:
            ``rematax.Binomial()``, whose memory grows like :math:`\sqrt{2n}` states and which runs
            no step more than three times.

    Returns:
        ``(carry, ys)``: the last carry, and the ys stacked along a new leading axis.

    Raises:
        TypeError: If ``schedule`` is not a schedule, ``f`` does not return a pair, the carry
            changes its structure, shapes or dtypes, or ``length`` is no static integer.
        ValueError: If ``length`` is missing, negative, or contradicts ``xs``, if the leaves of
            ``xs`` differ in length or have no leading axis, or if a ``Nested`` schedule with given
            radices does not cover ``n``.

    References:
        A. Griewank and A. Walther (2000), "Algorithm 799: revolve", ACM Transactions on
        Mathematical Software 26(1):19-45.

    Example:
        A decay in 1000 steps, and the gradient of its end with respect to the rate: the same as by
        ``jax.lax.scan``, from 10 states instead of 1000 tapes.

        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rematax as rx
        >>> def end(rate, scan):
        ...     step = lambda x, _: (x - 0.01 * rate * x, None)
        ...     return scan(step, 1.0, length=1000)[0]
        >>> def ten(*args, **kwargs):
        ...     return rx.scan(*args, **kwargs, schedule=rx.Binomial(10))
        >>> gradient = jax.grad(end)(0.3, ten)
        >>> bool(jnp.allclose(gradient, jax.grad(end)(0.3, jax.lax.scan)))
        True
        >>> _, curvature = jax.jvp(lambda r: jax.grad(end)(r, ten), (0.3,), (1.0,))
        >>> bool(curvature > 0)
        True
    """
    schedule = _checked(schedule)
    if not callable(f):
        raise TypeError(f"rx.scan: f must be a function of (carry, x), not {f!r}.")
    n = steps_of(xs, length)
    eager = jax.config.jax_disable_jit  # type: ignore[attr-defined]
    if n is None or n == 0 or eager or isinstance(schedule, StoreAll):
        # Nothing to schedule; or an error that jax.lax.scan words best; or a person debugging, who
        # wants to see concrete values.
        return lax.scan(f, init, xs, length, reverse, unroll)
    if isinstance(schedule, EveryStep):
        rebuilt = jax.checkpoint(f, prevent_cse=False)

        @functools.wraps(f)  # so that errors name the arguments of `f`
        def every(carry, x):
            return rebuilt(carry, x)

        return lax.scan(every, init, xs, n, reverse, unroll)

    step, traced, carry, (carry_tree, y_tree), outs = flat_step(f, init, xs, n)
    leaves = [jnp.asarray(x) for x in jax.tree.leaves(xs)]
    if isinstance(schedule, Nested):
        radices = schedule.blocks(n)

        def bound(carry, x):
            return step(traced.consts, carry, x)

        carry, ys = _nested(bound, carry, leaves, n, radices, schedule.tapes, reverse, unroll)
    elif isinstance(schedule, Binomial):
        loop = Loop(step, n, reverse, unroll, outs, schedule.stops(n), schedule.slots(n))
        inputs = Inputs(traced.consts, carry, leaves)
        carry, ys = checkpointed_scan(loop, inputs, unrepeatable=traced.unrepeatable)
    else:
        raise TypeError(f"rx.scan: no engine for a schedule of type {type(schedule).__name__}.")
    return jax.tree.unflatten(carry_tree, carry), jax.tree.unflatten(y_tree, ys)


def _checked(schedule: Any) -> Schedule:
    if schedule is None:
        return Binomial()
    if isinstance(schedule, Schedule):
        return schedule
    hint = f"; write rx.{schedule.__name__}()" if isinstance(schedule, type) else ""
    raise TypeError(
        "rx.scan: schedule must be rx.StoreAll(), rx.EveryStep(), rx.Nested(...) or "
        f"rx.Binomial(...), not {schedule!r}{hint}."
    )


def steps_of(xs: PyTree, length: Any, caller: str = "rx.scan") -> int | None:
    """Find the number of steps; ``None`` where it is traced, which ``jax.lax.scan`` refuses."""
    lengths = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(xs):
        name = "xs" + jax.tree_util.keystr(path)
        texts = getattr(getattr(leaf, "dtype", None), "kind", None) in ("U", "S")
        if texts or not (is_array(leaf) or is_number(leaf)):
            raise TypeError(f"{caller}: {name} must be an array, not {leaf!r:.40}.")
        if not jnp.shape(leaf):
            raise ValueError(f"{caller}: {name} has no leading axis to scan over.")
        lengths[name] = jnp.shape(leaf)[0]
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {m}" for name, m in lengths.items())
        raise ValueError(f"{caller}: the leading axes of xs must have one length, but {listed}.")
    if length is None:
        if not lengths:
            raise ValueError(f"{caller}: give length, as there are no xs to take it from.")
        return next(iter(lengths.values()))
    if isinstance(length, jax.core.Tracer):
        return None
    try:
        n = operator.index(length)
    except TypeError:
        raise TypeError(f"{caller}: length must be an integer, not {length!r}.") from None
    if n < 0:
        raise ValueError(f"{caller}: length must not be negative, but is {n}.")
    for name, m in lengths.items():
        if m != n:
            raise ValueError(f"{caller}: length is {n}, but the leading axis of {name} has {m}.")
    return n


def flat_step(f, init, xs, n):
    """Trace the step, and restate it on flat lists of leaves.

    Returns:
        The step ``(consts, carry, x) -> (carry, y)``, the traced ``f``, the leaves of the first
        carry, the trees of carry and y, and the mask of inexact ys.
    """
    x = jax.tree.map(lambda a: lax.index_in_dim(jnp.asarray(a), 0, keepdims=False), xs)
    leaves, tree = jax.tree.flatten(init)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    size = len(leaves)

    def trace():
        traced = closed(f, jax.tree.unflatten(tree, leaves), x)
        trees = jax.tree.structure(traced.out).children()
        return traced, trees, len(trees) == 2 and trees[0].num_leaves == size

    def changes(leaf, out):
        return not same_type(jax.typeof(leaf), out)

    def promotes(leaf, out):
        return jax.typeof(leaf).weak_type and changes(leaf, out)

    traced, trees, pair = trace()
    if pair and any(map(promotes, leaves, traced.types)):
        # Python scalars take the dtype that the step gives them, as in jax.lax.scan.
        leaves = [
            lax.convert_element_type(leaf, jnp.result_type(leaf, out.dtype))
            if promotes(leaf, out)
            else leaf
            for leaf, out in zip(leaves, traced.types, strict=False)
        ]
        traced, trees, pair = trace()
    if not pair or trees[0] != tree or any(map(changes, leaves, traced.types)):
        # Whatever is wrong, jax.lax.scan says it well, and in terms of the arguments of `f`.
        jax.eval_shape(lambda: lax.scan(f, init, xs, n))

    def step(consts, carry, x):
        out = traced.call(consts, [*carry, *x])
        # A step that returns a Python scalar, such as a flag it sets, returns it as it is.
        out = [
            leaf if is_array(leaf) else jnp.asarray(leaf, None if kind.weak_type else kind.dtype)
            for leaf, kind in zip(out, traced.types, strict=True)
        ]
        return out[:size], out[size:]

    return step, traced, leaves, trees, tuple(map(inexact, traced.types[size:]))


def _nested(step, carry, xs, n, radices, tapes, reverse, unroll):
    """Run ``n`` steps in blocks; what does not fill a block is a shorter block of its own."""
    if len(radices) == 1:
        leaf = step if tapes else jax.checkpoint(step, prevent_cse=False)
        return lax.scan(leaf, carry, xs, n, reverse, unroll)

    def block(carry, xs, steps):
        carry, ys = _nested(step, carry, xs, steps, radices[1:], tapes, reverse, unroll)
        # The axis added is merged below. It keeps integer ys of a scan from leaving a checkpoint
        # untouched, which JAX 0.10 cannot transpose where jax_remat3 is on.
        return carry, [y[None] for y in ys]

    size = math.prod(radices[1:])
    full, rest = divmod(n, size)
    # The shorter block runs last, so that it lies at the end of xs, or at the start if reversed.
    start = rest if reverse else 0
    whole = [lax.reshape(x[start : start + full * size], (full, size, *x.shape[1:])) for x in xs]
    part = [x[:rest] if reverse else x[full * size :] for x in xs]
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
