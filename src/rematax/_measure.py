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
import html
import math
import re
import statistics
import time as clock
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ._jaxprs import captured_arrays, sub_jaxprs
from ._sizes import format_bytes, leaf_bytes
from ._tables import table_html, table_text
from ._tracing import check_arguments, in_one_sentence, is_array

_EXPENSIVE = {"dot_general", "ragged_dot_general", "scaled_matmul", "conv_general_dilated"}
_LOOPS = {"scan", "while"}
_LOWERED = re.compile(r"stablehlo\.(?:dot_general|dot|convolution)\b")
_SYMBOL = re.compile(r'@("[^"]+"|[\w.$-]+)')  # MLIR quotes names such as <lambda>
# Plain instructions, and calls to a vendor's library.
_COMPILED = re.compile(
    r" (?:dot|ragged-dot|convolution)\(|custom_call_target=\"[^\"]*(?:matmul|gemm|conv|dot)", re.I
)
_TOO_FEW_RUNS, _MANY_RUNS, _ENOUGH_SECONDS = 5, 50, 0.1


@dataclass(frozen=True)
class Cost:
    """What one compiled function needs. Sizes in bytes, times in seconds.

    Attributes:
        temp_bytes: Buffers that the program allocates while it runs.
        argument_bytes: Its arguments, as far as it uses them.
        output_bytes: Its results.
        alias_bytes: The part of the results that takes the place of donated arguments.
        constant_bytes: Arrays that the function closes over.
        compile_seconds: Time that the compiler took; short when it had the program in its cache.
        seconds: Median time of a run, or ``None`` if it was not asked for.
        backend: What it was compiled for: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
    """

    temp_bytes: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    constant_bytes: int
    compile_seconds: float
    seconds: float | None
    backend: str

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
        yield "compiled in", format_seconds(self.compile_seconds)
        if self.seconds is not None:
            yield "runs in", format_seconds(self.seconds)

    def __repr__(self) -> str:
        rows = [("on", self.backend), *self._rows()]
        return "\n".join(f"{name:12} {value}" for name, value in rows)

    def _repr_html_(self) -> str:
        return table_html(f"Cost on {self.backend}", (), self._rows(), "cost")


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
    def verdict(self) -> str:
        """One plain sentence for each function but the first."""
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
            parts = [f"saves {text} % of the bytes"]
        elif ratio == math.inf:
            parts = ["needs bytes where none were needed"]
        else:
            parts = [f"needs {ratio:.3g}x the bytes"]
        if pace is not None:
            parts.append(f"takes {pace:.2f}x the time")
        if ops.lowered > base.lowered and ops.compiled <= base.compiled:
            parts[0] = f"the compiler merged the recomputation away; it {parts[0]}"
        elif pace is None and base.compiled and ops.compiled != base.compiled:
            if ops.loops == base.loops:
                parts.append(f"has {ops.compiled / base.compiled:.2f}x the expensive operations")
            else:
                parts.append("has other loops, so that its work was not compared")
        return f"{name}: {' and '.join(parts)}, compared with {self.base}."

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

    def __repr__(self) -> str:
        head, body = self._table()
        return "\n".join(filter(None, [table_text(head, body), self.verdict]))

    def _repr_html_(self) -> str:
        head, body = self._table()
        table = table_html(f"Costs on {self[self.base].backend}", head, body, "comparison")
        return table + "".join(f"<p>{html.escape(line)}</p>" for line in self.verdict.splitlines())


def measure(fun: Callable[..., Any], *args: Any, time: bool = False) -> Cost:
    """Measure what a function needs, as the compiler plans it; it only runs if ``time`` is set.

    Args:
        fun: The function as it will run: pass ``jax.grad(loss)`` to learn about the gradient. A
            function that is jitted already is taken as it is, with what it says is static or
            donated.
        *args: Its arguments: pytrees of arrays, numbers or, if ``time`` is not set,
            :class:`jax.ShapeDtypeStruct`, which take no memory.
        time: Also run it, and report the median time of a run: compiled before, warmed up, and
            waited for. Costs at least six runs.

    Returns:
        Its cost: sizes in bytes, times in seconds.

    Raises:
        TypeError: ``fun`` is not callable or cannot be compiled, or an argument is not an array.
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
    program = _measured("measure", fun, args, time)
    seconds = _median_seconds({"it": program}, args)["it"] if time else None
    return replace(program.cost, seconds=seconds)


def compare(
    functions: Mapping[str, Callable[..., Any]], *args: Any, time: bool = False
) -> Comparison:
    """Measure several functions on the same arguments, and say what the differences amount to.

    Args:
        functions: Name -> function as it will run. The first is the base of all ratios.
        *args: Their arguments, as for :func:`measure`.
        time: Also run them, as for :func:`measure`. They take turns, so that a slow moment of the
            machine hits all of them.

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
            f"compare needs the functions by name, such as {{'plain': f, 'checkpointed': g}}, "
            f"not a {type(functions).__name__}."
        )
    for name in functions:
        if not isinstance(name, str):
            raise TypeError(f"compare needs text for names, not {name!r}.")
    if not functions:
        raise ValueError("compare got no functions: give at least one, by name.")
    programs = {
        name: _measured(f"compare, {name!r}", fun, args, time) for name, fun in functions.items()
    }
    operations = {
        name: Operations(
            traced=_count_traced(program.traced.jaxpr, _EXPENSIVE),
            lowered=_count_lowered(program.lowered.as_text()),
            compiled=len(_COMPILED.findall(program.compiled.as_text() or "")),
            loops=_count_traced(program.traced.jaxpr, _LOOPS),
        )
        for name, program in programs.items()
    }
    seconds = _median_seconds(programs, args) if time else {}
    costs = {
        name: replace(program.cost, seconds=seconds.get(name)) for name, program in programs.items()
    }
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


class _Measured(NamedTuple):
    """A cost with the traced, lowered and compiled program it was read from, and what to run."""

    cost: Cost
    traced: Any
    lowered: Any
    compiled: Any
    run: Callable


def _measured(caller: str, fun: Any, args: tuple, time: bool = False) -> _Measured:
    """Compile a function and read its cost; ``time`` only tells that it will be run."""
    traced, run = _trace(caller, fun, args)
    if time and any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args)):
        raise TypeError(
            f"{caller}: time=True needs arrays to run on, and got a jax.ShapeDtypeStruct."
        )
    lowered = traced.lower()
    start = clock.perf_counter()
    compiled = lowered.compile()
    compile_seconds = clock.perf_counter() - start
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
        constant_bytes=sum(map(_constant_bytes, captured_arrays(traced.jaxpr).values())),
        compile_seconds=compile_seconds,
        seconds=None,
        backend=jax.default_backend(),
    )
    return _Measured(cost, traced, lowered, compiled, run or compiled)


def _trace(caller: str, fun: Any, args: tuple) -> tuple[Any, Callable | None]:
    """Trace a function; also return it if it was jitted before, since static arguments go to it."""
    jitted = hasattr(fun, "trace") and hasattr(fun, "lower")
    if not jitted:
        check_arguments(caller, fun, args)
    with in_one_sentence(caller, fun, args):
        return (fun if jitted else jax.jit(fun)).trace(*args), fun if jitted else None


def _constant_bytes(array: Any) -> int:
    """Return the bytes that the program keeps of an array that was closed over.

    Of one whose entries are all equal it keeps a single entry, and fills a temporary buffer.
    """
    size = math.prod(array.shape)
    if size < 2 or jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return leaf_bytes(array)
    values = np.asarray(array).reshape(-1)
    return leaf_bytes(array) // size if bool((values == values[0]).all()) else leaf_bytes(array)


def _median_seconds(programs: Mapping[str, _Measured], args: tuple) -> dict[str, float]:
    """Give the median time of a run of each. They take turns; the first turn is not counted."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(_MANY_RUNS):
        for name, program in programs.items():
            # A donated argument is gone after a run.
            given = jax.tree.map(_fresh, args) if program.cost.alias_bytes else args
            start = clock.perf_counter()
            jax.block_until_ready(program.run(*given))
            if turn:
                times[name].append(clock.perf_counter() - start)
        spent = sum(map(sum, times.values()))
        if turn >= _TOO_FEW_RUNS and spent > _ENOUGH_SECONDS * len(programs):
            break
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def _fresh(leaf: Any) -> Any:
    return jax.block_until_ready(jnp.copy(leaf)) if is_array(leaf) else leaf


def _count_traced(closed: Any, primitives: set[str]) -> int:
    jaxpr = getattr(closed, "jaxpr", closed)
    own = sum(eqn.primitive.name in primitives for eqn in jaxpr.eqns)
    inner = (inner for eqn in jaxpr.eqns for inner in sub_jaxprs(eqn))
    return own + sum(_count_traced(each, primitives) for each in inner)


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
