r"""Choose the adjoint of a diffrax solve that fits the memory.

An adaptive solve finds its number of steps on its way, so its gradient cannot be planned from the
program alone, as :func:`rematax.plan` does it: here the solve runs once. Its steps, accepted and
rejected alike, are what the gradient goes back through. How often each then runs is counted exactly
for every number of checkpoints (see :mod:`rematax._online`), and what the compiler allocates is
measured (see :func:`rematax.measure`).

Three adjoints of diffrax differentiate the steps that were taken.
``RecursiveCheckpointAdjoint`` keeps the state of some steps: with :math:`s \ge n` checkpoints each
of :math:`n` steps runs twice, with the fewest for which :math:`(s+1)(s+2) > 2n`, it runs
three times at most, and with fewer more often. ``DirectAdjoint`` is made of nested scans of
16 steps, checkpointed but for the innermost: with :math:`l` levels a step runs :math:`l` times, and
:math:`16 l` states and 16 tapes are held. ``ForwardMode`` keeps nothing.

``BacksolveAdjoint`` solves the equations backwards instead. Its gradient is that of another
solution: what decays forwards grows backwards, and the errors with it. So the solve is also run
from its end back to its start, to see how far it misses it.

Needs diffrax, which is imported when it is first used.

References:
    P. Kidger (2021), "On Neural Differential Equations", doctoral thesis, University of Oxford,
    chapter 5: backpropagation through a solver, and its alternatives.

    A. Gholami, K. Keutzer and G. Biros (2019), "ANODE: Unconditionally Accurate Memory-Efficient
    Gradients for Neural ODEs", IJCAI: solving backwards is unstable.
"""

from __future__ import annotations

import html
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from . import _online
from ._measure import measure
from ._sizes import format_bytes, format_fit, parse_limit, tree_bytes
from ._tables import table_html, table_text
from ._tracing import inexact, is_array, is_number

PyTree = Any

__all__ = ["Advice", "Candidate", "advise", "evaluations"]

_MOST_PROGRAMS = 6  # the solve itself is one of them
_SPARE = 1.5  # steps to allow for each step taken, where the solver chooses its steps
_FIXED_RTOL = 1e-3  # what solving backwards may miss the start by, where there are no tolerances
_HEAD = ("  adjoint", "max_steps", "predicted", "measured", "runs/step")
_SCALARS = 8 * 8  # times, counters and flags beside the state of each step, in bytes


@dataclass(frozen=True)
class Candidate:
    """One adjoint in an :class:`Advice`, for a bound on the number of steps. Sizes in bytes.

    Attributes:
        adjoint: The adjoint, as :func:`diffrax.diffeqsolve` takes it.
        max_steps: The bound that goes with it.
        checkpoints: States that it keeps, or ``None`` for an adjoint that has no such number.
        evaluations: How often a step of the solver runs in one value and gradient, all steps
            together. For ``ForwardMode``: in one value and derivative along one direction.
        predicted_bytes: Temporary and constant bytes of the gradient, as predicted from the
            checkpoints and, once one adjoint with checkpoints is measured, from what that one needs
            beside them; shown with ``>`` until then. ``None`` for adjoints without checkpoints.
        measured_bytes: The same, as the compiler plans them; ``None`` if it was not asked.
    """

    adjoint: Any
    max_steps: int
    checkpoints: int | None
    evaluations: int
    predicted_bytes: int | None
    measured_bytes: int | None


@dataclass(frozen=True)
class Advice:
    """Which adjoint fits the memory, and what others would need; made by :func:`advise`.

    Shown as a table in a terminal and in a notebook, the chosen adjoint marked by ``*``, with the
    arguments to paste and a word on ``BacksolveAdjoint``.

    Attributes:
        adjoint: The adjoint to pass to :func:`diffrax.diffeqsolve`.
        max_steps: The bound on the number of steps to pass with it.
        memory_bytes: The limit for temporary and constant bytes.
        accepted: Steps of the solve that were accepted.
        rejected: Steps that were rejected; a gradient goes back through these as well.
        state_bytes: Bytes of ``y0``.
        kept_bytes: Bytes of one checkpoint: the state, and what solver and controller carry along.
        reconstruction_error: How far solving backwards from the end misses ``y0``, as a root mean
            square in units of the controller's tolerances: ``atol + rtol * size``, where ``size``
            is the largest entry of the array at start and end. For steps of fixed length in units
            of a thousandth of ``size``. ``inf`` if the solver does not get back.
        allowed_error: What :attr:`reconstruction_error` may be if errors only add up: one for each
            step there and back; for steps of fixed length one.
        candidates: All adjoints that were considered, those with the least work first.
        line: The arguments to paste.
        backend: What it was measured for: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
    """

    adjoint: Any
    max_steps: int
    memory_bytes: int
    accepted: int
    rejected: int
    state_bytes: int
    kept_bytes: int
    reconstruction_error: float
    allowed_error: float
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
        mine = self.adjoint, self.max_steps
        return next(c for c in self.candidates if (c.adjoint, c.max_steps) == mine)

    @property
    def reversible(self) -> bool:
        """Whether solving backwards comes back to the start, as ``BacksolveAdjoint`` needs it."""
        return self.reconstruction_error <= self.allowed_error

    def _summary(self) -> str:
        return (
            f"{_written(self.adjoint)} fits {self.accepted} + {self.rejected} steps (accepted + "
            f"rejected) into {format_bytes(self.memory_bytes)} on {self.backend} (state "
            f"{format_bytes(self.state_bytes)}, checkpoint {format_bytes(self.kept_bytes)})"
        )

    def _backsolve(self) -> str:
        unit = "tolerances" if self.allowed_error > 1 else "thousandths of its size"
        missed = f"{self.reconstruction_error:.3g} {unit} (allowed: {self.allowed_error:.3g})"
        if self.reversible:
            return (
                f"Solved backwards, it comes back to its start within {missed}: a gradient by "
                "BacksolveAdjoint would be approximate, but not unstable."
            )
        return (
            f"Warning: solved backwards, it misses its start by {missed}: a gradient by "
            "BacksolveAdjoint would be wrong, without an error."
        )

    def _table(self) -> Iterator[tuple[str, ...]]:
        known = any(c.checkpoints and c.measured_bytes is not None for c in self.candidates)
        more = "" if known else "> "
        for each in self.candidates:
            predicted = each.predicted_bytes
            yield (
                f"{'*' if each is self.chosen else ' '} {each.adjoint!r}",
                str(each.max_steps),
                "" if predicted is None else more + format_bytes(predicted),
                format_fit(each.measured_bytes, self.memory_bytes),
                f"{each.evaluations / max(self.steps, 1):.2f}",
            )

    def __repr__(self) -> str:
        table = table_text(_HEAD, self._table())
        return "\n".join([self._summary(), table, self.line, self._backsolve()])

    def _repr_html_(self) -> str:
        table = table_html(self._summary(), _HEAD, self._table(), "advice")
        line = f"<pre><code>{html.escape(self.line)}</code></pre>"
        return f"{table}{line}<p>{html.escape(self._backsolve())}</p>"


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
    mode: Literal["reverse", "forward", "both"] = "reverse",
    saveat: Any = None,
    stepsize_controller: Any = None,
    max_steps: int = 4096,
) -> Advice:
    r"""Find the adjoint with which the gradient of a diffrax solve fits the memory.

    The solve runs once forwards, and once backwards from where it ended. Then its gradient with
    respect to ``y0`` and the arrays in ``args`` and ``terms`` is compiled, and not run, for a few
    adjoints: at most six programs in all, the solve being one. Of those whose temporary and
    constant bytes are within ``memory``, the one under which a step runs least often is chosen.
    Checkpoints are tried for all steps, and else as many as make none run more than three times,
    or fewer: between the two, each checkpoint takes memory and saves little.
    That is counted and not timed: it leaves out what moving stored states costs.

    What any gradient needs whatever the adjoint is not part of ``memory``: the arguments, what
    ``saveat`` asks for, and the gradients. Arrays that the vector field closes over count as
    constants. Working on what ``SaveAt(steps=True)`` or ``dense=True`` reserve takes memory, too.

    The advised ``max_steps`` is half as many again as the steps that were taken, accepted and
    rejected, because parameters on the way of an optimiser may need more; for steps of fixed length
    it is one more. Where a solve needs more than that diffrax raises an error: ask again then.

    Args:
        terms: As for :func:`diffrax.diffeqsolve`: an ``ODETerm``, or several in a tree or a
            ``MultiTerm``. Parameters to differentiate belong in ``args``.
        solver: A solver of diffrax.
        t0: Start of the solve, in the unit of time of ``terms``.
        t1: Its end.
        dt0: Length of the first step, or ``None`` to let the controller choose.
        y0: The state at ``t0``: pytree of arrays.
        args: What is passed on to the vector field.
        memory: Limit for temporary and constant bytes: a number of bytes, or text such as
            ``"500 MB"`` or ``"2 GiB"``.
        mode: What you need: ``"reverse"`` for gradients; ``"forward"`` for ``jvp`` and ``jacfwd``;
            ``"both"`` for Hessians and gradients of gradients too, which hold a few times as much
            as the gradient that is measured.
        saveat: What the loss needs of the solution, a ``SaveAt``. Default: the end.
        stepsize_controller: As for :func:`diffrax.diffeqsolve`. Default: steps of fixed length.
        max_steps: Bound on the two solves by which the advice is made. Large values cost nothing
            unless a solve needs them.

    Returns:
        The advice: its ``adjoint`` and ``max_steps`` are to be passed on to
        :func:`diffrax.diffeqsolve`.

    Raises:
        TypeError: An argument is not what diffrax takes, a term is no ``ODETerm`` (stochastic and
            controlled equations were not tried), or an argument is traced.
        ValueError: No adjoint fits; the message says which comes closest, and what it needs. Or the
            solve failed, stopped at ``max_steps``, or gave numbers that are not finite.
        ImportError: There is no diffrax.

    References:
        P. Stumm and A. Walther (2010), "New Algorithms for Optimal Online Checkpointing", SIAM
        Journal on Scientific Computing 32(2):836-854.

    Example:
        A thousand values that decay. The state goes back to where it came from only on paper.

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
        >>> found.reversible
        False
    """
    dfx = _diffrax()
    limit = parse_limit(memory, "adjoints.advise")
    if mode not in ("reverse", "forward", "both"):
        raise ValueError(
            f"adjoints.advise: mode is 'reverse', 'forward' or 'both', and not {mode!r}."
        )
    saveat = dfx.SaveAt(t1=True) if saveat is None else saveat
    controller = dfx.ConstantStepSize() if stepsize_controller is None else stepsize_controller
    _check(terms, solver, saveat, controller, max_steps)
    _check_values(y0, (terms, args, t0, t1, dt0))
    y0 = jax.tree.map(jnp.asarray, y0)
    solve = _Solve((terms, y0, args), solver, (t0, t1, dt0), saveat, controller, max_steps)
    gradients = _Gradients(solve, limit, mode)
    chosen = gradients.search()
    error, allowed = solve.reconstruction()
    return Advice(
        adjoint=chosen.adjoint,
        max_steps=chosen.max_steps,
        memory_bytes=limit,
        accepted=solve.accepted,
        rejected=solve.steps - solve.accepted,
        state_bytes=tree_bytes(y0),
        kept_bytes=solve.kept_bytes,
        reconstruction_error=error,
        allowed_error=allowed,
        candidates=gradients.candidates(),
        line=f"adjoint={_written(chosen.adjoint)}, max_steps={chosen.max_steps}",
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


class _Solve:
    """The solve to be differentiated, run once.

    Attributes:
        arrays: What the gradient is taken of: the inexact arrays of terms, ``y0`` and args.
        steps, accepted: Steps that were taken, and those of them that were accepted.
        allowed: Steps to allow for.
        kept_bytes: See :class:`Advice`.
        copied_bytes: What is kept twice of a checkpoint for a moment, where checkpoints get sorted.
    """

    def __init__(self, inputs, solver, times, saveat, controller, max_steps):
        self._dfx = _diffrax()
        self._solver, self._times, self._saveat = solver, times, saveat
        self._controller, self.most = controller, max_steps
        leaves, self._tree = jax.tree.flatten(inputs)
        self.arrays = [leaf for leaf in leaves if _inexact(leaf)]
        self._others = [None if _inexact(leaf) else leaf for leaf in leaves]
        self._start = inputs[1]
        self._program = jax.jit(self._there)
        end = self._program(self.arrays, self._start, *times)
        self._refuse_failure(end)
        self._end, stats, _, carried = end
        self.steps, self.accepted = int(stats["num_steps"]), int(stats["num_accepted_steps"])
        # Adding up the times may come out one step longer in another program.
        spare = _SPARE * self.steps if self._tolerances() else self.steps + 1
        self.allowed = max(math.ceil(spare), 1)
        self.kept_bytes = tree_bytes((self._start, carried)) + _SCALARS
        self.copied_bytes = max(map(tree_bytes, jax.tree.leaves((self._start, carried))))

    def _run(self, arrays, times, start=None, **options):
        left = iter(arrays)
        leaves = [next(left) if leaf is None else leaf for leaf in self._others]
        terms, y0, args = jax.tree.unflatten(self._tree, leaves)
        y0 = y0 if start is None else start
        options = {"stepsize_controller": self._controller, **options}
        return self._dfx.diffeqsolve(terms, self._solver, *times, y0, args, **options)

    def _there(self, arrays, y, *times):
        saveat = self._dfx.SaveAt(t1=True, solver_state=True, controller_state=True)
        solution = self._run(arrays, times, y, saveat=saveat, max_steps=self.most, throw=False)
        end = jax.tree.map(lambda a: a[0], solution.ys)
        carried = solution.solver_state, solution.controller_state
        return end, solution.stats, solution.result, carried

    def _refuse_failure(self, end):
        y, _, result, _ = end
        if bool(result == self._dfx.RESULTS.max_steps_reached):
            raise ValueError(
                f"adjoints.advise: the solve stopped after max_steps={self.most} steps, before t1: "
                "give a larger max_steps, which costs nothing here."
            )
        if not bool(result == self._dfx.RESULTS.successful):
            raise ValueError(f"adjoints.advise: the solve failed: {self._dfx.RESULTS[result]}")
        if not _finite(y):
            raise ValueError(
                "adjoints.advise: the solve ends in numbers that are not finite, so there is no "
                "gradient to advise on; look at y0, args and the vector field."
            )

    def _tolerances(self):
        """Give the relative and absolute tolerance, or None for steps of fixed length."""
        if isinstance(self._controller, self._dfx.ConstantStepSize):
            return None
        return float(self._controller.rtol), float(self._controller.atol)

    def reconstruction(self):
        """Solve backwards; give the error in units of the tolerances, and what it may be."""
        t0, t1, dt0 = self._times
        there = (t1, t0, None if dt0 is None else -dt0)
        back, stats, result, _ = self._program(self.arrays, self._end, *there)
        rtol, atol = self._tolerances() or (_FIXED_RTOL, 0.0)
        allowed = float(self.steps + stats["num_steps"]) if self._tolerances() else 1.0
        if not (bool(result == self._dfx.RESULTS.successful) and _finite(back)):
            return math.inf, allowed
        squares, count = 0.0, 0
        for a, b, end in zip(*map(jax.tree.leaves, (self._start, back, self._end)), strict=True):
            a, b, end = map(np.asarray, (a, b, end))
            tolerance = atol + rtol * max(abs(a).max(initial=0), abs(end).max(initial=0))
            missed = abs(b - a)
            # Nothing missed is no error even where the tolerance is nothing.
            squares += float(np.sum(np.square(missed[missed > 0] / tolerance)))
            count += a.size
        return math.sqrt(squares / count), allowed

    def gradient(self, adjoint, forward):
        """Give the function that is to be measured, and its arguments."""

        def run(arrays):
            options = {"adjoint": adjoint, "max_steps": self.allowed, "saveat": self._saveat}
            solution = self._run(arrays, self._times, **options)
            saved = jax.tree.leaves((solution.ys, solution.interpolation))
            return list(filter(_inexact, saved))

        def pulled_back(arrays):
            out, pullback = jax.vjp(run, arrays)
            return out, pullback(out)  # as large as any cotangents

        def pushed_forward(arrays, tangents):
            return jax.jvp(run, (arrays,), (tangents,))

        if forward:
            return pushed_forward, (self.arrays, self.arrays)
        return pulled_back, (self.arrays,)


class _Gradients:
    """The gradients of a solve by several adjoints; compiles as few as it takes."""

    def __init__(self, solve: _Solve, limit: int, mode: str) -> None:
        self._solve, self._limit, self._mode = solve, limit, mode
        dfx = _diffrax()
        self._recursive, self._direct = dfx.RecursiveCheckpointAdjoint, dfx.DirectAdjoint()
        self._forward = dfx.ForwardMode()
        self._measured: dict[Any, int] = {}
        self._work_bytes = 0  # what is needed beside checkpoints; known once something is measured

    def search(self) -> Candidate:
        """Find the adjoint that runs the fewest steps among those that fit."""
        for _ in range(_MOST_PROGRAMS - 2):  # the solve is one, the smallest may be another
            untried = [a for a in self._possible() if a not in self._measured]
            untried = [a for a in untried if (self._predicted(a) or 0) <= self._limit]
            if not untried:
                break
            cheapest = min(untried, key=self._evaluations)
            if self._needs(cheapest) <= self._limit:
                return self._candidate(cheapest)
        smallest = self._recursive(1) if self._mode == "reverse" else self._usual()[0]
        if self._needs(smallest) <= self._limit:
            return self._candidate(smallest)
        smallest = min(self._measured, key=self._needs)
        need = self._needs(smallest)
        raise ValueError(
            f"adjoints.advise: no adjoint fits the gradient of {self._solve.steps} steps into "
            f"{format_bytes(self._limit)}; the smallest, {_written(smallest)}, needs "
            f"{format_bytes(need)} ({need} bytes), so allow at least memory={need}, or make the "
            "state smaller, by a narrower dtype or by sharding it."
        )

    def candidates(self) -> tuple[Candidate, ...]:
        """List the usual ones, all that were measured, and what diffrax does by itself."""
        rows = list(map(self._candidate, dict.fromkeys([*self._usual(), *self._measured])))
        if self._mode == "reverse":
            rows.append(self._candidate(self._recursive(), self._solve.most))
        sizes = [c.measured_bytes or c.predicted_bytes or 0 for c in rows]
        order = sorted(range(len(rows)), key=lambda i: (rows[i].evaluations, sizes[i]))
        return tuple(rows[i] for i in order)

    def _usual(self) -> list[Any]:
        if self._mode != "reverse":
            return [self._forward if self._mode == "forward" else self._direct]
        allowed = self._solve.allowed
        # A state of each step; and as many as it takes to run none more than three times.
        every, few = self._recursive(allowed), self._recursive(_online.enough(allowed))
        return [every, few, self._direct]

    def _possible(self) -> list[Any]:
        """List the usual ones, and the recursive one with the best number that seems to fit."""
        if self._mode != "reverse":
            return self._usual()
        kept, copied = self._solve.kept_bytes, self._solve.copied_bytes
        most = min(
            (self._limit - self._work_bytes) // kept,
            int(0.98 * self._limit) // (kept + copied),
            _online.enough(self._solve.allowed) - 1,
            *(a.checkpoints - 1 for a in self._measured if a != self._direct),
        )
        if most < 1:
            return self._usual()
        return [*self._usual(), self._recursive(_online.best(self._solve.steps, most))]

    def _checkpoints(self, adjoint: Any, max_steps: int) -> int | None:
        if not isinstance(adjoint, self._recursive):
            return None
        return min(adjoint.checkpoints or _online.enough(max_steps), max_steps)

    def _evaluations(self, adjoint: Any, max_steps: int | None = None) -> int:
        n, max_steps = self._solve.steps, max_steps or self._solve.allowed
        checkpoints = self._checkpoints(adjoint, max_steps)
        if checkpoints:
            return _online.evaluations(n, checkpoints)
        if adjoint == self._forward:
            return n
        return n * max(math.ceil(math.log(max_steps, 16)), 1)  # as equinox's bounded loop has it

    def _predicted(self, adjoint: Any, max_steps: int | None = None) -> int | None:
        max_steps = max_steps or self._solve.allowed
        s = self._checkpoints(adjoint, max_steps)
        if s is None:
            return None
        kept = s * self._solve.kept_bytes
        if s == max_steps:
            return kept + self._work_bytes
        # With a state of each step they come in order; otherwise they are sorted, into a copy.
        return kept + max(s * self._solve.copied_bytes, self._work_bytes)

    def _needs(self, adjoint: Any) -> int:
        """Measure temporary and constant bytes."""
        if adjoint not in self._measured:
            fun, args = self._solve.gradient(adjoint, forward=adjoint == self._forward)
            self._measured[adjoint] = measure(fun, *args).working_bytes
            self._learn(adjoint)
        return self._measured[adjoint]

    def _learn(self, adjoint: Any) -> None:
        """Find from a measured size what the gradient needs beside its checkpoints."""
        predicted, found = self._predicted(adjoint), self._measured[adjoint]
        if predicted is not None and found > 1.02 * predicted:
            s = self._checkpoints(adjoint, self._solve.allowed)
            self._work_bytes = found - s * self._solve.kept_bytes

    def _candidate(self, adjoint: Any, max_steps: int | None = None) -> Candidate:
        max_steps = max_steps or self._solve.allowed
        return Candidate(
            adjoint=adjoint,
            max_steps=max_steps,
            checkpoints=self._checkpoints(adjoint, max_steps),
            evaluations=self._evaluations(adjoint, max_steps),
            predicted_bytes=self._predicted(adjoint, max_steps),
            measured_bytes=self._measured.get(adjoint),
        )


def _diffrax() -> Any:
    try:
        import diffrax
    except ImportError as error:
        raise ImportError(
            "rematax.adjoints needs diffrax, which is not installed: pip install diffrax."
        ) from error
    return diffrax


def _check(terms: Any, solver: Any, saveat: Any, controller: Any, max_steps: Any) -> None:
    """Refuse what is no object of diffrax's, and what was not tried."""
    dfx = _diffrax()
    if not isinstance(solver, dfx.AbstractSolver):
        raise TypeError(
            f"adjoints.advise: solver must be one of diffrax's, such as diffrax.Tsit5(), not "
            f"{solver!r:.60}."
        )
    single = lambda term: not isinstance(term, dfx.MultiTerm)  # noqa: E731
    for term in jax.tree.leaves(
        terms, is_leaf=lambda x: isinstance(x, dfx.AbstractTerm) and single(x)
    ):
        if not isinstance(term, dfx.ODETerm):
            raise TypeError(
                f"adjoints.advise: terms must be made of diffrax.ODETerm, not "
                f"{type(term).__name__}; stochastic and controlled equations were not tried "
                "(ControlTerm.to_ode() makes an ODETerm of a smooth control)."
            )
    if not isinstance(saveat, dfx.SaveAt):
        raise TypeError(f"adjoints.advise: saveat must be a diffrax.SaveAt, not {saveat!r:.60}.")
    known = dfx.ConstantStepSize | dfx.AbstractAdaptiveStepSizeController
    if not isinstance(controller, known):
        raise TypeError(
            "adjoints.advise: stepsize_controller must be a diffrax.ConstantStepSize or adaptive, "
            f"such as diffrax.PIDController, not {controller!r:.60}."
        )
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise TypeError(
            f"adjoints.advise: max_steps must be a positive whole number, not {max_steps!r}."
        )


def _check_values(y0: PyTree, others: PyTree) -> None:
    """Refuse a state that is no array, and anything without a value."""
    for leaf in jax.tree.leaves(y0):
        if not (is_array(leaf) or is_number(leaf)):
            raise TypeError(
                f"adjoints.advise: y0 must be a pytree of arrays, but has a {type(leaf).__name__}."
            )
    for leaf in jax.tree.leaves((y0, others)):
        if isinstance(leaf, jax.core.Tracer | jax.ShapeDtypeStruct):
            raise TypeError(
                "adjoints.advise runs the solve, so it needs values, not a "
                f"{type(leaf).__name__}: call it outside of jax.jit, jax.grad and jax.vmap."
            )


def _inexact(leaf: Any) -> bool:
    return is_array(leaf) and inexact(leaf)


def _finite(tree: PyTree) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def _written(adjoint: Any) -> str:
    return f"diffrax.{adjoint!r}"
