r"""How often a step runs under online checkpointing, where the number of steps is not known ahead.

An adaptive solver finds out on its way how many steps it takes, so which states to keep cannot be
planned, as :mod:`rematax._binomial` does. Stumm and Walther's first algorithm keeps states so that
the cost is the least possible, as long as :math:`n \le (s+1)(s+2)/2`; beyond that, Wang and Moin's
replaces states as it goes. Diffrax's ``RecursiveCheckpointAdjoint`` does both, and on
the way back halves the stretch between two states again and again for as long as it has free slots.

This module follows that program step by step, in plain Python, and counts. (Seen: the counts are
those of equinox 0.13.8, whose loop it is, in every case that the tests run.)

References:
    P. Stumm and A. Walther (2010), "New Algorithms for Optimal Online Checkpointing", SIAM Journal
    on Scientific Computing 32(2):836-854, algorithm 1.

    Q. Wang, P. Moin and G. Iaccarino (2009), "Minimal Repetition Dynamic Checkpointing Algorithm
    for Unsteady Adjoint Calculation", SIAM Journal on Scientific Computing 31(4):2549-2567.
"""

from __future__ import annotations

import functools
import math

_MOST_COUNTED = 300_000  # steps to follow in search of the best number of checkpoints: a second


def enough(n: int) -> int:
    """Find the fewest checkpoints with which no step of ``n`` runs more than three times."""
    s = max(math.isqrt(2 * n) - 2, 1)
    while (s + 1) * (s + 2) <= 2 * n and s < n:
        s += 1
    return s


@functools.lru_cache(maxsize=256)
def evaluations(n: int, s: int) -> int:
    """Count how often a step runs in one value and gradient of ``n`` steps, ``s`` checkpoints.

    Each step runs once on the way there and once, taped, on the way back; what is added are the
    steps that lead there from a checkpoint.
    """
    if s >= n:
        return 2 * n
    kept = positions(n, s)
    total, end = 2 * n, n
    for slots, start in zip(range(s - len(kept), s), reversed(kept), strict=True):
        total += _advances(end - start, slots)
        end = start
    return total


def best(n: int, most: int) -> int:
    """Find with how many checkpoints, up to ``most``, steps run least often.

    More are not always better: of 1000 steps each runs 5.3 times on average with 42 checkpoints,
    and 4.3 times with 31. Where :func:`enough` fit, more of them are; below, of very long solves
    only some numbers are tried, since counting takes time.
    """
    if most >= enough(n):
        return max(min(most, n), 1)
    stride = -(-most * n // _MOST_COUNTED) or 1
    return min(range(most, 0, -stride), key=lambda s: (evaluations(n, s), s))


def positions(n: int, s: int) -> list[int]:
    """Find the steps whose states are kept when the solve has come to its end after ``n`` steps."""
    if s == 1:
        return [0]
    kept = [n] * s  # n: nothing there yet
    known_until = (s + 1) * (s + 2) // 2 - 1
    slot, last, change, saving = 0, s, s, True
    for step in range(min(n, known_until)):
        if saving:
            kept[slot] = step
            slot = slot + 1 if slot < last else 1
        if step + 1 == change:
            saving = False
        if step == change:
            last, change = last - 1, change + last
            slot, saving = last, last > 0
    level = [n] + [0] * (s - 1)  # the start is never given up
    spare = [False] * s
    for step in range(known_until, n):
        if any(spare):
            slot = max((i for i in range(s) if spare[i]), key=kept.__getitem__)
            level[slot], spare[slot] = 0, False
        else:
            slot = kept.index(max(kept))
            level[slot] += 1
            spare = [spare[i] or level[i] < level[slot] - 1 for i in range(s)]
        kept[slot] = step
    return sorted(step for step in kept if step < n)


@functools.lru_cache(maxsize=4096)
def _advances(n: int, slots: int) -> int:
    """Count the steps run without a tape to reverse ``n`` steps from a state, with free slots."""
    if n - 2 <= slots:
        return n - 1
    if not slots:
        return n * (n - 1) // 2
    half = n // 2
    return half + _advances(n - half, slots - 1) + _advances(half, slots)
