"""The advice: the search among the adjoints, and what a person sees of it."""

from __future__ import annotations

import html
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Never

import jax

from .._measure import measure
from .._search import Search
from .._sizes import format_bytes, format_fit, parse_limit
from .._tables import lines_html, table_html, table_text
from . import _online
from ._arguments import Arguments
from ._backsolve import CLOSE, Verdict, judge
from ._options import Option, Options
from ._solve import Mode, Program, Solve, refusals_of_diffrax

PyTree = Any

_MOST_MEASURED = 5  # with the solve itself six programs
_HEAD = ("  adjoint", "max_steps", "predicted", "measured", "runs/step", "passed over for")
_WHAT = {"reverse": "gradient", "forward": "derivative", "hvp": "Hessian-vector product"}


@dataclass(frozen=True)
class Candidate:
    """One adjoint in an :class:`Advice`, for a bound on the number of steps. Sizes in bytes.

    Attributes:
        adjoint: The adjoint, as :func:`diffrax.diffeqsolve` takes it.
        scan_kind: The ``scan_kind`` that the solver has to be given with it; empty for the solver
            as it is.
        max_steps: The bound that goes with it.
        checkpoints: States that it keeps, or ``None`` for an adjoint that has no such number.
        evaluations: How often a step of the solver runs in one value and gradient, all steps
            together. For ``ForwardMode``: in one value and derivative along one direction.
        predicted_bytes: Temporary and constant bytes, as predicted before this one was measured,
            from what was measured then. It decides what is compiled, and nothing else.
        measured_bytes: The same, as the compiler plans them; ``None`` if it was not compiled.
        passed_over_for: Why it was not chosen; empty for the one that was.
    """

    adjoint: Any
    scan_kind: str
    max_steps: int
    checkpoints: int | None
    evaluations: int
    predicted_bytes: int
    measured_bytes: int | None
    passed_over_for: str


@dataclass(frozen=True)
class Advice:
    """Which adjoint fits the memory, and what others would need; made by :func:`advise`.

    Shown as a table in a terminal and in a notebook, the chosen adjoint marked by ``*``, with the
    arguments to paste and a word on ``BacksolveAdjoint``.

    Attributes:
        adjoint: The adjoint to pass to :func:`diffrax.diffeqsolve`.
        solver: The solver to pass with it: the one that was given, or the same with another
            ``scan_kind``, which changes how the stages of a step are looped over, and no number.
        max_steps: The bound on the number of steps to pass with it.
        mode: What was measured: ``"reverse"``, ``"forward"`` or ``"hvp"``.
        memory_bytes: The limit for temporary and constant bytes.
        accepted: Steps of the solve that were accepted; of a batch, in the example with the most
            steps.
        rejected: Steps that were rejected; a gradient goes back through these as well.
        state_bytes: Bytes of ``y0``, of a whole batch.
        kept_bytes: Bytes of one checkpoint: the state, and what solver and controller carry along.
        backsolve_error: The relative error of the gradient by ``BacksolveAdjoint``, with the same
            solver and controller, when it was tried here and compared with that by
            :attr:`adjoint`. ``inf`` if it failed; ``None`` if it was not tried.
        backsolve: The same in words, or why it was not tried.
        candidates: All adjoints that were considered, those with the least work first.
        line: The arguments to paste.
        backend: What it was measured for: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
    """

    adjoint: Any
    solver: Any
    max_steps: int
    mode: Mode
    memory_bytes: int
    accepted: int
    rejected: int
    state_bytes: int
    kept_bytes: int
    backsolve_error: float | None
    backsolve: str
    candidates: tuple[Candidate, ...]
    line: str
    backend: str

    @property
    def steps(self) -> int:
        """Steps of the solve, accepted and rejected."""
        return self.accepted + self.rejected

    @property
    def chosen(self) -> Candidate:
        """The candidate with :attr:`adjoint` and :attr:`max_steps`."""
        return next(each for each in self.candidates if not each.passed_over_for)

    @property
    def backsolve_close(self) -> bool | None:
        """Whether the gradient by ``BacksolveAdjoint`` was within 1 % of that by :attr:`adjoint`.

        ``None`` if it was not tried.
        """
        return None if self.backsolve_error is None else self.backsolve_error <= CLOSE

    def _summary(self) -> str:
        return (
            f"{_written(self.adjoint)} fits the {_WHAT[self.mode]} of {self.accepted} + "
            f"{self.rejected} steps (accepted + rejected) into {format_bytes(self.memory_bytes)} "
            f"on {self.backend} (state {format_bytes(self.state_bytes)}, checkpoint "
            f"{format_bytes(self.kept_bytes)})"
        )

    def _table(self) -> Iterator[tuple[str, ...]]:
        for each in self.candidates:
            mark = " " if each.passed_over_for else "*"
            kind = f", scan_kind={each.scan_kind!r}" if each.scan_kind else ""
            yield (
                f"{mark} {each.adjoint!r}{kind}",
                str(each.max_steps),
                format_bytes(each.predicted_bytes),
                format_fit(each.measured_bytes, self.memory_bytes),
                f"{each.evaluations / max(self.steps, 1):.2f}",
                each.passed_over_for,
            )

    def __repr__(self) -> str:
        table = table_text(_HEAD, self._table())
        return "\n".join([self._summary(), table, self.line, self.backsolve])

    def _repr_html_(self) -> str:
        table = table_html(self._summary(), _HEAD, self._table(), "advice")
        line = f"<pre><code>{html.escape(self.line)}</code></pre>"
        return f"{table}{line}{lines_html([self.backsolve])}"


def advise(
    terms: Any,
    solver: Any,
    t0: Any,
    t1: Any,
    dt0: Any,
    y0: PyTree,
    args: PyTree = None,
    *,
    memory: int | str,
    mode: Mode = "reverse",
    in_axes: Any = None,
    saveat: Any = None,
    stepsize_controller: Any = None,
    max_steps: int = 4096,
    **others: Never,
) -> Advice:
    r"""Find the adjoint with which the derivative of a diffrax solve fits the memory.

    The solve runs once. Then what you ask for, its derivative with respect to ``y0`` and the arrays
    in ``args`` and ``terms``, is compiled, and not run, for a few adjoints: at most six programs in
    all, the solve being one. Of those whose temporary and constant bytes are within ``memory``, the
    one under which a step runs least often is chosen. Predictions say what is compiled next, and
    nothing is chosen or refused by them. That work is counted and not timed: it leaves out what
    moving stored states costs, and the stages of a step.

    What any gradient needs whatever the adjoint is not part of ``memory``: the arguments, what
    ``saveat`` asks for, and the gradients. Arrays that the vector field closes over count as
    constants. Working on what ``SaveAt(steps=True)`` or ``dense=True`` reserve takes memory, too.

    The advised ``max_steps`` is half as many again as the steps that were taken, accepted and
    rejected, because parameters on the way of an optimiser may need more; for steps of fixed length
    it is one more. Where a solve needs more than that diffrax raises an error: ask again then.

    In reverse mode it also says what ``BacksolveAdjoint`` is worth here. The gradient is computed
    by it, with the same solver and controller and at most ``max_steps`` steps, and by the advised
    adjoint, and the two are compared. That costs one more program, one run of each gradient, and no
    more than ``memory``: where ``BacksolveAdjoint`` needs more, it is not run. The loss is half the
    squared distance of what ``saveat`` asks for from numbers between -1 and 1, so a loss of yours
    that looks at a small part of the solution may fare worse.

    Args:
        terms: As for :func:`diffrax.diffeqsolve`: an ``ODETerm``, or several in a tree or a
            ``MultiTerm``. Parameters to differentiate belong in ``args``, or in a module that is
            the vector field.
        solver: A solver of diffrax.
        t0: Start of the solve, in the unit of time of ``terms``.
        t1: Its end.
        dt0: Length of the first step, or ``None`` to let the controller choose.
        y0: The state at ``t0``: pytree of arrays.
        args: What is passed on to the vector field; what is no array in it stays as it is.
        memory: Limit for temporary and constant bytes: a number of bytes, or text such as
            ``"500 MB"`` or ``"2 GiB"``.
        mode: What you need, and what is measured: ``"reverse"`` for the value and gradient;
            ``"forward"`` for ``jvp`` and ``jacfwd``, along one direction; ``"hvp"`` for a product
            of the Hessian with one direction, ``jax.jvp(jax.grad(loss), ...)``. ``jax.hessian``
            takes all directions at once, with the bytes of all. ``jax.grad`` of ``jax.grad`` needs
            ``DirectAdjoint()`` with ``scan_kind="bounded"``, and is not measured.
        in_axes: For a batch, solved by ``jax.vmap`` over ``y0`` and ``args``: as ``jax.vmap``'s
            for ``(y0, args)``, the axis of the batch or ``None`` for no batch. ``(0, None)`` is a
            batch of starts, ``(None, 0)`` one of parameters. Give the whole batch for ``y0`` and
            ``args`` then. The gradient of what they share is summed over the batch.
        saveat: What the loss needs of the solution, a ``SaveAt``. Default: the end.
        stepsize_controller: As for :func:`diffrax.diffeqsolve`. Default: steps of fixed length.
        max_steps: Bound on the solves that are run for the advice. Large values cost nothing
            unless a solve needs them.
        **others: Nothing: other arguments of :func:`diffrax.diffeqsolve` are refused with a word
            on what to do.

    Returns:
        The advice: its ``adjoint``, ``max_steps`` and ``solver`` are to be passed on to
        :func:`diffrax.diffeqsolve`.

    Raises:
        TypeError: An argument is not what diffrax takes, a term is no ``ODETerm`` (stochastic and
            controlled equations were not tried), or an argument is traced.
        ValueError: No adjoint fits; the message says which of those compiled comes closest, and
            what it needs. Or the solve failed, stopped at ``max_steps``, or gave numbers that are
            not finite.
        ImportError: There is no diffrax.

    References:
        P. Stumm and A. Walther (2010), "New Algorithms for Optimal Online Checkpointing", SIAM
        Journal on Scientific Computing 32(2):836-854.

        P. Kidger (2021), "On Neural Differential Equations", doctoral thesis, University of Oxford,
        chapter 5: backpropagation through a solver, and its alternatives.

    Example:
        A thousand values that decay. Solved backwards, they go elsewhere.

        >>> import diffrax
        >>> import jax.numpy as jnp
        >>> from rematax import adjoints
        >>> problem = diffrax.ODETerm(lambda t, y, k: -k * y), diffrax.Heun(), 0.0, 20.0, 0.1
        >>> found = adjoints.advise(*problem, jnp.ones(1000), jnp.array(1.0), memory="5 MB",
        ...     stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6))
        >>> found.chosen.measured_bytes <= 5_000_000
        True
        >>> found.steps < found.max_steps
        True
        >>> found.backsolve_close
        False
    """
    limit = parse_limit(memory, "adjoints.advise")
    given = Arguments.checked(
        terms, solver, (t0, t1, dt0), y0, args, mode, in_axes, saveat, stepsize_controller,
        max_steps, others,
    )  # fmt: skip
    solve = Solve(given)
    options = Options(solve, mode)
    programs: dict[Option, Program] = {}

    def needs(option: Option) -> int:
        solver = options.solver(option)
        programs[option] = solve.derivative(option.adjoint, solver, option.max_steps, mode)
        program, values = programs[option]
        with refusals_of_diffrax(f"this solve has no {_WHAT[mode]} by {option.adjoint!r}"):
            return measure(program, *values).working_bytes

    search = Search(
        options.alone, options.family, limit=limit, programs=_MOST_MEASURED,
        work=options.work, held=options.held, measure=needs,
    )  # fmt: skip
    chosen = search.best()
    if chosen is None:
        raise ValueError(_nothing_fits(solve, options, search, mode))
    if mode == "reverse":
        verdict = judge(solve, programs[chosen], limit)
    else:
        verdict = Verdict(None, "BacksolveAdjoint has no forward mode, and no second derivatives.")
    line = f"adjoint={_written(chosen.adjoint)}, max_steps={chosen.max_steps}"
    if chosen.stages is not None:
        line += f", solver={_solver_written(options.solver(chosen))}"
    return Advice(
        adjoint=chosen.adjoint,
        solver=options.solver(chosen),
        max_steps=chosen.max_steps,
        mode=mode,
        memory_bytes=limit,
        accepted=solve.accepted,
        rejected=solve.steps - solve.accepted,
        state_bytes=solve.state_bytes,
        kept_bytes=solve.kept_bytes,
        backsolve_error=verdict.error,
        backsolve=verdict.sentence,
        candidates=_candidates(chosen, options, search),
        line=line,
        backend=jax.default_backend(),
    )


def evaluations(steps: int, checkpoints: int) -> int:
    """Count how often a step runs in one value and gradient by ``RecursiveCheckpointAdjoint``.

    Each step runs once on the way there and once on the way back; what is added are the steps that
    lead there from a checkpoint. With as many checkpoints as steps each step runs twice. With
    fewer, but with ``(checkpoints + 1) * (checkpoints + 2) > 2 * steps``, it runs three times at
    most. Below that more checkpoints may cost *more* runs: which states to keep is decided on the
    way, without knowing where the solve ends, and some numbers happen to suit the end better.

    Args:
        steps: Steps that the solver takes, accepted and rejected.
        checkpoints: States that the adjoint keeps.

    Returns:
        Evaluations of the step, all steps together.

    Raises:
        TypeError: They are no whole numbers.
        ValueError: There are fewer than no steps, or no checkpoint.

    References:
        P. Stumm and A. Walther (2010), "New Algorithms for Optimal Online Checkpointing", SIAM
        Journal on Scientific Computing 32(2):836-854, algorithm 1.

        Q. Wang, P. Moin and G. Iaccarino (2009), "Minimal Repetition Dynamic Checkpointing
        Algorithm for Unsteady Adjoint Calculation", SIAM Journal on Scientific Computing
        31(4):2549-2567.

    Example:
        >>> from rematax import adjoints
        >>> adjoints.evaluations(1000, 1000)
        2000
        >>> adjoints.evaluations(1000, 31) < adjoints.evaluations(1000, 42)
        True
    """
    steps, checkpoints = operator.index(steps), operator.index(checkpoints)
    if steps < 0 or checkpoints < 1:
        raise ValueError(
            "adjoints.evaluations: there must be no fewer than 0 steps and 1 checkpoint, not "
            f"{steps} and {checkpoints}."
        )
    return _online.evaluations(steps, checkpoints)


def _candidates(chosen: Option, options: Options, search: Search[Option]) -> tuple[Candidate, ...]:
    """List what was offered or measured, and what diffrax does by itself."""
    default = [] if options.default is None else [options.default]
    rows = [
        Candidate(
            adjoint=each.adjoint,
            scan_kind=each.stages or "",
            max_steps=each.max_steps,
            checkpoints=options.checkpoints(each),
            evaluations=options.work(each),
            predicted_bytes=search.predicted(each),
            measured_bytes=search.measured.get(each),
            passed_over_for=_reason(each, chosen, options, search),
        )
        for each in dict.fromkeys([*options.alone, *search.measured, *default])
    ]
    return tuple(
        sorted(rows, key=lambda row: (row.evaluations, row.measured_bytes or row.predicted_bytes))
    )


def _reason(each: Option, chosen: Option, options: Options, search: Search[Option]) -> str:
    if each == chosen:
        return ""
    if each == options.default:
        return "not compiled: diffrax's default"
    size, more = search.measured.get(each), options.work(each) - options.work(chosen)
    runs = "more runs" if more > 0 else "as many runs"
    if size is not None:
        return "too much" if size > search.limit else runs if more else "as many runs, more bytes"
    if more >= 0:
        return f"not compiled: {runs}"
    if search.programs_left:
        return "not compiled: predicted to need too much"
    return "not compiled: enough programs were"


def _nothing_fits(solve: Solve, options: Options, search: Search[Option], mode: Mode) -> str:
    smallest = search.smallest
    need = search.needs(smallest)
    with_solver = ""
    if smallest.stages is not None:
        with_solver = f" with solver={_solver_written(options.solver(smallest))}"
    return (
        f"adjoints.advise: no adjoint fits the {_WHAT[mode]} of {solve.steps} steps into "
        f"{format_bytes(search.limit)}; the smallest of {len(search.measured)} that were compiled, "
        f"{_written(smallest.adjoint)}{with_solver}, needs {format_bytes(need)} ({need} bytes), so "
        f"allow memory={need}, or make the state smaller, by a narrower dtype or by "
        "sharding it."
    )


def _written(adjoint: Any) -> str:
    return f"diffrax.{adjoint!r}"


def _solver_written(solver: Any) -> str:
    """Write a solver with another ``scan_kind`` so that it can be pasted."""
    name, kind = type(solver).__name__, f"scan_kind={solver.scan_kind!r}"
    if repr(solver) == f"{name}({kind})" and type(solver).__module__.startswith("diffrax."):
        return f"diffrax.{solver!r}"
    return f"dataclasses.replace(solver, {kind})"
