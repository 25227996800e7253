r"""A scan whose gradient recomputes instead of storing: the contract of ``jax.lax.scan``.

The loop is always the same; what differs is what its gradient keeps, which a schedule decides (see
:mod:`rematax._schedules`). Two engines carry the schedules out:

- the *structural* schedules are spelled out in JAX's own terms, as (nested) ``jax.lax.scan``
  with :func:`jax.checkpoint` around the step or the block (:mod:`rematax._structural`);
- the *binomial* schedule is a table, and its gradient the table-driven reverse sweep of
  :mod:`rematax._sweeps`, whose transformations are in :mod:`rematax._maps`.

``jax.lax.scan`` itself traces the step, so that names, errors and types are its own. Without a
derivative the loop is run as ``jax.lax.scan`` would run it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax

from ._jax import (
    UNREPEATABLE,
    Captured,
    Leaves,
    apply,
    as_array,
    captured,
    divide,
    is_ref,
    is_ref_type,
    pick,
    rematerialises_late,
)
from ._loop import Loop, put
from ._maps import Forward, spelled_out
from ._schedules import Binomial, Nested, Schedule, StoreAll
from ._tracing import is_array, is_number

Carry = TypeVar("Carry")
X = TypeVar("X")
Y = TypeVar("Y")
PyTree = Any


def scan(
    f: Callable[[Carry, X], tuple[Carry, Y]],
    init: Carry,
    xs: X | None = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    schedule: Schedule | None = None,
) -> tuple[Carry, Y]:
    r"""Run ``carry, y = f(carry, x)`` over the leading axis of ``xs``, as ``jax.lax.scan`` does.

    The results are those of ``jax.lax.scan``, and so are all derivatives, to rounding; only the
    memory and the work of reverse mode are different. With ``n`` steps, the gradient runs ``f``
    ``schedule.evaluations(n)`` times and keeps ``schedule.stored(n)`` states and tapes, beside
    what any gradient needs: ``xs``, ``ys``, and the gradients asked for. A state is what of the
    carry a derivative needs: sums, buffers that are only written to, and what ``f`` passes on
    unchanged are no part of it. Replayed steps repeat their effects (prints, callbacks).

    Every transformation of JAX applies, in any order: :func:`jax.grad`, :func:`jax.jvp`,
    ``jax.jacfwd``, :func:`jax.linearize`, ``jax.hessian``, :func:`jax.vmap`,
    :func:`jax.jit`, :func:`jax.checkpoint`, ``jax.shard_map``. Forward mode keeps nothing and runs
    each step once. Derivatives of derivatives keep to the schedule too: a Hessian-vector product
    by forward over reverse, ``jax.jvp(jax.grad(loss), ...)``, runs the step as often as the
    gradient and holds twice the states; reverse over forward and, with ``Binomial``, reverse over
    reverse hold a few times as many. Reverse over reverse with ``EveryStep`` or ``Nested`` tapes
    what the first reverse mode computed again, and so holds what a schedule of one level less
    would. Second derivatives of a step with a :func:`jax.custom_vjp` are those of ``Nested`` where
    the schedule is ``Binomial`` (JAX 0.8 fails at some of them, where it has to transpose scans).

    Under :func:`jax.vmap` the step is mapped, not the loop: weights that a batch shares stay one
    array, and their cotangents are summed within each step. Outside :func:`jax.jit` compiled
    programs are found again for the same ``f``; a function made anew each time compiles each time.

    Args:
        f: The step, a function of ``(carry, x)`` that returns ``(carry, y)``. Carry, x and y are
            pytrees of arrays; the carry keeps its structure, shapes and dtypes. ``f`` is traced
            once, or twice where ``init`` holds Python scalars that have to be promoted. It may
            close over arrays, differentiated ones included, and over mutable arrays; if it writes
            to those, see below.
        init: The first carry, of any unit and dtype. Leaves of integer, boolean or key dtype are
            carried but have no derivative.
        xs: Pytree of arrays with a common leading axis of length ``n``; ``None`` for no input.
        length: Number of steps ``n``, static, at least 0. Default: the leading axis of ``xs``.
        reverse: Whether to run from the last entry of ``xs`` to the first, filling ``ys`` likewise.
        unroll: Steps per iteration of the compiled loop, as in ``jax.lax.scan``. With
            :class:`rematax.Binomial` it applies to the forward sweep, with
            :class:`rematax.Nested` to the innermost loop.
        schedule: What the gradient keeps: :class:`rematax.StoreAll`, :class:`rematax.EveryStep`,
            :class:`rematax.Nested` or :class:`rematax.Binomial`. Default: a rule on the number of
            steps and the bytes of state, tape, x and y. Where recomputing would not halve the bytes
            (few steps, a narrow tape), and where steps must not be repeated, everything is stored.
            Else it is ``rematax.Binomial()``, whose memory grows like :math:`\sqrt{2n}` states and
            which runs no step more than three times; or ``rematax.Nested()`` where that holds less,
            and for states under 1 kB, unless it holds twice as much.

    Returns:
        ``(carry, ys)``: the last carry, and the ys stacked along a new leading axis.

    Raises:
        TypeError: If ``schedule`` is not a schedule, ``f`` does not return a pair, the carry
            changes its structure, shapes or dtypes, ``length`` is no static integer, ``xs`` holds
            numbers in the place of arrays, or ``init`` or ``xs`` a mutable array.
        ValueError: If ``length`` is missing, negative, or contradicts ``xs``, if the leaves of
            ``xs`` differ in length, have no leading axis, or are sharded along it by an explicit
            mesh, or if a ``Nested`` schedule with given radices does not cover ``n``.
        NotImplementedError: If a derivative is taken that cannot be: with a schedule given that
            runs steps again, of a step that writes to mutable arrays, or of a number of steps that
            is a symbol of ``jax.export``; with ``Binomial``, of a step with ordered effects, which
            ``EveryStep`` and ``Nested`` repeat. Without a schedule, those store everything.

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
    _refuse_refs("init", init)
    n = steps_of(xs, length)
    eager = jax.config.jax_disable_jit  # type: ignore[attr-defined]
    length = None if _is_symbol(length) else length  # which jax.lax.scan reads off xs only
    if n == 0 or eager or (n is None and schedule is None) or isinstance(schedule, StoreAll):
        # Nothing to schedule; or an error that jax.lax.scan words best; or a person debugging, who
        # wants to see concrete values.
        return lax.scan(f, init, xs, length, reverse, unroll)
    call = captured(f, init, xs, length if n is None else n, reverse, unroll)
    if n is None:
        return call.finish(lambda *parts: call.plain(*_guarded(_UNKNOWN_LENGTH, *parts)))
    if isinstance(schedule, Nested):
        schedule.blocks(n)  # or an error, derivative or not
    return call.finish(runner(call, schedule))


def runner(call: Captured, schedule: Schedule | None) -> Callable[..., list[Any]]:
    """Give what runs in the place of the scan that was traced: a function of its flat inputs."""
    if schedule is None and call.effects & UNREPEATABLE:
        return call.plain  # whose derivative stores everything
    once = call.effects & (UNREPEATABLE if isinstance(schedule, Binomial) else _REPEATED_IN_ERROR)
    if once:
        refusal = _UNREPEATABLE_STEP.format(*_UNREPEATABLE_WORDS[min(once)])
        return lambda *parts: call.plain(*_guarded(refusal, *parts))
    loop = Loop.of(call, schedule)
    run = Forward(loop, loop.none.carry)
    if schedule is not None and loop.is_structural and rematerialises_late():
        whole = spelled_out(run)
        return lambda *parts: whole(*(leaf for part in parts for leaf in part))
    return lambda *parts: apply(run, *(as_array(leaf) for part in parts for leaf in part))


# jax.checkpoint, too, repeats ordered callbacks, in some order.
_REPEATED_IN_ERROR = UNREPEATABLE - {"ordered"}
_UNREPEATABLE_WORDS = {
    "lends": ("hands a mutable array to a function that may write to it", "carry the array"),
    "ordered": ("has ordered effects", "print with ordered=False"),
    "writes": ("writes to a mutable array", "carry the array instead of mutating it"),
}
_UNREPEATABLE_STEP = (
    "rx.scan: this derivative re-runs steps, but the step {}, which must happen once and in order; "
    "{}, or use schedule=rx.StoreAll()."
)
_UNKNOWN_LENGTH = (
    "rx.scan: the number of steps is a symbol, and a schedule needs to know it for a derivative; "
    "export for a fixed length, or use schedule=rx.StoreAll()."
)


def _guarded(refusal: str, consts: Leaves, carry: Leaves, xs: Leaves) -> list[Leaves]:
    """Refuse derivatives of a loop by what it takes."""

    @jax.custom_jvp
    def same(arrays: Leaves) -> Leaves:
        return arrays

    @functools.partial(same.defjvp, symbolic_zeros=True)
    def refuse(primals: Any, tangents: Any) -> Any:
        del primals, tangents
        raise NotImplementedError(refusal)

    leaves = [*consts, *carry, *xs]
    arrays = [is_array(a) and not is_ref(a) for a in leaves]
    leaves = put(leaves, arrays, same(list(map(as_array, pick(leaves, arrays)))))
    return divide(leaves, (len(consts), len(carry), len(xs)))


def _checked(schedule: Any) -> Schedule | None:
    if schedule is None:
        return None
    if isinstance(schedule, Schedule):
        return schedule
    hint = f"; write rx.{schedule.__name__}()" if isinstance(schedule, type) else ""
    raise TypeError(
        "rx.scan: schedule must be rx.StoreAll(), rx.EveryStep(), rx.Nested(...) or "
        f"rx.Binomial(...), not {schedule!r}{hint}."
    )


def steps_of(xs: PyTree, length: Any, caller: str = "rx.scan") -> int | None:
    """Find the number of steps; ``None`` where it has no value.

    That is where it is traced, which ``jax.lax.scan`` refuses, or a symbol, which it takes of xs.
    """
    if isinstance(xs, int | np.integer) and not isinstance(xs, bool):
        raise TypeError(f"{caller}: xs must be an array, not {xs}; did you mean length={xs}?")
    _refuse_lists(xs, caller)
    _refuse_refs("xs", xs, caller)
    lengths: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(xs):
        name = "xs" + jax.tree_util.keystr(path)
        texts = getattr(getattr(leaf, "dtype", None), "kind", None) in ("U", "S")
        if texts or not (is_array(leaf) or is_number(leaf)):
            raise TypeError(f"{caller}: {name} must be an array, not {leaf!r:.40}.")
        if not jnp.shape(leaf):
            raise ValueError(f"{caller}: {name} has no leading axis to scan over.")
        if sharded := _leading_mesh_axes(leaf):
            raise ValueError(
                f"{caller}: {name} is sharded along its leading axis, by mesh axis {sharded!r}, "
                "but a loop takes its entries one after another; reshard it, by jax.reshard."
            )
        lengths[name] = jnp.shape(leaf)[0]
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {m}" for name, m in lengths.items())
        raise ValueError(f"{caller}: the leading axes of xs must have one length, but {listed}.")
    if length is None:
        if not lengths:
            raise ValueError(f"{caller}: give length, as there are no xs to take it from.")
        n = next(iter(lengths.values()))
        return None if _is_symbol(n) else n
    if isinstance(length, jax.core.Tracer):
        return None
    if _is_symbol(length):
        if set(lengths.values()) == {length}:
            return None
        raise TypeError(
            f"{caller}: length is the symbol {length}, which can only be the length of xs; leave "
            "it out, and pass xs of that length, such as jnp.arange."
        )
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


def _refuse_lists(xs: PyTree, caller: str) -> None:
    """Refuse lists of numbers, each of which would be a leaf."""

    def is_list(node: Any) -> bool:
        return (
            type(node) in (list, tuple)
            and bool(node)
            and all(
                is_number(item) or isinstance(item, np.generic) or is_list(item) for item in node
            )
        )

    for path, node in jax.tree_util.tree_leaves_with_path(xs, is_leaf=is_list):
        if is_list(node):
            name = "xs" + jax.tree_util.keystr(path)
            raise TypeError(
                f"{caller}: {name} is a {type(node).__name__} of numbers, not an array; pass "
                f"jnp.asarray({name})."
            )


def _refuse_refs(name: str, tree: PyTree, caller: str = "rx.scan") -> None:
    """Refuse mutable arrays among what the loop is given."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if is_ref_type(_type_of(leaf)):
            raise TypeError(
                f"{caller}: {name}{jax.tree_util.keystr(path)} is a mutable array, which can be "
                "neither carried nor scanned over; let f close over it instead."
            )


def _leading_mesh_axes(leaf: Any) -> Any:
    """Give the axes of an explicit mesh along which a leaf's leading axis is sharded, if any."""
    spec = getattr(getattr(_type_of(leaf), "sharding", None), "spec", ())
    spec = getattr(spec, "partitions", spec)  # what newer JAX calls them
    return spec[0] if spec else None


def _type_of(leaf: Any) -> Any:
    """Give the type that JAX sees, None if it sees none."""
    try:
        return jax.typeof(leaf) if is_array(leaf) else None
    except TypeError:
        return None


def _is_symbol(size: Any) -> bool:
    """Tell whether a size is a symbol, as in what is exported for any size."""
    return bool(export.is_symbolic_dim(size))
