r"""The arithmetic of the binomial schedule: its exact cost, and its table.

With ``s`` snapshots, and no step advanced more than ``r`` times, at most
:math:`\beta(s, r) = \binom{s+r}{s}` steps can be reversed. The least number of advances is
therefore :math:`t(n, s) = r n - \binom{s+r}{s+1}`, with ``r`` the integer for which
:math:`\beta(s, r-1) < n \le \beta(s, r)`. It is reached by recursion: advance ``k`` steps, write a
snapshot, reverse the last ``n - k`` steps with one slot fewer, then the first ``k`` with all of
them. Many ``k`` are optimal in advances; :func:`split` takes the one that writes the fewest
snapshots as well.

**The table.** Each of the positions ``1 .. n-1`` is advanced *to* exactly once for good: it
becomes a snapshot there, or it is where the U-turn takes place. The whole schedule is therefore
one permutation of ``1 .. n-1``, the *stops*, in the order in which a replay meets them: four bytes
per step. See :meth:`rematax.Binomial.stops` for how to read it.

This module is plain Python and NumPy.

References:
    A. Griewank and A. Walther (2000), "Algorithm 799: revolve", ACM Transactions on Mathematical
    Software 26(1):19-45.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt


def repetition(n: int, s: int) -> int:
    """Find the least ``r`` with ``beta(s, r) >= n``."""
    if s == 1:
        return n - 1
    r, reach = 0, 1
    while reach < n:
        r += 1
        reach = reach * (s + r) // r
    return r


def advances(n: int, s: int) -> int:
    """Count the least advances ``t(n, s) = r n - C(s + r, s + 1)``."""
    r = repetition(n, s)
    return r * n - math.comb(s + r, s + 1)


def split(n: int, s: int) -> int:
    """Choose how far to advance before the next snapshot, for ``1 < s < n``.

    Every result is optimal in advances; among those it is one with the fewest snapshot writes.
    """
    r = repetition(n, s)
    here = math.comb(s + r - 1, s)  # beta(s, r - 1)
    one_less = math.comb(s + r - 2, s - 1)  # beta(s - 1, r - 1)
    two_less = math.comb(s + r - 3, s - 2)  # beta(s - 2, r - 1)
    if n <= here + two_less:
        return math.comb(s + r - 2, s)  # beta(s, r - 2)
    return min(here, n - one_less - two_less)


@functools.lru_cache(maxsize=16)
def stops(n: int, s: int) -> npt.NDArray[np.int32]:
    """Build the table of :meth:`rematax.Binomial.stops` in time and memory linear in ``n``.

    Reversing ``m`` steps takes exactly ``m - 1`` stops, so that each part's place is known
    beforehand, and a part of a length and a number of slots that was met before is copied.
    """
    if n > np.iinfo(np.int32).max:
        raise ValueError(
            f"rx.Binomial: {n} steps are too many for its table of 32-bit positions; use rx.Nested."
        )
    table = np.empty(max(n - 1, 0), np.int32)
    met: dict[tuple[int, int], tuple[int, int]] = {}
    parts = [(0, n, s, 0)]  # where in the table, steps, slots, first position
    while parts:
        at, m, slots, base = parts.pop()
        if m < 2:
            continue
        end = at + m - 1
        if slots == 1:  # no slot left: start from `base` each time
            table[at:end] = np.arange(base + m - 1, base, -1, dtype=np.int32)
        elif slots >= m:  # a slot for every step
            table[at:end] = np.arange(base + 1, base + m, dtype=np.int32)
        elif (m, slots) in met:
            # Depth first: whatever was met and is not around us is finished.
            before, its_base = met[m, slots]
            table[at:end] = table[before : before + m - 1] + np.int32(base - its_base)
        else:
            met[m, slots] = at, base
            k = split(m, slots)
            table[at] = base + k
            parts.append((at + m - k, k, slots, base))
            parts.append((at + 1, m - k, slots - 1, base + k))
    table.flags.writeable = False
    return table
