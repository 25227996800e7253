r"""Choose the schedule that fits the memory, before anything runs.

What a schedule holds is known exactly: so many states, so many tapes (see
:mod:`rematax._schedules`). How many bytes that makes is predicted from the state and from the tape
that autodiff asks for (see :func:`rematax.residuals`), and how many the compiler really allocates
is measured (see :func:`rematax.measure`). Predictions decide what is compiled next; only what was
measured is chosen or refused (see :mod:`rematax._search`). Nothing is run, and no array is made,
unless times are asked for.

The work of a schedule is its evaluations and a pullback for each step. With :math:`E` evaluations
for :math:`n` steps, and a pullback that costs :math:`\rho` steps, it is
:math:`(E/n + \rho)/(1 + \rho)` times that of storing everything. That counts arithmetic. Moving the
stored bytes takes time as well, and often most of it, so the fastest schedule is found by running a
few.

References:
    A. Griewank and A. Walther (2000), "Algorithm 799: revolve", ACM Transactions on Mathematical
    Software 26(1):19-45.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import jax

from ._default import SMALL_STATE
from ._gradient import Gradient
from ._measure import Measured, format_seconds, timed
from ._schedules import Binomial, EveryStep, Nested, Schedule, StoreAll
from ._search import Family, Search
from ._sizes import format_bytes, format_fit, parse_limit
from ._tables import lines_html, table_html, table_text
from ._tracing import is_array, is_number, misfit, name_of

PyTree = Any

_PROGRAMS, _TIMED_PROGRAMS, _FINALISTS = 6, 8, 3
_PULLBACK = 2.0  # what a pullback costs, in steps, where nothing is known of the step
_TABLE = 2.0  # how much longer than others a step of Binomial takes where the state is tiny, seen
_MODES = ("reverse", "forward", "forward over reverse", "reverse over reverse")
_ASKED = {"reverse": "gradient", "hvp": "Hessian-vector product"}


@dataclass(frozen=True)
class Candidate:
    """One schedule in a :class:`Plan`. Sizes in bytes.

    Attributes:
        schedule: The schedule.
        states: Carries that it holds at the same time, at most.
        tapes: Sets of residuals of one step that it holds at the same time, at most.
        evaluations: Calls of the step in one value and gradient, all steps together.
        work_ratio: Arithmetic over that of storing everything, counted from evaluations and
            pullbacks: it leaves out what moving stored bytes costs.
        predicted_bytes: Temporary and constant bytes, as predicted from what was measured before.
        measured_bytes: The same, as the compiler plans them; ``None`` if it was not asked.
        seconds: Median time of a run, ``None`` if it was not timed.
        modes: The ways of differentiating that keep to the schedule, among ``"reverse"``,
            ``"forward"`` (which includes reverse over forward), ``"forward over reverse"`` and
            ``"reverse over reverse"``. Only the :attr:`Plan.mode` asked for was measured; other
            derivatives may hold more. Reverse over reverse works with ``EveryStep`` and ``Nested``
            too, but holds what a schedule of one level less would.
    """

    schedule: Schedule
    states: int
    tapes: int
    evaluations: int
    work_ratio: float
    predicted_bytes: int
    measured_bytes: int | None
    seconds: float | None
    modes: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Which schedule fits the memory, and what each would cost; made by :func:`plan`.

    Shown as a table in a terminal and in a notebook, the chosen schedule marked by ``*``, with the
    line to paste.

    Attributes:
        schedule: The schedule with the least work among those measured to fit; if times were asked
            for, the fastest of those that were run.
        default: What :func:`rematax.scan` takes where it is given no schedule.
        memory_bytes: The limit for temporary and constant bytes.
        length: Number of steps.
        state_bytes: Bytes of one carry, of all examples where there is a batch.
        tape_bytes: Bytes of the residuals of one step, without what is there anyway.
        captured_bytes: Bytes of the arrays that the step closes over, which come on top.
        candidates: All schedules that were considered, those with the least work first.
        line: The call to paste.
        mode: What was measured: ``"reverse"`` or ``"hvp"``.
        backend: What it was measured for: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
    """

    schedule: Schedule
    default: Schedule
    memory_bytes: int
    length: int
    state_bytes: int
    tape_bytes: int
    captured_bytes: int
    candidates: tuple[Candidate, ...]
    line: str
    mode: str
    backend: str

    @property
    def chosen(self) -> Candidate:
        """The candidate with :attr:`schedule`."""
        return next(c for c in self.candidates if c.schedule == self.schedule)

    def _summary(self) -> str:
        return (
            f"{_written(self.schedule)} fits the {_ASKED[self.mode]} of "
            f"{_count(self.length, 'step')} into {format_bytes(self.memory_bytes)} on "
            f"{self.backend}\n(state {format_bytes(self.state_bytes)}, "
            f"tape {format_bytes(self.tape_bytes)})"
        )

    @property
    def _timed(self) -> bool:
        return self.chosen.seconds is not None

    def _head(self) -> tuple[str, ...]:
        time = ("time",) if self._timed else ()
        head = ("  schedule", "states + tapes", "predicted", "measured", "runs/step", "arithmetic")
        return (*head, *time)

    def _table(self) -> Iterator[tuple[str, ...]]:
        for each in self.candidates:
            time = "" if each.seconds is None else format_seconds(each.seconds)
            yield (
                f"{'*' if each.schedule == self.schedule else ' '} {each.schedule!r}",
                f"{each.states} + {each.tapes}",
                format_bytes(each.predicted_bytes),
                format_fit(each.measured_bytes, self.memory_bytes),
                f"{each.evaluations / max(self.length, 1):.2f}",
                f"{each.work_ratio:.2f}x",
                *((time,) if self._timed else ()),
            )

    def _notes(self) -> list[str]:
        notes = ["Arithmetic is counted from runs and pullbacks"]
        notes[0] += (
            "." if self._timed else "; time=True runs those that fit, and takes the fastest."
        )
        if self.chosen.modes == _MODES[:-1]:
            notes.append("In the gradient of a gradient it holds what one level less would.")
        if self.captured_bytes:
            size = format_bytes(self.captured_bytes)
            notes.append(f"The arrays that the step closes over, {size}, come on top.")
        if not any(isinstance(each.schedule, Binomial) for each in self.candidates):
            notes.append("Binomial must not repeat a step whose effects have to happen in order.")
        return [*notes, f"Without a schedule, rx.scan takes {_written(self.default)} here."]

    def __repr__(self) -> str:
        table = table_text(self._head(), self._table())
        return "\n".join([self._summary(), table, *self._notes(), self.line])

    def _repr_html_(self) -> str:
        table = table_html(self._summary(), self._head(), self._table(), "plan")
        line = f"<pre><code>{html.escape(self.line)}</code></pre>"
        return f"{table}{lines_html(self._notes())}{line}"


def plan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    *,
    memory: int | str,
    mode: Literal["reverse", "hvp"] = "reverse",
    in_axes: Any = None,
    time: bool = False,
) -> Plan:
    r"""Find the schedule with which the gradient of a scan fits the memory, at the least work.

    The gradient of :func:`rematax.scan` with respect to ``init``, ``xs`` and the arrays that ``f``
    closes over is compiled, and not run, for a few schedules: at most six programs. Of those whose
    temporary and constant bytes are within ``memory``, the one with the least work is chosen: the
    fewest evaluations, since each schedule pulls back through each step once. Where the state is
    under a kilobyte, an evaluation of :class:`rematax.Binomial` counts twice, since looking up the
    schedule then takes as long as the step.

    Candidates are :class:`rematax.StoreAll`, :class:`rematax.EveryStep`, :class:`rematax.Nested`
    of two and three levels, with ``tapes=True`` as well where the tape of a step is no more than
    two states, and :class:`rematax.Binomial` with as many snapshots as fit, and with
    the fewest for which no step is run more than three, four and five times.

    Predictions only order what is compiled, and each measured size corrects the others. On CPU
    they were within a tenth of what was measured (a third for ``Nested``), three states, half a
    tape and 1 kB, unless the compiler fused values away or devices shared an array. Of the
    snapshots that fit, at most 3% are given away, as far as the programs last.

    What any gradient needs whatever the schedule is not part of ``memory``: ``init``, ``xs``, the
    arrays that ``f`` closes over, ``ys``, their cotangents, and the gradients. The closed-over ones
    are arguments here, where they are differentiated; in your program they may be constants, which
    :func:`rematax.measure` counts. Wrap a table that you do not differentiate in
    :func:`jax.lax.stop_gradient`, inside ``f``: no room is made for its gradient then. A loss
    that keeps ``ys`` and their cotangents needs that much more.

    Args:
        f: The step, as for :func:`rematax.scan`.
        init: The first carry: pytree of arrays, or of :class:`jax.ShapeDtypeStruct`, which take no
            memory.
        xs: Pytree of arrays or :class:`jax.ShapeDtypeStruct` with a common leading axis.
        length: Number of steps, static. Default: the leading axis of ``xs``.
        memory: Limit for temporary and constant bytes: a number of bytes, or text such as
            ``"500 MB"`` or ``"2 GiB"``. On several devices it is the limit of each.
        mode: What you will compute: ``"reverse"`` for gradients, ``"hvp"`` for Hessian-vector
            products, the ``jvp`` of a ``grad``. Forward mode keeps no snapshots, so it needs no
            plan.
        in_axes: For a batch, the axes of ``init`` and ``xs`` that you map over, as in
            :func:`jax.vmap`: one for both, or a pair. Then the gradient of
            ``jax.vmap(lambda init, xs: rx.scan(f, init, xs), in_axes)`` is what must fit; what
            ``f`` closes over is shared. Where the batch axis of ``xs`` comes right after that of
            the steps, ``xs`` need not be copied. Default: no batch.
        time: Also run the gradient, with at most three schedules that fit, in turns, and choose
            the fastest by the median of the times. Then up to eight programs are compiled, ``init``
            and ``xs`` must be arrays, and the memory is really used.

    Returns:
        The plan: its ``schedule``, its ``line`` to paste, and a table of the candidates.

    Raises:
        TypeError: As :func:`rematax.scan` does, or ``memory`` is neither a whole number nor text,
            or ``in_axes`` no axes.
        ValueError: None of the schedules that were compiled fits; the message says which comes
            closest, and what it needs. Or ``memory`` is no size or not positive, there is no such
            ``mode``, ``f`` has no reverse mode, or the arguments do not fit together.

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
    _check(f, init, xs, mode, time)
    gradient = Gradient(f, init, xs, length, mode=mode, in_axes=in_axes, is_run=time)
    found = _Planned(gradient, limit)
    chosen = found.fastest() if time else found.cheapest()
    name = name_of(f) if name_of(f).isidentifier() else "f"
    steps = "xs" if jax.tree.leaves(xs) else f"length={gradient.n}"
    return Plan(
        schedule=chosen,
        default=gradient.default,
        memory_bytes=limit,
        length=gradient.n,
        state_bytes=gradient.state_bytes,
        tape_bytes=gradient.tape_bytes,
        captured_bytes=gradient.captured_bytes,
        candidates=found.candidates(),
        line=f"rx.scan({name}, init, {steps}, schedule={_written(chosen)})",
        mode=mode,
        backend=jax.default_backend(),
    )


class _Planned:
    """The schedules of one gradient: what was compiled and run of them."""

    def __init__(self, gradient: Gradient, limit: int) -> None:
        n = gradient.n
        self._gradient = gradient
        self._programs: dict[Schedule, Measured] = {}
        self._seconds: dict[Schedule, float] = {}
        self._usual: list[Schedule] = [StoreAll(), EveryStep(), Nested(levels=2), Nested(levels=3)]
        if 0 < gradient.tape_bytes <= 2 * gradient.kept_bytes:
            self._usual[1:1] = [Nested(levels=2, tapes=True), Nested(levels=3, tapes=True)]
        family = Family[Schedule](
            most=n if gradient.repeatable else 0,
            member=Binomial,
            number=lambda schedule: getattr(schedule, "snapshots", None) or 0,
        )
        self._search = Search(
            self._usual,
            family,
            limit=limit,
            programs=_PROGRAMS,
            work=self._work,
            held=gradient.held,
            measure=self._needs,
        )

    def cheapest(self) -> Schedule:
        """Find the schedule with the least work that fits."""
        found = self._search.best()
        if found is None:
            self._refuse()
        return found

    def fastest(self) -> Schedule:
        """Find the fastest of a few schedules that fit."""
        self.cheapest()
        self._search.try_others(_TIMED_PROGRAMS)
        finalists = self._search.fitting[:_FINALISTS]
        costs = timed({repr(schedule): self._programs[schedule] for schedule in finalists})
        self._seconds = {schedule: costs[repr(schedule)].seconds or 0.0 for schedule in finalists}
        return min(finalists, key=self._seconds.__getitem__)

    def candidates(self) -> tuple[Candidate, ...]:
        """List the usual ones, the frontier of the family, and all that were measured."""
        n = self._gradient.n
        frontier = [
            Binomial(next(s for s in range(1, n + 2) if math.comb(s + r, r) >= n))
            for r in (2, 3, 4)
            if self._gradient.repeatable
        ]
        schedules = dict.fromkeys([*self._usual, *frontier, *self._search.measured])
        rows = map(self._candidate, schedules)
        size = lambda row: row.measured_bytes or row.predicted_bytes  # noqa: E731
        return tuple(sorted(rows, key=lambda row: (row.evaluations, size(row))))

    def _work(self, schedule: Schedule) -> float:
        tiny = isinstance(schedule, Binomial) and self._gradient.kept_bytes < SMALL_STATE
        return schedule.evaluations(self._gradient.n) * (_TABLE if tiny else 1)

    def _needs(self, schedule: Schedule) -> int:
        self._programs[schedule] = self._gradient.compiled(schedule)
        return self._programs[schedule].cost.working_bytes

    def _candidate(self, schedule: Schedule) -> Candidate:
        n = self._gradient.n
        states, tapes = schedule.stored(n)
        return Candidate(
            schedule=schedule,
            states=states,
            tapes=tapes,
            evaluations=schedule.evaluations(n),
            work_ratio=(schedule.evaluations(n) / max(n, 1) + _PULLBACK) / (1 + _PULLBACK),
            predicted_bytes=self._search.predicted(schedule),
            measured_bytes=self._search.measured.get(schedule),
            seconds=self._seconds.get(schedule),
            # The recomputation of jax.checkpoint is itself taped by a second reverse mode.
            modes=_MODES[:-1] if isinstance(schedule, EveryStep | Nested) else _MODES,
        )

    def _refuse(self) -> NoReturn:
        search, gradient = self._search, self._gradient
        smallest = search.smallest
        need = search.measured[smallest]
        raise ValueError(
            f"rx.plan: none of the {len(search.measured)} schedules that were compiled fits "
            f"{_count(gradient.n, 'step')} into {format_bytes(search.limit)}; the smallest, "
            f"{_written(smallest)}, needs {format_bytes(need)} "
            f"({need} bytes), so allow memory={need}, or make the state smaller "
            f"({format_bytes(gradient.state_bytes)} now), by a narrower dtype or by sharding it."
        )


def _check(f: Any, init: PyTree, xs: PyTree, mode: Any, time: Any) -> None:
    """Refuse what is no step or no way to measure, and types where arrays have to run."""
    if mode not in _ASKED:
        hint = "; forward mode keeps no snapshots, so it needs no plan" * (mode == "forward")
        raise ValueError(f"rx.plan: mode must be 'reverse' or 'hvp', not {mode!r}{hint}.")
    if not isinstance(time, bool):
        raise TypeError(f"rx.plan: time must be True or False, not {time!r}.")
    if not callable(f):
        raise TypeError(f"rx.plan: f must be a function of (carry, x), not {f!r:.60}.")
    if why := misfit(f, init, xs):
        raise TypeError(f"rx.plan: f must be a function of (carry, x): {why}.")
    for path, leaf in jax.tree_util.tree_leaves_with_path(init):
        if not (is_array(leaf) or is_number(leaf)):
            raise TypeError(
                f"rx.plan: init{jax.tree_util.keystr(path)} must be an array, not {leaf!r:.40}; a "
                "carry holds arrays only, so let f close over the rest."
            )
    for leaf in jax.tree.leaves((init, xs)) if time else ():
        if isinstance(leaf, jax.ShapeDtypeStruct | jax.core.Tracer):
            raise TypeError(
                f"rx.plan: time=True runs the gradient, so init and xs must be arrays, not a "
                f"{type(leaf).__name__}; leave time out, or make them, by jnp.zeros for one."
            )


def _written(schedule: Schedule) -> str:
    return f"rx.{schedule!r}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
