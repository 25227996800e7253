r"""The adjoints that differentiate the steps which a solver took: their work, and what they hold.

``RecursiveCheckpointAdjoint`` keeps the state of some steps: with :math:`s \ge n` checkpoints each
of :math:`n` steps runs twice, with the fewest for which :math:`(s+1)(s+2) > 2n`, it runs
three times at most, and with fewer more often (see :mod:`rematax.adjoints._online`).
``DirectAdjoint`` is made of nested scans of 16 steps, checkpointed but for the innermost: with
:math:`l` levels a step runs :math:`l` times, and :math:`16 l` states and 16 tapes are held.
``ForwardMode`` keeps nothing.

The stages of a Runge-Kutta step are a loop in the loop, whose kind is the solver's ``scan_kind``.
By itself ``DirectAdjoint`` takes ``"bounded"``, whose tape has room for 16 stages; with
``"checkpointed"`` a step's tape is a few times smaller, and the gradient is faster (seen:
diffrax 0.7.2). A Hessian-vector product, forward over reverse, has a derivative of the way to each
checkpoint. ``RecursiveCheckpointAdjoint`` gives it only where the stages are a bounded loop.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from .._search import Family, Held
from . import _online
from ._arguments import import_diffrax
from ._solve import Mode, Solve

_BASE = 16  # of equinox's bounded loop
_TAPED = 0.25  # of the values that a step makes, roughly; the others are fused or not needed


@dataclass(frozen=True)
class Option:
    """An adjoint with its bound on the steps, and the ``scan_kind`` that its solver needs.

    Attributes:
        adjoint: The adjoint.
        max_steps: The bound on the steps.
        stages: The solver's ``scan_kind``; ``None`` for the solver as it was given.
    """

    adjoint: Any
    max_steps: int
    stages: str | None = None


class Options:
    """The options of one solve in one mode."""

    def __init__(self, solve: Solve, mode: Mode) -> None:
        dfx = import_diffrax()
        self._solve, self._mode = solve, mode
        self._recursive, self._direct, self._forward = (
            dfx.RecursiveCheckpointAdjoint, dfx.DirectAdjoint, dfx.ForwardMode,
        )  # fmt: skip

    @property
    def alone(self) -> list[Option]:
        """Those outside the family; the first keeps a state of each step."""
        if self._mode == "forward":
            return [self._option(self._forward())]
        every = self._recursive(self._solve.allowed)
        return [self._option(every), self._option(self._direct())]

    @property
    def family(self) -> Family[Option]:
        """A state of some steps, but not of all: that is the first of those alone."""
        n = self._solve.steps
        return Family(
            most=0 if self._mode == "forward" else max(n - 1, 0),
            member=lambda s: self._option(self._recursive(s)),
            number=self._number,
            best=lambda most: _online.best(n, most) if most else 0,
        )

    @property
    def default(self) -> Option | None:
        """What diffrax does by itself, if that gives the derivative."""
        return Option(self._recursive(), self._solve.most) if self._mode == "reverse" else None

    def solver(self, option: Option) -> Any:
        """Give the solver for an option."""
        if option.stages is None:
            return self._solve.solver
        return dataclasses.replace(self._solve.solver, scan_kind=option.stages)

    def checkpoints(self, option: Option) -> int | None:
        """Give how many states an option keeps, if it has such a number."""
        if not isinstance(option.adjoint, self._recursive):
            return None
        wanted = option.adjoint.checkpoints or _online.enough(option.max_steps)
        return min(wanted, option.max_steps)

    def work(self, option: Option) -> int:
        """Count how often a step of the solver runs, all steps together."""
        n, s = self._solve.steps, self.checkpoints(option)
        if s:
            return _online.evaluations(n, s)
        return n * (1 if self._mode == "forward" else _levels(option.max_steps))

    def held(self, option: Option) -> Held:
        """Predict what an option holds, from the values that a step makes."""
        solve, s = self._solve, self.checkpoints(option)
        bounded = getattr(self.solver(option), "scan_kind", None) == "bounded"
        tape = _TAPED * solve.step_bytes * (4 if bounded else 1)  # roughly, too
        both = 2 if self._mode == "hvp" else 1  # values and their tangents
        if s is None and self._mode == "forward":
            return Held(0, 0, 2 * tape)
        if s is None:
            kept = _BASE * _levels(option.max_steps) * solve.kept_bytes
            return Held(both * kept, both * _BASE * tape, 0, doubt=0.3)
        # With a state of each step they come in order; otherwise they are sorted, into a copy.
        copied = solve.copied_bytes if s < option.max_steps else 0
        return Held(both * s * (solve.kept_bytes + copied), 0, both * tape, doubt=0.05)

    def _number(self, option: Option) -> int:
        """Give the number of an option in the family, 0 outside it."""
        s = self.checkpoints(option) or 0
        return s if option.max_steps == self._solve.allowed and s < option.max_steps else 0

    def _option(self, adjoint: Any) -> Option:
        return Option(adjoint, self._solve.allowed, self._stages(adjoint))

    def _stages(self, adjoint: Any) -> str | None:
        """Find which ``scan_kind`` the solver has to have instead of the one that it has."""
        if not hasattr(self._solve.solver, "scan_kind"):
            return None
        own = self._solve.solver.scan_kind
        if isinstance(adjoint, self._forward):
            return "lax" if own == "checkpointed" else None
        if isinstance(adjoint, self._recursive) and self._mode == "hvp":
            return None if own == "bounded" else "bounded"
        given = own is None and isinstance(adjoint, self._recursive)  # the solver's own default
        return None if given or own in ("bounded", "checkpointed") else "checkpointed"


def _levels(max_steps: int) -> int:
    return max(math.ceil(math.log(max_steps, _BASE)), 1)  # as equinox's bounded loop has it
