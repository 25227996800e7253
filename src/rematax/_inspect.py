"""See what reverse mode keeps, and count what really runs.

*Residuals* are the values of the forward run that autodiff keeps for the backward run. JAX's public
:func:`jax.vjp` returns the pullback as a pytree, and its leaves are the residuals. Tracing it with
:func:`jax.make_jaxpr` tells their shapes and where each comes from, and computes nothing.

How often a function runs cannot be read off a program with loops and recomputation; here it is
counted, by a callback that runs whenever the function does.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from ._calls import call_of, check_function
from ._jaxprs import is_gradient, is_literal, origin_of
from ._policies import notes_on_names
from ._sizes import format_bytes, leaf_bytes
from ._tables import lines_html, table_html, table_text
from ._tracing import first_line, in_one_sentence, is_array, is_number, name_of

_HEAD = ("kind", "shape", "size", "from", "how many")
_OF_A_GRADIENT = (
    "This is the gradient's own program; for what the gradient keeps, pass the function before "
    "jax.grad."
)

Given = ParamSpec("Given")
Rest = ParamSpec("Rest")
Out = TypeVar("Out")
Instance = TypeVar("Instance")


@dataclass(frozen=True)
class Residual:
    """One value that reverse mode keeps.

    Attributes:
        shape: Shape; a value kept by a scan has the scan's length in front.
        dtype: Name of the dtype.
        bytes: Size in bytes.
        kind: ``"argument"`` (kept anyway, costs nothing extra), ``"constant"`` (an array that the
            function closes over) or ``"intermediate"``.
        name: The name given by :func:`jax.ad_checkpoint.checkpoint_name`, or the argument's.
        made_by: The primitive that computed an intermediate, such as ``"cos"``; ``"carry"`` for the
            carries that a loop stacks, and ``"snapshot"`` for those that :func:`rematax.scan` keeps
            by a table.
        length: Number of loop steps whose values are stacked in it, or of snapshots; 1 outside
            loops.
    """

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    kind: str
    name: str | None = None
    made_by: str | None = None
    length: int = 1

    @property
    def step_bytes(self) -> int:
        """Bytes that each loop step adds."""
        return self.bytes // max(self.length, 1)

    def _cells(self) -> tuple[str, str, str, str]:
        """Return kind, shape, size and origin as a person reads them."""
        what = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        size = format_bytes(self.bytes)
        if self.length > 1:
            size += f" = {self.length} × {format_bytes(self.step_bytes)}"
        named = f"'{self.name}'" if self.name and self.kind != "argument" else self.name
        origin = " ".join(filter(None, (self.made_by, named)))
        return self.kind, what, size, origin


class Residuals(Sequence[Residual]):
    """What reverse mode keeps of one function: a sequence of :class:`Residual`.

    Shown as a table in a terminal and in a notebook, equal rows together.

    Attributes:
        notes: What a reader of the table should know, in sentences that stand under it: that the
            function is a gradient itself, or that a policy asks for a name in vain.
    """

    def __init__(self, rows: Sequence[Residual], notes: Sequence[str] = ()) -> None:
        self._rows = tuple(rows)
        self.notes = tuple(notes)

    @overload
    def __getitem__(self, index: int) -> Residual: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Residual, ...]: ...
    def __getitem__(self, index: int | slice) -> Residual | tuple[Residual, ...]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def total_bytes(self) -> int:
        """Bytes of all residuals."""
        return sum(row.bytes for row in self)

    @property
    def extra_bytes(self) -> int:
        """Bytes of the residuals that are not arguments, which are there anyway."""
        return sum(row.bytes for row in self if row.kind != "argument")

    def _summary(self) -> str:
        count = f"{len(self)} residual{'' if len(self) == 1 else 's'}"
        beyond = f", {format_bytes(self.extra_bytes)} beyond the arguments"
        total = f"{count}, {format_bytes(self.total_bytes)}"
        return total + (beyond if self.extra_bytes != self.total_bytes else "")

    def _table(self) -> Iterator[tuple[str, ...]]:
        for row, times in Counter(self).items():
            yield (*row._cells(), f"× {times}" if times > 1 else "")

    def __repr__(self) -> str:
        table = [table_text(_HEAD, self._table())] if self else []
        return "\n".join((self._summary(), *table, *self.notes))

    def _repr_html_(self) -> str:
        table = table_html(self._summary(), _HEAD if self else (), self._table(), "residuals")
        return table + lines_html(self.notes)


def residuals(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Residuals:
    """List what reverse mode would keep of a function. Nothing is computed or compiled.

    Residuals are what autodiff asks for. What the compiler then allocates can be less, where it
    fuses, or more: see :func:`measure`.

    Under the table stands what a reader should know: that the function is a gradient itself, or
    that a policy of :func:`jax.checkpoint` asks for a name which no value has, or whose value is
    not used, or is computed again all the same. The names of a policy that a person wrote cannot be
    read.

    Args:
        fun: The function before differentiation: pass ``loss``, not ``jax.grad(loss)``.
        *args: Its arguments: pytrees of arrays, :class:`jax.ShapeDtypeStruct` or numbers. All are
            differentiated that can be. Whatever else is in them, such as the functions of a model,
            is static.
        **kwargs: Its keyword arguments, likewise.

    Returns:
        The residuals. The same value used twice counts once; numbers that are written into the
        program do not count.

    Raises:
        TypeError: ``fun`` is not callable or cannot be traced, or an argument is being traced.
        ValueError: ``fun`` cannot be differentiated in reverse mode.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import rematax as rx
        >>> x = jnp.ones(1000)
        >>> kept = rx.residuals(lambda x: jnp.sin(jnp.sin(x)).sum(), x)
        >>> [(row.made_by, row.bytes == x.nbytes) for row in kept]
        [('cos', True), ('cos', True)]
        >>> again = rx.residuals(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum()), x)
        >>> [row.kind for row in again], again.extra_bytes
        (['argument'], 0)
    """
    return list_residuals("rx.residuals", fun, args, kwargs)


class Counted(Generic[Given, Out]):
    """A function that counts how often it runs; made by :func:`counted`."""

    def __init__(self, fun: Callable[Given, Out]) -> None:
        self._fun = fun
        self._runs: list[None] = []
        functools.update_wrapper(self, fun)

    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> Out:
        """Run the function, and count that it ran."""
        leaves = jax.tree.leaves((args, kwargs))
        given = [leaf for leaf in leaves if is_array(leaf)] or list(filter(is_number, leaves))
        if not given:
            raise TypeError(
                f"rx.counted: {name_of(self._fun)} was called without an array: pass "
                "what it works on, or the compiler would move the count out of the loop."
            )
        out = self._fun(*args, **kwargs)
        jax.debug.callback(lambda *_: self._runs.append(None), *map(_probe, given))
        return out

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Counted[Given, Out]: ...
    @overload
    def __get__(
        self: Counted[Concatenate[Instance, Rest], Out], instance: Instance, owner: Any = None
    ) -> _Bound[Rest, Out]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind to an instance, so that methods can be counted."""
        return self if instance is None else _Bound(self, instance)

    def __repr__(self) -> str:
        return f"<{name_of(self._fun)}, counted: {self.calls} calls>"

    @property
    def calls(self) -> int:
        """How often the function ran since it was made or reset."""
        jax.effects_barrier()
        return len(self._runs)

    def reset(self) -> None:
        """Start to count from zero."""
        jax.effects_barrier()
        self._runs.clear()


class _Bound(Generic[Rest, Out]):
    """A method that is counted, bound to an instance; the count is that of all instances."""

    def __init__(self, method: Counted[..., Out], instance: Any) -> None:
        self._method = method
        self._instance = instance

    def __call__(self, *args: Rest.args, **kwargs: Rest.kwargs) -> Out:
        return self._method(self._instance, *args, **kwargs)

    def __repr__(self) -> str:
        return repr(self._method)

    @property
    def calls(self) -> int:
        """How often the method ran, for any instance."""
        return self._method.calls

    def reset(self) -> None:
        """Start to count from zero."""
        self._method.reset()


def counted(fun: Callable[Given, Out]) -> Counted[Given, Out]:
    """Return the function with a count of how often it really runs, recomputations included.

    The count is taken when the program runs, not when it is traced, so it is right inside
    :func:`jax.jit`, loops, gradients and checkpoints. Under :func:`jax.vmap` each example counts.
    It costs a call to the host each time: for counting, not for timing.

    Dead code is not run, and so not counted: count with a nonlinear loss and its value.

    Args:
        fun: A function with at least one array among its arguments, such as the step of a scan.

    Returns:
        The function, with ``calls`` (runs so far; waits for the device) and ``reset()``.

    Raises:
        TypeError: ``fun`` is not callable; later, that it was called without an array.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import rematax as rx
        >>> @rx.counted
        ... def step(x):
        ...     return jnp.sin(x)
        >>> def loss(x):
        ...     x, _ = jax.lax.scan(lambda x, _: (jax.checkpoint(step)(x), None), x, length=5)
        ...     return x**2
        >>> _ = jax.value_and_grad(loss)(1.0)
        >>> step.calls
        10
    """
    if isinstance(fun, classmethod | staticmethod | property):
        raise TypeError(
            f"rx.counted: needs a function, not a {type(fun).__name__}: write @rx.counted below "
            f"@{type(fun).__name__}."
        )
    if inspect.isclass(fun):
        raise TypeError(
            f"rx.counted: needs a function, not the class {fun.__name__}: count the method that is "
            "called, or an instance."
        )
    check_function("rx.counted", fun)
    return Counted(fun)


def list_residuals(
    caller: str, fun: Callable, args: tuple, kwargs: Mapping[str, Any] | None = None
) -> Residuals:
    """Do what :func:`residuals` does, with the name of another function in its messages."""
    call = call_of(caller, fun, args, kwargs)
    with in_one_sentence(caller, fun, (*call.args, *call.kwargs.values())):
        # What is wrong with the function itself shows as it is.
        program = jax.make_jaxpr(call.pure)(*call.arrays)
    try:
        closed = jax.make_jaxpr(functools.partial(_pullback, call.pure))(*call.arrays)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ValueError(
            f"{caller}: {name_of(fun)} cannot be differentiated in reverse mode "
            f"({first_line(error)}). {_remedy(str(error))}"
        ) from None
    arguments = dict(zip(map(id, closed.jaxpr.invars), call.names, strict=True))
    constants = set(map(id, closed.jaxpr.constvars))
    rows = []
    for var in closed.jaxpr.outvars:
        if is_literal(var) and not var.aval.shape:
            continue
        shape, dtype, size = tuple(var.aval.shape), var.aval.dtype.name, leaf_bytes(var.aval)
        if id(var) in arguments:
            rows.append(Residual(shape, dtype, size, "argument", arguments[id(var)]))
        elif is_literal(var) or id(var) in constants:
            rows.append(Residual(shape, dtype, size, "constant"))
        else:
            origin = origin_of(var, closed.jaxpr)
            rows.append(Residual(shape, dtype, size, "intermediate", *origin))
    named = {row.name for row in rows if row.name and row.kind == "intermediate"}
    notes = [_OF_A_GRADIENT] if is_gradient(program) else []
    return Residuals(rows, [*notes, *notes_on_names(program, closed, named)])


def _pullback(fun: Callable, *args: Any) -> Any:
    """Return the pullback, whose leaves are the residuals, after having traced that it works."""
    out, pullback = jax.vjp(fun, *args)
    # Some functions, such as while loops, only turn out to have no reverse mode when it is used.
    pullback(jax.tree.map(_zero_cotangent, out))
    return pullback


def _remedy(reason: str) -> str:
    for words, remedy in (
        (
            "while_loop",
            "Use a scan or a fori_loop with static bounds, or give what the loop finds an implicit "
            "derivative, by jax.lax.custom_root or jax.custom_vjp.",
        ),
        ("callback", "Give the callback a derivative by jax.custom_vjp."),
        ("static", "Bind static arguments with functools.partial or a lambda."),
    ):
        if words in reason:
            return remedy
    return "Mend that, or give it a derivative by jax.custom_vjp."


def _zero_cotangent(x: Any) -> Any:
    if jnp.issubdtype(jnp.result_type(x), jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(jnp.shape(x), jax.dtypes.float0)


def _probe(leaf: Any) -> Any:
    """Return something small that depends on an array, for the host to look at."""
    leaf = jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    leaf = jax.lax.stop_gradient(leaf)
    return leaf if math.prod(leaf.shape) == 0 else jnp.ravel(leaf)[0]
