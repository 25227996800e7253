r"""When to store and when to recompute: the schedules, their exact costs, the binomial table.

To pull a cotangent back through ``n`` steps, each step's input is needed, last step first. A
*schedule* says which of them are kept while the loop runs forward, and which are computed again.
In the vocabulary of the field, a kept carry is a *snapshot* (or checkpoint, or state), the
residuals of one step are a *tape*, and one taped step followed by its pullback is a *U-turn*.

The schedules here and their names in the literature:

- :class:`StoreAll`: plain reverse mode, one tape per step.
- :class:`EveryStep`: store the carries, recompute the tapes.
- :class:`Nested`: blocks of blocks, "sqrt(n) checkpointing" for two levels [Chen2016]_.
- :class:`Binomial`: *revolve*, the least number of evaluations with ``s`` snapshots and one tape
  [Griewank1992]_ [GriewankWalther2000]_.

The arithmetic of the last is in :mod:`rematax._binomial`. This module is plain Python and NumPy.

References:
    .. [Griewank1992] A. Griewank (1992), "Achieving logarithmic growth of temporal and spatial
       complexity in reverse automatic differentiation", Optimization Methods and Software
       1(1):35-54.
    .. [GriewankWalther2000] A. Griewank and A. Walther (2000), "Algorithm 799: revolve", ACM
       Transactions on Mathematical Software 26(1):19-45.
    .. [Chen2016] T. Chen, B. Xu, C. Zhang and C. Guestrin (2016), "Training deep nets with
       sublinear memory cost", arXiv:1604.06174.
"""

from __future__ import annotations

import abc
import functools
import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ._binomial import advances, stops


class Schedule(abc.ABC):
    """What every schedule promises: how often the step runs, and what is held.

    Schedules are immutable values: equal ones compare and hash alike, so that they can be static
    arguments of :func:`jax.jit`.

    Example:
        >>> import rematax as rx
        >>> def work(schedule: rx.Schedule, n: int) -> float:
        ...     return schedule.evaluations(n) / n
        >>> [work(schedule, 100) for schedule in (rx.StoreAll(), rx.EveryStep(), rx.Nested(3))]
        [1.0, 2.0, 4.0]
        >>> isinstance(rx.Binomial(), rx.Schedule)
        True
    """

    __slots__ = ()

    @abc.abstractmethod
    def evaluations(self, n: int) -> int:
        """Count the calls of the step in one ``value_and_grad`` through ``n`` steps.

        Args:
            n: Number of steps, a non-negative integer.

        Returns:
            Forward evaluations of the step, the taped ones included; 0 for ``n = 0``.
        """

    @abc.abstractmethod
    def stored(self, n: int) -> tuple[int, int]:
        """Count what is held at the same time, at most, by the gradient of ``n`` steps.

        Args:
            n: Number of steps, a non-negative integer.

        Returns:
            ``(states, tapes)``: carries, and sets of residuals of one step.
        """


@dataclass(frozen=True)
class StoreAll(Schedule):
    """Keep every tape: plain reverse mode, as in ``jax.lax.scan``.

    ``n`` evaluations, ``n`` tapes. The fastest where the tapes fit and memory traffic does not
    dominate.

    Example:
        >>> import rematax as rx
        >>> rx.StoreAll().evaluations(1000), rx.StoreAll().stored(1000)
        (1000, (0, 1000))
    """

    def evaluations(self, n: int) -> int:
        """Count evaluations: ``n``."""
        return _steps(n)

    def stored(self, n: int) -> tuple[int, int]:
        """Count what is held: ``n`` tapes."""
        return 0, _steps(n)


@dataclass(frozen=True)
class EveryStep(Schedule):
    """Keep every carry and rebuild each tape: ``jax.checkpoint`` around the step.

    ``2 n`` evaluations, ``n`` states and one tape. It removes the factor *tape over state*, not
    the factor ``n``; a step whose tape is no larger than its state gains nothing.

    Example:
        >>> import rematax as rx
        >>> rx.EveryStep().evaluations(1000), rx.EveryStep().stored(1000)
        (2000, (1000, 1))
    """

    def evaluations(self, n: int) -> int:
        """Count evaluations: ``2 n``."""
        return 2 * _steps(n)

    def stored(self, n: int) -> tuple[int, int]:
        """Count what is held: ``n`` states and one tape."""
        return _steps(n), min(n, 1)


@dataclass(frozen=True)
class Nested(Schedule):
    """Cut the loop into blocks of blocks, and keep only where the open blocks begin.

    With radices ``a1 .. ak`` that cover ``n`` steps: ``(k + 1) n`` evaluations,
    ``a1 + .. + ak`` states and one tape; with ``tapes=True``, ``k n`` evaluations,
    ``a1 + .. + a(k-1)`` states and ``ak`` tapes. Two levels are the well-known "sqrt(n)" scheme.
    Any ``n`` is served: the last block of a level may be shorter, and no padding is evaluated.

    Being made of ``jax.lax.scan`` and :func:`jax.checkpoint` alone, it works in every mode. A
    second reverse mode tapes what the first computes again, and holds as much as one level less
    would.

    Args:
        levels: Number of levels ``k``, at least 1; default 2. The radices are then those with the
            least sum that divide ``n`` evenly, if that sum is at most a quarter above the least
            that covers ``n``: a last block that is shorter has its part of ``xs``, ``ys`` and their
            gradients copied. Else they are as equal as integers can be.
        radices: Steps per block, outermost first, instead of ``levels``; their product must cover
            the ``n`` that the schedule is used with.
        tapes: Keep the tapes of one innermost block instead of rebuilding each: saves ``n``
            evaluations, costs ``ak - 1`` tapes.

    Raises:
        TypeError: If ``levels`` or a radix is not an integer, or ``tapes`` not a bool.
        ValueError: If one is below 1, or ``levels`` contradicts ``radices``.

    References:
        T. Chen et al. (2016), arXiv:1604.06174, section 4.

    Example:
        >>> import rematax as rx
        >>> rx.Nested(levels=2).evaluations(1024), rx.Nested(levels=2).stored(1024)
        (3072, (64, 1))
        >>> rx.Nested(radices=(8, 16), tapes=True).stored(128)
        (8, 16)
    """

    levels: int | None = None
    radices: tuple[int, ...] | None = None
    tapes: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.tapes, bool):
            raise TypeError(f"rx.Nested: tapes must be True or False, not {self.tapes!r}.")
        levels, radices = self.levels, self.radices
        if radices is not None:
            if not isinstance(radices, tuple | list) or not radices:
                raise TypeError(
                    f"rx.Nested: radices must be a tuple of positive integers, not {radices!r}."
                )
            radices = tuple(_positive("rx.Nested", "each of the radices", a) for a in radices)
            object.__setattr__(self, "radices", radices)
        if levels is None:
            levels = 2 if radices is None else len(radices)
        levels = _positive("rx.Nested", "levels", levels)
        if radices is not None and levels != len(radices):
            raise ValueError(
                f"rx.Nested: levels={levels} contradicts the {len(radices)} radices {radices}; "
                "give one of the two."
            )
        object.__setattr__(self, "levels", levels)

    def __repr__(self) -> str:
        what = f"levels={self.levels}" if self.radices is None else f"radices={self.radices}"
        return f"Nested({what}{', tapes=True' if self.tapes else ''})"

    def blocks(self, n: int) -> tuple[int, ...]:
        """Give the radices that are used for ``n`` steps, outermost first.

        Args:
            n: Number of steps, a non-negative integer.

        Returns:
            As many radices as there are levels. The product of all of them is at least ``n``.

        Raises:
            ValueError: If the ``radices`` given do not cover ``n``.

        Example:
            >>> import rematax as rx
            >>> rx.Nested(levels=3).blocks(1000)
            (10, 10, 10)
        """
        n, levels = _steps(n), operator.index(self.levels or 2)
        if self.radices is not None:
            covered = math.prod(self.radices)
            if covered < n:
                raise ValueError(
                    f"rx.{self!r} covers {covered} steps, which is fewer than the {n} of this "
                    f"scan; use larger radices, or rx.Nested(levels={levels})."
                )
            return self.radices
        # Of all integers with one sum, equal ones have the largest product: hence a copies of
        # m + 1 and k - a copies of m, for the least sum whose product covers n.
        m = 1
        while (m + 1) ** levels < n:
            m += 1
        more = next(a for a in range(levels + 1) if (m + 1) ** a * m ** (levels - a) >= n)
        covering = (m + 1,) * more + (m,) * (levels - more)
        even = _factors(max(n, 1), levels)
        return even if min(even) > 1 and 4 * sum(even) <= 5 * sum(covering) else covering

    def evaluations(self, n: int) -> int:
        """Count evaluations: ``(levels + 1) n``, or ``levels * n`` with ``tapes=True``."""
        self.blocks(n)
        return (operator.index(self.levels or 2) + (not self.tapes)) * n

    def stored(self, n: int) -> tuple[int, int]:
        """Count what is held: the sum of the radices, as far as ``n`` steps fill them."""
        counts, rest = [], _steps(n)
        radices = self.blocks(n)
        for level in range(len(radices)):
            # The open block of each level: full if there is a full one, else the remainder.
            inside = math.prod(radices[level + 1 :])
            counts.append(-(-rest // inside))
            rest = min(rest, inside)
        if self.tapes:
            return sum(counts[:-1]), counts[-1]
        return sum(counts), min(n, 1)


@dataclass(frozen=True)
class Binomial(Schedule):
    r"""Keep ``s`` snapshots and place them so that as little as possible is computed twice.

    ``n + t(n, s) + 1`` evaluations, ``s`` states and one tape. Here
    :math:`t(n, s) = r n - \binom{s+r}{s+1}` with the least :math:`r` for which
    :math:`\binom{s+r}{s} \ge n`; the 1 is there because the final state is returned as well.
    That is the least number of evaluations among all schedules that store only states and hold one
    tape. Memory does not grow with ``n``.

    Args:
        snapshots: Number of snapshots ``s``, the initial state included; more than ``n`` is as
            good as ``n``. Default: the fewest with which no step is run more than three times,
            about :math:`\sqrt{2 n}`.

    Raises:
        TypeError: If ``snapshots`` is not an integer.
        ValueError: If it is below 1.

    References:
        A. Griewank and A. Walther (2000), ACM TOMS 26(1):19-45, Proposition 1 and equations (1) to
        (3).

    Example:
        >>> import rematax as rx
        >>> rx.Binomial(5).evaluations(1000)   # 7.28 times the loop itself
        7285
        >>> rx.Binomial().evaluations(10**6) <= 3 * 10**6, rx.Binomial().stored(10**6)
        (True, (1413, 1))
    """

    snapshots: int | None = None

    def __post_init__(self) -> None:
        if self.snapshots is not None:
            snapshots = _positive("rx.Binomial", "snapshots", self.snapshots)
            object.__setattr__(self, "snapshots", snapshots)

    def __repr__(self) -> str:
        return f"Binomial({'' if self.snapshots is None else self.snapshots})"

    def slots(self, n: int) -> int:
        """Give the number of snapshots that are used for ``n`` steps.

        Args:
            n: Number of steps, a non-negative integer.

        Returns:
            ``snapshots``, at most ``n``; or the default for ``n``.

        Example:
            >>> import rematax as rx
            >>> rx.Binomial().slots(1000), rx.Binomial(50).slots(10)
            (44, 10)
        """
        n = _steps(n)
        if self.snapshots is not None:
            return min(self.snapshots, n)
        # The least s with beta(s, 2) = (s + 1)(s + 2) / 2 >= n: at most two advances and one tape.
        s = max(0, math.isqrt(2 * n) - 2)
        while (s + 1) * (s + 2) < 2 * n:
            s += 1
        return min(max(s, 1), n)

    def evaluations(self, n: int) -> int:
        """Count evaluations: ``n + t(n, s) + 1``, and 0 for ``n = 0``."""
        return n + advances(n, self.slots(n)) + 1 if _steps(n) else 0

    def stored(self, n: int) -> tuple[int, int]:
        """Count what is held: ``s`` states and one tape."""
        return self.slots(n), min(n, 1)

    def stops(self, n: int) -> npt.NDArray[np.int32]:
        """Tabulate the schedule: where each advance ends, in the order of the reverse sweep.

        A replay keeps a stack of snapshot positions, at first only position 0. For each step
        ``i = n-1 .. 0``: start from the top of the stack; until ``i`` is reached, advance to the
        next stop, and write a snapshot there unless it is ``i`` itself; turn at ``i``; drop the
        top of the stack if it is ``i``.

        Args:
            n: Number of steps, a positive integer.

        Returns:
            A permutation of ``1 .. n-1``, int32, shape ``(n - 1,)``, read-only.

        Example:
            >>> import rematax as rx
            >>> rx.Binomial(3).stops(6)
            array([1, 3, 5, 4, 2], dtype=int32)
        """
        return stops(_steps(n), self.slots(n))


@functools.lru_cache(maxsize=4096)
def _factors(n: int, count: int) -> tuple[int, ...]:
    """Find ``count`` integers whose product is ``n``, of the least sum, the largest first."""
    if count == 1:
        return (n,)
    divisors = {d for a in range(1, math.isqrt(n) + 1) if n % a == 0 for d in (a, n // a)}
    found = ((d, *_factors(n // d, count - 1)) for d in divisors)
    return min((tuple(sorted(f, reverse=True)) for f in found), key=sum)


def _positive(owner: str, name: str, value: Any) -> int:
    """Check that a parameter is an integer of at least 1."""
    number = _integer(value)
    if number is None:
        raise TypeError(f"{owner}: {name} must be a positive integer, not {value!r}.")
    if number < 1:
        raise ValueError(f"{owner}: {name} must be at least 1, not {number}.")
    return number


def _steps(n: Any) -> int:
    """Check that a number of steps is a non-negative integer."""
    number = _integer(n)
    if number is None:
        raise TypeError(f"the number of steps must be a non-negative integer, not {n!r}.")
    if number < 0:
        raise ValueError(f"the number of steps must not be negative, not {number}.")
    return number


def _integer(value: Any) -> int | None:
    """Read an integer of any kind; booleans and floats are none."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
