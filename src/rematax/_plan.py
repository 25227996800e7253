r"""Choose the schedule that fits the memory, before anything runs.

What a schedule holds is known exactly: so many states, so many tapes (see
:mod:`rematax._schedules`). How many bytes that makes is predicted from the state and from the tape
that autodiff asks for (see :func:`rematax.residuals`), and how many the compiler really allocates
is measured (see :func:`rematax.measure`). Predictions decide what is worth compiling; only what was
measured is chosen. Nothing is run, and no array is made.

The program that is measured is the gradient alone: it takes the first carry, xs, the arrays that
the step closes over, and the cotangents of the last carry and of ys; it returns ys and the
gradients. What it needs beside these is what the schedule answers for.

The work of a schedule is its evaluations and a pullback for each step. With :math:`E` evaluations
for :math:`n` steps, and a pullback that costs :math:`\rho` steps, the time is
:math:`(E/n + \rho)/(1 + \rho)` times that of storing everything.

References:
    A. Griewank and A. Walther (2000), "Algorithm 799: revolve", ACM Transactions on Mathematical
    Software 26(1):19-45.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from ._default import decided, pieces
from ._inspect import list_residuals
from ._jax import UNREPEATABLE, Captured, captured, has_tangent
from ._jaxprs import hoisted
from ._loop import Loop, Parts
from ._measure import measure
from ._scan import runner, scan, steps_of
from ._schedules import Binomial, EveryStep, Nested, Schedule, StoreAll
from ._sizes import format_bytes, format_fit, parse_limit, tree_bytes
from ._tables import table_html, table_text
from ._tracing import in_one_sentence, inexact, is_array, name_of

PyTree = Any

_MOST_PROGRAMS = 6
_PULLBACK = 2.0  # what a pullback costs, in steps, where nothing is known of the step
_DOUBT = 1.5  # what is predicted to need more than this many times the memory is not compiled
_HEAD = ("  schedule", "states + tapes", "predicted", "measured", "runs/step", "time", "kept in")
_MODES = ("reverse", "forward", "forward over reverse", "reverse over reverse")


@dataclass(frozen=True)
class Candidate:
    """One schedule in a :class:`Plan`. Sizes in bytes.

    Attributes:
        schedule: The schedule.
        states: Carries that it holds at the same time, at most.
        tapes: Sets of residuals of one step that it holds at the same time, at most.
        evaluations: Calls of the step in one value and gradient, all steps together.
        time_ratio: Predicted time over that of storing everything, from evaluations and pullbacks
            alone: it leaves out what moving stored bytes costs.
        predicted_bytes: Temporary and constant bytes of the gradient, as predicted.
        measured_bytes: The same, as the compiler plans them; ``None`` if it was not asked.
        modes: The ways of differentiating that keep to the schedule, among ``"reverse"``,
            ``"forward"`` (which includes reverse over forward), ``"forward over reverse"`` and
            ``"reverse over reverse"``. Only reverse mode was measured; second derivatives hold a
            few times as much. Reverse over reverse works with ``EveryStep`` and ``Nested`` too, but
            holds what a schedule of one level less would. Empty for ``Binomial`` if the step has
            effects that must happen once and in order.
    """

    schedule: Schedule
    states: int
    tapes: int
    evaluations: int
    time_ratio: float
    predicted_bytes: int
    measured_bytes: int | None
    modes: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Which schedule fits the memory, and what each would cost; made by :func:`plan`.

    Shown as a table in a terminal and in a notebook, the chosen schedule marked by ``*``, with the
    line to paste.

    Attributes:
        schedule: The schedule with the least work among those measured to fit.
        default: What :func:`rematax.scan` takes where it is given no schedule.
        memory_bytes: The limit for temporary and constant bytes.
        length: Number of steps.
        state_bytes: Bytes of one carry.
        tape_bytes: Bytes of the residuals of one step, without what is there anyway.
        candidates: All schedules that were considered, those with the least work first.
        line: The call to paste.
        backend: What it was measured for: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
    """

    schedule: Schedule
    default: Schedule
    memory_bytes: int
    length: int
    state_bytes: int
    tape_bytes: int
    candidates: tuple[Candidate, ...]
    line: str
    backend: str

    @property
    def chosen(self) -> Candidate:
        """The candidate with :attr:`schedule`."""
        return next(c for c in self.candidates if c.schedule == self.schedule)

    def _summary(self) -> str:
        steps = _count(self.length, "step")
        return (
            f"{_written(self.schedule)} fits {steps} into {format_bytes(self.memory_bytes)} on "
            f"{self.backend} (state {format_bytes(self.state_bytes)}, "
            f"tape {format_bytes(self.tape_bytes)})"
        )

    def _table(self) -> Iterator[tuple[str, ...]]:
        for each in self.candidates:
            yield (
                f"{'*' if each.schedule == self.schedule else ' '} {each.schedule!r}",
                f"{each.states} + {each.tapes}",
                format_bytes(each.predicted_bytes),
                format_fit(each.measured_bytes, self.memory_bytes),
                f"{each.evaluations / max(self.length, 1):.2f}",
                f"{each.time_ratio:.2f}x",
                {_MODES: "all", _MODES[:-1]: "not grad of grad"}.get(each.modes, "none"),
            )

    def _note(self) -> str:
        return f"Without a schedule, rx.scan takes {_written(self.default)} here."

    def __repr__(self) -> str:
        table = table_text(_HEAD, self._table())
        return "\n".join([self._summary(), table, self._note(), self.line])

    def _repr_html_(self) -> str:
        table = table_html(self._summary(), _HEAD, self._table(), "plan")
        note, line = html.escape(self._note()), html.escape(self.line)
        return f"{table}<p>{note}</p><pre><code>{line}</code></pre>"


def plan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    *,
    memory: int | str,
) -> Plan:
    r"""Find the schedule with which the gradient of a scan fits the memory, at the least work.

    The gradient of :func:`rematax.scan` with respect to ``init``, ``xs`` and the arrays that ``f``
    closes over is compiled, and not run, for a few schedules: at most six programs. Of those whose
    temporary and constant bytes are within ``memory``, the one with the least work is chosen: the
    fewest evaluations, since each schedule pulls back through each step once.

    Candidates are :class:`rematax.StoreAll`, :class:`rematax.EveryStep`, :class:`rematax.Nested`
    of two and three levels, and :class:`rematax.Binomial` with as many snapshots as fit, and with
    the fewest for which no step is run more than three, four and five times.

    Predictions only decide what to compile. On CPU they were within a tenth of what was measured (a
    quarter for ``Nested``), three states, half a tape and 1 kB.

    What any gradient needs whatever the schedule is not part of ``memory``: the arguments, ``ys``,
    their cotangents, and the gradients. A loss that keeps ``ys`` and their cotangents
    needs that much more.

    Args:
        f: The step, as for :func:`rematax.scan`.
        init: The first carry: pytree of arrays, or of :class:`jax.ShapeDtypeStruct`, which take no
            memory.
        xs: Pytree of arrays or :class:`jax.ShapeDtypeStruct` with a common leading axis.
        length: Number of steps, static. Default: the leading axis of ``xs``.
        memory: Limit for temporary and constant bytes: a number of bytes, or text such as
            ``"500 MB"`` or ``"2 GiB"``. On several devices it is the limit of each.

    Returns:
        The plan: its ``schedule``, its ``line`` to paste, and a table of the candidates.

    Raises:
        TypeError: As :func:`rematax.scan` does, or ``memory`` is neither a whole number nor text.
        ValueError: No candidate fits; the message says which comes closest, and what it needs.
            Or ``memory`` is no size or not positive, ``f`` has no reverse mode, or the arguments
            do not fit together.

    References:
        A. Griewank and A. Walther (2000), "Algorithm 799: revolve", ACM Transactions on
        Mathematical Software 26(1):19-45.

    Example:
        A thousand steps of a state of 40 kB, whose gradient has to do with 1 MB.

        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rematax as rx
        >>> def step(x, _):
        ...     return jnp.sin(x) * jnp.cos(x), None
        >>> start = jax.ShapeDtypeStruct((10_000,), jnp.float32)
        >>> found = rx.plan(step, start, length=1000, memory="1 MB")
        >>> found.chosen.measured_bytes <= 1_000_000
        True
        >>> found.line == f"rx.scan(step, init, length=1000, schedule=rx.{found.schedule})"
        True
    """
    limit = parse_limit(memory, "rx.plan")
    gradient = _Gradient(f, init, xs, length)
    chosen = _search(gradient, limit)
    schedules = [*gradient.usual(), *gradient.measured]
    candidates = sorted(
        map(gradient.candidate, dict.fromkeys(schedules)),
        key=lambda c: (c.evaluations, c.measured_bytes or c.predicted_bytes),
    )
    name = name_of(f) if name_of(f).isidentifier() else "f"
    steps = "xs" if jax.tree.leaves(xs) else f"length={gradient.n}"
    return Plan(
        schedule=chosen,
        default=gradient.default,
        memory_bytes=limit,
        length=gradient.n,
        state_bytes=gradient.state_bytes,
        tape_bytes=gradient.tape_bytes,
        candidates=tuple(candidates),
        line=f"rx.scan({name}, init, {steps}, schedule={_written(chosen)})",
        backend=jax.default_backend(),
    )


def _search(gradient: _Gradient, limit: int) -> Schedule:
    """Find the schedule with the least work that fits; compile as little as that takes."""
    schedule: Schedule
    for schedule in (StoreAll(), EveryStep()):
        if gradient.predicted(schedule) <= _DOUBT * limit and gradient.needs(schedule) <= limit:
            return schedule
    found = _largest(gradient, limit) if gradient.repeatable else None
    fitting: list[Schedule] = [found] if found else []
    for schedule in (Nested(levels=2), Nested(levels=3)):
        # Behind Binomial in work but for its table, which matters where the state is tiny.
        behind = fitting and gradient.work(fitting[0]) <= gradient.work(schedule)
        if not behind and gradient.predicted(schedule) <= _DOUBT * limit:
            if gradient.needs(schedule) <= limit:
                fitting.append(schedule)
                break
    if fitting:
        return min(fitting, key=gradient.work)
    least = [Nested(levels=3), Nested(levels=2), EveryStep(), StoreAll()]
    least += [Binomial(1)] if gradient.repeatable else []
    smallest = min(least, key=gradient.predicted)
    if gradient.programs_left:
        gradient.needs(smallest)
    smallest = min(gradient.measured, key=gradient.needs)
    need = gradient.needs(smallest)
    raise ValueError(
        f"rx.plan: no schedule fits the gradient of {_count(gradient.n, 'step')} into "
        f"{format_bytes(limit)}; the smallest, {_written(smallest)}, needs {format_bytes(need)} "
        f"({need} bytes), so allow at least memory={need}, or make the state smaller "
        f"({format_bytes(gradient.state_bytes)} now), by a narrower dtype or by sharding it."
    )


def _largest(gradient: _Gradient, limit: int) -> Binomial | None:
    """Find the most snapshots that fit; bytes are all but linear in their number."""
    n = gradient.n
    slope = max(gradient.predicted(Binomial(2)) - gradient.predicted(Binomial(1)), 1)
    fits, fails = 0, n + 1
    s = 1 + (limit - gradient.predicted(Binomial(1))) // slope
    if s < 1 and gradient.predicted(Binomial(1)) > _DOUBT * limit:
        return None
    for _ in range(min(3, gradient.programs_left - 2)):  # two are for Nested
        s = min(max(s, fits + 1), fails - 1, n)
        spare = limit - gradient.needs(Binomial(s))
        if spare >= 0:
            fits = s
        else:
            fails = s
        s += spare // slope
        if fails - fits < 2 or s == fits:
            break
    return Binomial(fits) if fits else None


class _Gradient:
    """The gradient of one scan, to be compiled with several schedules.

    Attributes:
        n: Number of steps.
        default, state_bytes, tape_bytes: See :class:`Plan`.
        repeatable: Whether the step may be repeated by Binomial, see :func:`rematax.scan`.
        measured: Temporary and constant bytes by schedule, of what was compiled.
    """

    def __init__(self, f: Callable, init: PyTree, xs: PyTree, length: Any) -> None:
        if not callable(f):
            raise TypeError(f"rx.plan: f must be a function of (carry, x), not {f!r}.")
        seen: dict[str, Any] = {}
        given = jax.tree.leaves((init, xs))

        def look(init, xs):
            n = steps_of(xs, length, "rx.plan")
            if n is None:
                raise TypeError("rx.plan: length must be known, not traced; make it static.")
            seen["n"], seen["repeatable"], seen["default"] = n, True, StoreAll()
            if n == 0:  # there is no first x to trace the step with
                seen["step"] = _as_it_is(f, init, xs)
                seen["inputs"] = [], jax.tree.leaves(init), jax.tree.leaves(xs)
                return
            call = captured(hoisted(f), init, xs, n)
            first = call.sizes[1]

            def step(consts, carry, x):
                out = call.program(*consts, *carry, *x)
                return out[:first], out[first:]

            def run(*parts):
                seen["inputs"] = parts
                return runner(call, StoreAll())(*parts)

            seen["step"], seen["repeatable"] = step, not call.effects & UNREPEATABLE
            if seen["repeatable"]:
                seen["default"] = _default(call)
            call.finish(run)

        with in_one_sentence("rx.plan", f, (init, xs)):
            # What is given as an array stays one, with its sharding; whatever was made of it while
            # tracing is known by its type.
            jax.eval_shape(lambda *args: (seen.update(args=args), look(*args))[1], init, xs)
        arrays = {
            id(traced): leaf
            for traced, leaf in zip(jax.tree.leaves(seen["args"]), given, strict=True)
            if is_array(leaf)
        }
        self.n, self._step, self.repeatable = seen["n"], seen["step"], seen["repeatable"]
        self.default: Schedule = seen["default"]
        self.measured: dict[Schedule, int] = {}
        self._inputs = tuple(
            [_abstract(a) if _is_traced(a) else a for a in (arrays.get(id(a), a) for a in part)]
            for part in seen["inputs"]
        )

        def run(*inputs):
            return self._scan(StoreAll(), *inputs)

        run.__name__ = name_of(f)  # for the message if it has no reverse mode
        self._outputs = jax.eval_shape(run, *self._inputs)
        rows = list_residuals("rx.plan", run, self._inputs)
        stacked = [row.bytes for row in rows if row.kind == "intermediate" and row.length >= self.n]
        self.state_bytes = tree_bytes(self._inputs[1])
        self.tape_bytes = sum(stacked) // max(self.n, 1)
        self._captured_bytes = tree_bytes(list(filter(inexact, self._inputs[0])))
        self._x_bytes = tree_bytes(self._inputs[2]) // max(self.n, 1)
        self._y_bytes = tree_bytes(self._outputs[1]) // max(self.n, 1)
        self._fixed_bytes = rows.extra_bytes - sum(stacked)

    @property
    def programs_left(self) -> int:
        """Count the programs that may still be compiled."""
        return _MOST_PROGRAMS - len(self.measured)

    def usual(self) -> list[Schedule]:
        """Give the candidates that do not depend on the memory."""
        n = self.n
        fewest = [
            Binomial(next(s for s in range(1, n + 2) if math.comb(s + r, r) >= n))
            for r in (2, 3, 4)
        ]
        return [StoreAll(), EveryStep(), Nested(levels=2), Nested(levels=3), *fewest]

    def work(self, schedule: Schedule) -> int:
        """Count evaluations of the step."""
        return schedule.evaluations(self.n)

    def predicted(self, schedule: Schedule) -> int:
        """Predict temporary and constant bytes from what the schedule holds.

        Beside that, a state and the gradient of the captured arrays are at work. What else there is
        was seen on CPU: see the comments.
        """
        n, (states, tapes) = self.n, schedule.stored(self.n)
        size = self._fixed_bytes + self._captured_bytes
        size += (states + 1) * self.state_bytes + tapes * self.tape_bytes
        if isinstance(schedule, Binomial):
            size += self.state_bytes  # the last state has a slot of its own
            size += 4 * states + 4 * n  # positions of the snapshots; table
        elif isinstance(schedule, Nested):
            size += pieces(schedule, n, self._x_bytes, self._y_bytes)
            radices = schedule.blocks(n)
            if n % math.prod(radices[1:]):  # gradients of two parts, added up
                size += len(radices) * self._captured_bytes
        return size

    def needs(self, schedule: Schedule) -> int:
        """Measure temporary and constant bytes."""
        if schedule not in self.measured:
            self.measured[schedule] = self._measure(schedule)
        return self.measured[schedule]

    def candidate(self, schedule: Schedule) -> Candidate:
        """Put together what is known of a schedule."""
        states, tapes = schedule.stored(self.n)
        return Candidate(
            schedule=schedule,
            states=states,
            tapes=tapes,
            evaluations=self.work(schedule),
            time_ratio=(self.work(schedule) / max(self.n, 1) + _PULLBACK) / (1 + _PULLBACK),
            predicted_bytes=self.predicted(schedule),
            measured_bytes=self.measured.get(schedule),
            modes=self._modes(schedule),
        )

    def _modes(self, schedule):
        if isinstance(schedule, Binomial) and not self.repeatable:
            return ()
        # The recomputation of jax.checkpoint is itself taped by a second reverse mode.
        return _MODES[:-1] if isinstance(schedule, EveryStep | Nested) else _MODES

    def _scan(self, schedule, consts, carry, xs):
        def step(carry, x):
            return self._step(consts, carry, x)

        return scan(step, carry, xs, self.n, schedule=schedule)

    def _measure(self, schedule):
        def gradient(inputs, cotangents):
            leaves, tree = jax.tree.flatten(inputs)

            def run(chosen):
                new = iter(chosen)
                mixed = [next(new) if inexact(leaf) else leaf for leaf in leaves]
                carry, ys = self._scan(schedule, *jax.tree.unflatten(tree, mixed))
                return list(filter(inexact, [*carry, *ys])), ys

            _, pullback, ys = jax.vjp(run, list(filter(inexact, leaves)), has_aux=True)
            return ys, pullback(cotangents)

        cotangents = list(filter(inexact, jax.tree.leaves(self._outputs)))
        return measure(gradient, self._inputs, cotangents).working_bytes


def _default(call: Captured) -> Schedule:
    """Find what :func:`rematax.scan` takes for the derivative along all inputs that have one."""
    loop = Loop.of(call, None)
    given = Parts(*(tuple(map(has_tangent, part)) for part in loop.types))
    schedule = decided(loop, given).schedule
    return StoreAll() if schedule is None else schedule


def _as_it_is(f, init, xs):
    """Restate a step on lists of leaves without tracing it."""
    trees = jax.tree.structure(init), jax.tree.structure(xs)

    def step(consts, carry, x):
        out = f(*map(jax.tree.unflatten, trees, (carry, x)))
        return tuple(map(jax.tree.leaves, out))

    return step


def _is_traced(leaf: Any) -> bool:
    return isinstance(leaf, jax.core.Tracer)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)


def _written(schedule: Schedule) -> str:
    return f"rx.{schedule!r}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
