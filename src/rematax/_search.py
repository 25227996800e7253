r"""Find the option with the least work whose gradient fits the memory; compile few to find it.

An *option* is a schedule of a scan or an adjoint of a solve. Its work is counted, the bytes that it
holds are predicted, and what the compiler needs is measured, one program for each option. A
prediction only says what is worth compiling next: nothing is chosen or refused by it.

Predictions are corrected by what was measured. Each option says how many bytes of each kind it
should hold (see :class:`Held`), and how many bytes a predicted byte of a kind takes is learnt: one
at first, fewer where the compiler fuses values away or several devices share an array, more where
it makes copies. With the factors :math:`\theta`, the measured bytes :math:`m_i` of the options
:math:`i` and their predicted bytes :math:`h_i`, those are taken that minimise

.. math::
    \sum_i \left(\frac{h_i \cdot \theta - m_i}{\delta_i m_i}\right)^2
    + \frac{1}{w^2} \left((\theta_1 - 1)^2 + (\theta_2 - \theta_1)^2 + (\theta_3 - 1)^2\right),

with :math:`\theta \ge 0`, the doubt :math:`\delta_i` in the form of a prediction, and a width
:math:`w` for what is believed before anything is measured: least squares with a prior.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Option = TypeVar("Option", bound=Hashable)

_WIDTH = 2.0
_PRECISE = 0.01


class Held(NamedTuple):
    """Bytes that an option is predicted to hold, by kind.

    Attributes:
        states: Kept states, all together.
        tapes: Kept tapes, all together.
        work: What is worked on, however many are kept.
        exact: What needs no correction, such as a table.
        doubt: How far a measured size may lie off the form of this prediction, as a part of it.
    """

    states: float
    tapes: float
    work: float
    exact: float = 0.0
    doubt: float = _PRECISE

    def tells_of(self, other: Held) -> bool:
        """Say whether its measured size tells of what makes up most of another option."""
        kind = int(np.argmax(other[:3]))
        return self.doubt <= other.doubt and self[kind] >= 0.2 * sum(self[:4])


@dataclass(frozen=True)
class Family(Generic[Option]):
    """Options that differ in one number, of which more holds more.

    Attributes:
        most: The largest number that makes sense; 0 for no member at all.
        member: Number -> option.
        number: Option -> its number; 0 for an option outside the family.
        best: Which number up to another one has the least work.
    """

    most: int
    member: Callable[[int], Option]
    number: Callable[[Option], int]
    best: Callable[[int], int] = lambda most: most


class Search(Generic[Option]):
    """The options of one gradient, and what is known of them.

    Attributes:
        measured: Measured bytes by option, in the order of compiling.
        limit: The bytes that an option has to fit into.
    """

    def __init__(
        self,
        options: Iterable[Option],
        family: Family[Option],
        *,
        limit: int,
        programs: int,
        work: Callable[[Option], float],
        held: Callable[[Option], Held],
        measure: Callable[[Option], int],
    ) -> None:
        """Take what can be chosen, and how it is judged; nothing is compiled yet.

        Args:
            options: Options outside the family, of equal ones in work the better first.
            family: A family of options.
            limit: The bytes that an option has to fit into.
            programs: How many options may be measured.
            work: Option -> its work; the least is wanted.
            held: Option -> what it is predicted to hold.
            measure: Option -> the bytes that it needs. Called once an option.
        """
        self.measured: dict[Option, int] = {}
        self.limit = limit
        self._options, self._family, self._programs = list(options), family, programs
        self._work, self._held, self._measure = work, held, measure
        self._factors = np.ones(3)
        self._expected: dict[Option, int] = {}
        self._lessons: list[tuple[Held, int]] = []

    def best(self) -> Option | None:
        """Find the option with the least work that fits; None if none of those measured does."""
        while self.programs_left and (option := self._next()) is not None:
            self.needs(option)
        return self.cheapest

    def try_others(self, programs: int) -> None:
        """Measure more options outside the family that should fit, whatever their work."""
        self._programs = programs
        for option in self._options:
            if self.programs_left and option not in self.measured:
                if self.predicted(option) <= self.limit:
                    self.needs(option)

    @property
    def programs_left(self) -> int:
        """Count the options that may still be measured."""
        return self._programs - len(self.measured)

    @property
    def fitting(self) -> list[Option]:
        """The options that were measured to fit, those with the least work first."""
        fit = [option for option, size in self.measured.items() if size <= self.limit]
        return sorted(fit, key=self._work)

    @property
    def cheapest(self) -> Option | None:
        """The first of those that fit."""
        return next(iter(self.fitting), None)

    @property
    def smallest(self) -> Option:
        """The option that was measured to need the fewest bytes."""
        return min(self.measured, key=self.measured.__getitem__)

    def needs(self, option: Option) -> int:
        """Measure an option, and learn from it."""
        if option not in self.measured:
            held, expected = self._held(option), self.predicted(option)
            self._expected[option] = expected
            size = self.measured[option] = self._measure(option)
            # A form in doubt teaches only where it is further off than its doubt explains.
            if held.doubt <= _PRECISE or abs(size - expected) > 2 * held.doubt * size:
                self._lessons.append((held, size))
                self._factors = _learnt(self._lessons)
        return self.measured[option]

    def predicted(self, option: Option) -> int:
        """Predict the bytes of an option: for a measured one, what was predicted before."""
        if option in self._expected:
            return self._expected[option]
        number, tried = self._family.number(option), self._tried()
        if number and len(tried) > 1:  # of its own family more is known: a line through two
            a, b = sorted(tried, key=lambda near: abs(near - number))[:2]
            slope = (tried[b] - tried[a]) / (b - a)
            return round(tried[a] + slope * (number - a))
        held = self._held(option)
        return round(float(self._factors @ np.array(held[:3])) + held.exact)

    def _next(self) -> Option | None:
        """Choose what to compile next: the least work that should fit, or else the smallest."""
        untried = [option for option in self._options if option not in self.measured]
        untried += self._members()
        cheapest = self.cheapest
        if cheapest is not None:
            untried = [o for o in untried if self._work(o) < self._work(cheapest)]
        if not untried:
            return None
        smallest = min(untried, key=self.predicted)
        likely = [option for option in untried if self.predicted(option) <= self.limit]
        if cheapest is None and (self.programs_left == 1 or not likely):
            return smallest
        if likely:
            return min(likely, key=self._work)
        return min(filter(self._in_doubt, untried), key=self.predicted, default=None)

    def _in_doubt(self, option: Option) -> bool:
        """Say whether an option may fit though it should not: if hardly anything tells of it."""
        held = self._held(option)
        if sum(self._held(other).tells_of(held) for other in self.measured) > 1:  # a line
            return self.predicted(option) <= (1 + 2 * held.doubt) * self.limit
        return True

    def _tried(self) -> dict[int, int]:
        """Give the measured bytes of members of the family by their number."""
        sizes = ((self._family.number(option), size) for option, size in self.measured.items())
        return {number: size for number, size in sizes if number}

    def _members(self) -> list[Option]:
        """Offer the member with the most that should fit; if none fits yet, the smallest too."""
        tried = self._tried()
        fits = max((s for s, size in tried.items() if size <= self.limit), default=0)
        top = min((s for s, size in tried.items() if size > self.limit), default=math.inf) - 1
        top = int(min(top, self._family.most))
        member = self._family.member
        most = self._most(fits, top)
        offered = {self._family.best(most)} if most > fits else set()
        if not fits and top:
            offered.add(1)
        return [member(number) for number in sorted(offered) if number not in tried]

    def _most(self, fits: int, top: int) -> int:
        """Find the largest number that should fit, between one that does and the last to try."""
        member = self._family.member
        larger = range(fits + 1, top + 1)
        return fits + bisect.bisect_right(
            larger, self.limit, key=lambda s: self.predicted(member(s))
        )


def _learnt(known: list[tuple[Held, int]]) -> npt.NDArray[np.float64]:
    """Find how many bytes a predicted byte of each kind takes; see the module."""
    spread = [held.doubt * max(size, 1) for held, size in known]
    rows = [np.array(held[:3]) / d for (held, _), d in zip(known, spread, strict=True)]
    right = [(size - held.exact) / d for (held, size), d in zip(known, spread, strict=True)]
    rows += [np.array(row) / _WIDTH for row in ((1, 0, 0), (-1, 1, 0), (0, 0, 1))]
    right += [1 / _WIDTH, 0.0, 1 / _WIDTH]
    matrix, kinds = np.array(rows), [0, 1, 2]
    factors = np.zeros(3)
    while kinds:
        found = np.linalg.lstsq(matrix[:, kinds], np.array(right), rcond=None)[0]
        if (found >= 0).all():
            factors[kinds] = found
            break
        del kinds[int(np.argmin(found))]
    return factors
