"""Measure what XLA allocates for a function, and how long it runs, through JAX's stages.

The compiler knows before anything runs how much temporary memory a program needs. It is read from
``temp_size_in_bytes`` of the compiled program's memory analysis. ``peak_memory_in_bytes`` is not
used: on a CPU it is about the arguments and the results, whatever the temporaries are.

Arrays that a function closes over are written into the program (seen on JAX 0.8.2, 0.10.2 and
0.12.0) and appear in none of the analysis's numbers, so they are counted here. The exception is an
array of equal entries, such as one made by ``jnp.ones``: it is a temporary buffer.
"""

from __future__ import annotations

import functools
import math
import re
import statistics
import time as clock
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ._calls import Call, call_of, check_function
from ._jaxprs import captured_arrays, equations, is_differentiated, is_real_number
from ._sizes import format_bytes, leaf_bytes
from ._tables import lines_html, list_text, table_html, table_text
from ._tracing import in_one_sentence, inexact, is_array, is_jitted

_EXPENSIVE = {"dot_general", "ragged_dot_general", "scaled_matmul", "conv_general_dilated"}
_LOOPS = {"scan", "while"}
_LOWERED = re.compile(r"stablehlo\.(?:dot_general|dot|convolution)\b")
_SYMBOL = re.compile(r'@("[^"]+"|[\w.$-]+)')  # MLIR quotes names such as <lambda>
# Plain instructions, and calls to a vendor's library.
_COMPILED = re.compile(
    r" (?:dot|ragged-dot|convolution)\(|custom_call_target=\"[^\"]*(?:matmul|gemm|conv|dot)", re.I
)
_TOO_FEW_RUNS, _MANY_RUNS, _ENOUGH_SECONDS = 5, 50, 0.1

_VALUE_ALONE = "This is the value alone; for the gradient pass jax.grad of the function."
_COUNTED = (
    "Products are matrix products and convolutions: in the program as traced, as the compiler is "
    "given it, and as compiled; a loop's body counts once."
)

# What JAX says while it compiles; nothing at all where it has the program in memory already.
_COMPILED_NOW = "/jax/core/compile/backend_compile_duration"
_FROM_DISK = "/jax/compilation_cache/cache_hits"
_events: Counter[str] = Counter()


@dataclass(frozen=True)
class Cost:
    """What one compiled function needs. Sizes in bytes, times in seconds.

    Attributes:
        temp_bytes: Buffers that the program allocates while it runs.
        argument_bytes: Its arguments, as far as it uses them.
        output_bytes: Its results.
        alias_bytes: The part of the results that takes the place of donated arguments.
        constant_bytes: Arrays that the function closes over, those that the compiler could leave
            out among them.
        compile_seconds: Time that the compiler took; ``None`` if JAX had compiled the program
            before, and took it from memory or from its cache on disk.
        seconds: Median time of a run, or ``None`` if it was not asked for.
        backend: What it was compiled for: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
        notes: What a reader should know, in sentences that stand under the table: that the function
            gives a value and no gradient, or that its result is not finite (seen if it was run).
    """

    temp_bytes: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    constant_bytes: int
    compile_seconds: float | None
    seconds: float | None
    backend: str
    notes: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Temporary, argument, result and constant bytes, less those that are shared."""
        held = self.temp_bytes + self.argument_bytes + self.output_bytes + self.constant_bytes
        return held - self.alias_bytes

    @property
    def working_bytes(self) -> int:
        """Temporary and constant bytes, which are needed beside arguments and results."""
        return self.temp_bytes + self.constant_bytes

    def _rows(self) -> Iterator[tuple[str, str]]:
        for name in ("temp", "argument", "output", "constant", "alias", "total"):
            size = getattr(self, f"{name}_bytes")
            if size or name in ("temp", "total"):
                yield {"temp": "temporary", "alias": "shared"}.get(name, name), format_bytes(size)
        if self.compile_seconds is None:
            yield "compiled", "before"
        else:
            yield "compiled in", format_seconds(self.compile_seconds)
        if self.seconds is not None:
            yield "runs in", format_seconds(self.seconds)

    def __repr__(self) -> str:
        return "\n".join([list_text([("on", self.backend), *self._rows()]), *self.notes])

    def _repr_html_(self) -> str:
        table = table_html(f"Cost on {self.backend}", (), self._rows(), "cost")
        return table + lines_html(self.notes)


@dataclass(frozen=True)
class Operations:
    """Expensive operations (matrix products, convolutions) in a program; a loop's body counts once.

    Attributes:
        traced: In the traced program.
        lowered: In the program that the compiler is given.
        compiled: In what the compiler made of it.
        loops: Loops in the traced program. Where two programs differ in this, their counts say
            nothing of the work that they do.
    """

    traced: int
    lowered: int
    compiled: int
    loops: int


class Comparison(Mapping[str, Cost]):
    """Costs of several functions on the same arguments, by name; the first is the base of ratios.

    *Working bytes* are temporary and constant bytes: what a function needs beside its arguments and
    results.

    Shown as a table with a verdict in a terminal and in a notebook.
    """

    def __init__(self, costs: dict[str, Cost], operations: dict[str, Operations]) -> None:
        self._costs = costs
        self.operations = operations

    def __getitem__(self, name: str) -> Cost:
        return self._costs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._costs)

    def __len__(self) -> int:
        return len(self._costs)

    @property
    def base(self) -> str:
        """Name of the first function."""
        return next(iter(self))

    def bytes_ratio(self, name: str) -> float:
        """Temporary and constant bytes over those of the first; 1 where both need none."""
        return _ratio(self[name].working_bytes, self[self.base].working_bytes)

    def time_ratio(self, name: str) -> float | None:
        """Time of a run over that of the first, or ``None`` if times were not asked for."""
        seconds, base = self[name].seconds, self[self.base].seconds
        return None if seconds is None or base is None else seconds / base

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the costs, each with the names of the functions that it is about."""
        about: dict[str, list[str]] = {}
        for name, cost in self.items():
            for note in cost.notes:
                about.setdefault(note, []).append(name)
        return tuple(f"{', '.join(names)}: {note}" for note, names in about.items())

    @property
    def verdict(self) -> str:
        """Plain words for each function but the first."""
        return "\n".join(self._sentence(name) for name in self if name != self.base)

    def plot(self, ax: Any = None) -> Any:
        """Draw the temporary and constant bytes as bars.

        Args:
            ax: Matplotlib axes to draw on; new ones by default.

        Returns:
            The axes.
        """
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.gca()
        sizes = [cost.working_bytes / 1e6 for cost in self.values()]
        bars = ax.barh(list(self), sizes)
        ax.bar_label(bars, [format_bytes(round(size * 1e6)) for size in sizes], padding=4)
        ax.invert_yaxis()
        ax.margins(x=0.15)
        ax.set_xlabel("temporary and constant bytes [MB]")
        return ax

    def _sentence(self, name: str) -> str:
        ratio, pace = self.bytes_ratio(name), self.time_ratio(name)
        ops, base = self.operations[name], self.operations[self.base]
        if 0.995 <= ratio <= 1.005:
            parts = ["needs the same bytes"]
        elif ratio < 1:
            saved = 100 * (1 - ratio)  # rounded down near the end, where 100 would be untrue
            text = f"{saved:.0f}" if saved < 99.5 else f"{math.floor(10 * saved) / 10:g}"
            parts = [f"saves {text}% of the bytes"]
        elif ratio == math.inf:
            parts = ["needs bytes where none were needed"]
        else:
            parts = [f"needs {ratio:.3g}x the bytes"]
        if pace is not None:
            parts.append(f"takes {pace:.2f}x the time")
        same_loops = ops.loops == base.loops
        merged = same_loops and ops.lowered > base.lowered and ops.compiled <= base.compiled
        unlike = not merged and pace is None and base.compiled and ops.compiled != base.compiled
        if unlike and same_loops:
            parts.append(f"has {ops.compiled / base.compiled:.2f}x the expensive operations")
        sentence = f"{name}: {' and '.join(parts)}, compared with {self.base}"
        if merged:
            sentence += "; the compiler merged the recomputation away"
        elif unlike and not same_loops:
            sentence += "; their work was not compared, since their loops differ"
        return f"{sentence}."

    def _table(self) -> tuple[list[str], list[list[str]]]:
        timed = self.time_ratio(self.base) is not None
        counted = any(ops.traced for ops in self.operations.values())
        head = ["function", "working bytes", "ratio"] + (["time", "time ratio"] if timed else [])
        head += ["products traced / lowered / compiled"] if counted else []
        body = []
        for name, cost in self.items():
            row = [name, format_bytes(cost.working_bytes), f"{self.bytes_ratio(name):.3g}"]
            if timed:
                row += [format_seconds(cost.seconds or 0.0), f"{self.time_ratio(name):.2f}"]
            if counted:
                ops = self.operations[name]
                row.append(f"{ops.traced} / {ops.lowered} / {ops.compiled}")
            body.append(row)
        return head, body

    def _lines(self) -> list[str]:
        """What stands under the table."""
        counted = any(ops.traced for ops in self.operations.values())
        return [*self.verdict.splitlines(), *([_COUNTED] if counted else []), *self.notes]

    def __repr__(self) -> str:
        return "\n".join([table_text(*self._table()), *self._lines()])

    def _repr_html_(self) -> str:
        table = table_html(f"Costs on {self[self.base].backend}", *self._table(), "comparison")
        return table + lines_html(self._lines())


def measure(fun: Callable[..., Any], *args: Any, time: bool = False, **kwargs: Any) -> Cost:
    """Measure what a function needs, as the compiler plans it; it only runs if ``time`` is set.

    Args:
        fun: The function as it will run: pass ``jax.grad(loss)`` to learn about the gradient. A
            function that is jitted already is taken as it is, with what it says is static or
            donated.
        *args: Its arguments: pytrees of arrays, numbers or, if ``time`` is not set,
            :class:`jax.ShapeDtypeStruct`, which take no memory. Whatever else is in them, such as
            the functions and texts of a model, is static: a part of the program.
        time: Also run it, and report the median time of a run: compiled before, warmed up, and
            waited for. Costs at least six runs. An argument of that name has to be bound to the
            function, by ``functools.partial``.
        **kwargs: Its keyword arguments, likewise.

    Returns:
        Its cost: sizes in bytes, times in seconds.

    Raises:
        TypeError: ``fun`` is not callable or cannot be compiled, or an argument is being traced.
            Errors of the function's own show as they are.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import rematax as rx
        >>> def loop(x):
        ...     x, _ = jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, length=100)
        ...     return x.sum()
        >>> x = jnp.ones(1000)
        >>> rx.measure(jax.grad(loop), x).temp_bytes >= 100 * x.nbytes
        True
    """
    program = measured("rx.measure", fun, args, kwargs, time)
    return timed({"it": program})["it"] if time else program.cost


def compare(
    functions: Mapping[str, Callable[..., Any]], *args: Any, time: bool = False, **kwargs: Any
) -> Comparison:
    """Measure several functions on the same arguments, and say what the differences amount to.

    Args:
        functions: Name -> function as it will run. The first is the base of all ratios.
        *args: Their arguments, as for :func:`measure`.
        time: Also run them, as for :func:`measure`. They take turns, so that a slow moment of the
            machine hits all of them.
        **kwargs: Their keyword arguments.

    Returns:
        Their costs by name, ratios, and expensive operations before and after the compiler. A print
        of it is a table.

    Raises:
        TypeError: As for :func:`measure`, or ``functions`` is not a mapping with names.
        ValueError: There is nothing to compare.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import rematax as rx
        >>> def loss(x, body=lambda x, _: (jnp.sin(jnp.sin(jnp.sin(x))), None)):
        ...     return jax.lax.scan(body, x, length=100)[0].sum()
        >>> def less(x):
        ...     return loss(x, jax.checkpoint(lambda x, _: (jnp.sin(jnp.sin(jnp.sin(x))), None)))
        >>> both = {"plain": jax.grad(loss), "checkpointed": jax.grad(less)}
        >>> rx.compare(both, jnp.ones(999)).bytes_ratio("checkpointed") < 0.5
        True
    """
    if not isinstance(functions, Mapping):
        raise TypeError(
            "rx.compare: needs the functions by name first, such as {'plain': f, 'checkpointed': "
            f"g}}, and then their arguments, not a {type(functions).__name__}."
        )
    for name, fun in functions.items():
        if not isinstance(name, str):
            raise TypeError(f"rx.compare: names of functions are text, not {name!r}.")
        check_function(f"rx.compare, {name!r}", fun)
    if not functions:
        raise ValueError("rx.compare: there is no function: give at least one, by name.")
    programs = {
        name: measured(f"rx.compare, {name!r}", fun, args, kwargs, time)
        for name, fun in functions.items()
    }
    operations = {
        name: Operations(
            traced=_count_traced(program.traced, _EXPENSIVE),
            lowered=_count_lowered(program.lowered.as_text()),
            compiled=len(_COMPILED.findall(program.compiled.as_text() or "")),
            loops=_count_traced(program.traced, _LOOPS),
        )
        for name, program in programs.items()
    }
    costs = timed(programs) if time else {name: each.cost for name, each in programs.items()}
    return Comparison(costs, operations)


def format_seconds(seconds: float) -> str:
    """Return a time as text with three figures.

    >>> format_seconds(0.00123), format_seconds(12.3)
    ('1.23 ms', '12.3 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


class Measured(NamedTuple):
    """A cost with the traced, lowered and compiled program it was read from.

    ``ready`` makes arguments ready, and gives what runs the program once.
    """

    cost: Cost
    traced: Any
    lowered: Any
    compiled: Any
    ready: Callable[[], Callable[[], Any]]


def measured(
    caller: str, fun: Any, args: tuple, kwargs: Mapping[str, Any], time: Any = False
) -> Measured:
    """Compile a function and read its cost; ``time`` only tells that it will be run."""
    if not isinstance(time, bool):
        raise TypeError(
            f"{caller}: time says whether to run the function, True or False, and is not "
            f"{time!r:.40}; bind an argument of that name with functools.partial."
        )
    call = call_of(caller, fun, args, kwargs)
    if time and call.is_abstract:
        raise TypeError(
            f"{caller}: time=True needs arrays to run on, and got a jax.ShapeDtypeStruct."
        )
    with in_one_sentence(caller, fun, (*call.args, *call.kwargs.values())):
        traced, lowered = _lowered(call)
    compiled, compile_seconds = _compiled(lowered)
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise RuntimeError(
            f"{caller}: JAX reports no memory analysis on {jax.default_backend()}, so there is "
            "nothing to measure; use the cpu or gpu backend."
        )
    cost = Cost(
        temp_bytes=int(analysis.temp_size_in_bytes),
        argument_bytes=int(analysis.argument_size_in_bytes),
        output_bytes=int(analysis.output_size_in_bytes),
        alias_bytes=int(analysis.alias_size_in_bytes),
        constant_bytes=sum(map(_constant_bytes, captured_arrays(traced).values())),
        compile_seconds=compile_seconds,
        seconds=None,
        backend=jax.default_backend(),
        notes=(_VALUE_ALONE,) if _is_value_alone(traced) else (),
    )

    def ready() -> Callable[[], Any]:
        if not is_jitted(fun):
            if call.plain:
                return functools.partial(compiled, *call.args, **call.kwargs)
            return functools.partial(compiled, *call.arrays)
        # A donated argument is gone after a run, and a module may be another one.
        copy = cost.alias_bytes or not call.plain
        args, kwargs = call.copied() if copy else (call.args, call.kwargs)
        return functools.partial(fun, *args, **kwargs)

    return Measured(cost, traced, lowered, compiled, ready)


def _lowered(call: Call) -> tuple[Any, Any]:
    """Trace and lower a call; what is jitted already keeps what it says is static or donated."""
    fun: Any = call.fun
    if call.plain and not is_jitted(fun):
        fun = jax.jit(fun)
    if is_jitted(fun) and hasattr(fun, "trace"):
        traced = fun.trace(*call.args, **call.kwargs)
        traced = getattr(traced, "traced", traced)  # flax.nnx wraps JAX's
        return traced.jaxpr, traced.lower()
    if is_jitted(fun) and not call.is_abstract:  # by equinox, which wraps JAX's, too
        lowered = fun.lower(*call.args, **call.kwargs)
        return jax.make_jaxpr(call.pure)(*call.arrays), getattr(lowered, "lowered", lowered)
    traced = jax.jit(call.pure).trace(*call.arrays)
    return traced.jaxpr, traced.lower()


def _compiled(lowered: Any) -> tuple[Any, float | None]:
    """Compile, and give the time that it took, or None if JAX had it compiled before."""
    _listen()
    before = _events.copy()
    start = clock.perf_counter()
    compiled = lowered.compile()
    seconds = clock.perf_counter() - start
    new = _events - before
    return compiled, seconds if new[_COMPILED_NOW] and not new[_FROM_DISK] else None


@functools.cache
def _listen() -> None:
    """Count, from now on, what JAX says of its compiler."""

    def count(event: str, *_: Any, **__: Any) -> None:
        if event in (_COMPILED_NOW, _FROM_DISK):
            _events[event] += 1

    jax.monitoring.register_event_listener(count)
    jax.monitoring.register_event_duration_secs_listener(count)


def _is_value_alone(traced: Any) -> bool:
    """Tell whether a program gives a loss and no derivative of it."""
    takes = any(hasattr(aval, "dtype") and inexact(aval) for aval in traced.in_avals)
    one = len(traced.out_avals) == 1 and is_real_number(traced.out_avals[0])
    return takes and one and not is_differentiated(traced)


def _constant_bytes(array: Any) -> int:
    """Return the bytes that the program keeps of an array that was closed over.

    Of one whose entries are all equal it keeps a single entry, and fills a temporary buffer.
    """
    size = math.prod(array.shape)
    if size < 2 or jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return leaf_bytes(array)
    values = np.asarray(array).reshape(-1)
    return leaf_bytes(array) // size if bool((values == values[0]).all()) else leaf_bytes(array)


def timed(programs: Mapping[str, Measured]) -> dict[str, Cost]:
    """Run programs, and give their costs with the median time of a run.

    They take turns; the first turn is not counted, but its results are looked at.
    """
    times: dict[str, list[float]] = {name: [] for name in programs}
    notes: dict[str, tuple[str, ...]] = {}
    for turn in range(_MANY_RUNS):
        for name, program in programs.items():
            run = program.ready()
            start = clock.perf_counter()
            out = jax.block_until_ready(run())
            if turn:
                times[name].append(clock.perf_counter() - start)
            else:
                notes[name] = (*program.cost.notes, *_not_finite(out))
        spent = sum(map(sum, times.values()))
        if turn >= _TOO_FEW_RUNS and spent > _ENOUGH_SECONDS * len(programs):
            break
    return {
        name: replace(program.cost, seconds=statistics.median(times[name]), notes=notes[name])
        for name, program in programs.items()
    }


def _not_finite(out: Any) -> list[str]:
    """Say which leaves of a result are not finite."""
    wrong = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(out):
        if is_array(leaf) and inexact(leaf) and not bool(jnp.isfinite(leaf).all()):
            what = "NaN" if bool(jnp.isnan(leaf).any()) else "infinity"
            where = jax.tree_util.keystr(path)
            wrong.append(f"{what} in {where}" if where else what)
    return [f"The result is not finite: {', '.join(wrong)}."] if wrong else []


def _count_traced(closed: Any, primitives: set[str]) -> int:
    return sum(eqn.primitive.name in primitives for eqn in equations(closed))


def _count_lowered(text: str) -> int:
    """Count in StableHLO; what stands in a function counts once for each call of it."""
    parts = re.split(r"^  func\.func ", text, flags=re.MULTILINE)[1:]
    bodies = {_SYMBOL.findall(part)[0]: part for part in parts}

    @functools.cache
    def count(name: str) -> int:
        body = bodies.get(name, "")
        called = re.findall(rf"\bcall {_SYMBOL.pattern}", body)
        return len(_LOWERED.findall(body)) + sum(map(count, called))

    return count("main")


def _ratio(a: int, b: int) -> float:
    return a / b if b else 1.0 if not a else math.inf
