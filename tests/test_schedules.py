"""Schedules against independent truths: dynamic programs, another package, published tables."""

import functools
import itertools
import math
import sys

import numpy as np
import pytest

import rematax as rx
from rematax._binomial import advances as least_advances
from rematax._binomial import stops as table_of
from rematax._schedules import Schedule


def replay(n, s):
    """Replay the table in plain Python; return advances, snapshot writes, most snapshots held."""
    stops = rx.Binomial(s).stops(n).tolist()
    slots = rx.Binomial(s).slots(n)
    held, advances, writes, most, row, turned = {0: 0}, 0, 1, 1, 0, []
    stack = [0]
    for i in range(n - 1, -1, -1):
        p = stack[-1]
        assert held[len(stack) - 1] == p  # the slot holds the state that the stack says
        while p != i:
            stop = stops[row]
            row += 1
            assert p < stop <= i
            advances += stop - p
            p = stop
            if p != i:
                slot = len(stack)
                assert slot < slots and slot not in held  # no live slot is overwritten
                held[slot] = p
                stack.append(p)
                writes += 1
        turned.append(p)
        most = max(most, len(stack))
        if stack[-1] == i:
            stack.pop()
            del held[len(stack)]
    assert turned == list(range(n - 1, -1, -1))  # each U-turn starts from its own state
    assert row == n - 1 and not held
    return advances, writes, most


@functools.cache
def least(n, s):
    """Least advances by exhaustive recursion."""
    if n == 1:
        return 0
    if s == 1:
        return n * (n - 1) // 2
    return min(i + least(i, s) + least(n - i, s - 1) for i in range(1, n))


@functools.cache
def least_with_writes(n, s):
    """Least (advances, snapshot writes), the initial write not counted."""
    if n == 1:
        return 0, 0
    if s == 1:
        return n * (n - 1) // 2, 0
    options = []
    for i in range(1, n):
        left, right = least_with_writes(i, s), least_with_writes(n - i, s - 1)
        write = n - i > 1  # none before a one-step remainder
        options.append((i + left[0] + right[0], write + left[1] + right[1]))
    return min(options)


def dynamic_program(size, slots):
    """Tabulate `least` for all n and s at once."""
    table = np.zeros((size + 1, slots + 1), np.int64)
    table[:, 1] = [n * (n - 1) // 2 for n in range(size + 1)]
    for s in range(2, slots + 1):
        for n in range(2, size + 1):
            i = np.arange(1, n)
            table[n, s] = np.min(i + table[i, s] + table[n - i, s - 1])
    return table


def test_advances_equal_the_dynamic_program():
    table = dynamic_program(300, 24)
    for n, s in itertools.product(range(1, 301), range(1, 25)):
        assert least_advances(n, min(s, n)) == table[n, s]


def test_the_table_is_what_was_promised():
    for n, s in itertools.product([*range(1, 61), 97, 128, 300], [1, 2, 3, 4, 5, 8, 13, 24]):
        advances, _, most = replay(n, s)
        assert n + advances + 1 == rx.Binomial(s).evaluations(n)
        assert most <= rx.Binomial(s).stored(n)[0]
        assert sorted(rx.Binomial(s).stops(n)) == list(range(1, n))


def test_snapshot_writes_are_the_fewest():
    for n, s in itertools.product(range(1, 49), range(1, 13)):
        assert replay(n, s)[:2] == (
            least_with_writes(n, s)[0],
            least_with_writes(n, s)[1] + 1,
        )
    assert replay(100, 5)[1] == 44


@pytest.mark.parametrize(
    ("n", "s"),
    # The package asks for 1 < snapshots < steps.
    [(n, s) for n in (3, 10, 37, 100, 256, 1000) for s in (2, 3, 5, 7, 10, 20) if s < n],
)
def test_advances_equal_checkpoint_schedules(n, s):
    import checkpoint_schedules as package

    forward = 0
    for action in package.Revolve(n, s):
        if isinstance(action, package.Forward):
            forward += action.n1 - action.n0
        if isinstance(action, package.EndReverse):
            break
    # The package counts the taped evaluations as well, and not the one more for the final state.
    assert forward + 1 == rx.Binomial(s).evaluations(n)


@pytest.mark.parametrize(
    ("n", "s", "ratio"),
    [
        (1000, 5, 7.284),
        (1000, 10, 4.636),
        (1000, 20, 3.747),
        (1000, 40, 3.097),
        (1000, 60, 2.938),
        (1000, 80, 2.918),
        (10, 3, 2.5),
        (100, 5, 4.16),
        (100, 10, 3.22),
        (1000, 3, 13.155),
        (1000, 50, 2.948),
        (1000, 100, 2.898),
        (10**4, 10, 6.762),
        (10**4, 50, 3.862),
        (10**4, 100, 3.475),
        (10**5, 50, 4.752),
        (10**6, 50, 5.659),
    ],
)
def test_published_ratios(n, s, ratio):
    assert (rx.Binomial(s).evaluations(n) - 1) / n == pytest.approx(ratio, abs=6e-4)


@pytest.mark.parametrize(
    ("n", "s", "advances"), [(10, 3, 15), (16, 4, 27), (100, 5, 316), (100, 10, 222)]
)
def test_published_advances(n, s, advances):
    assert rx.Binomial(s).evaluations(n) == n + advances + 1
    assert replay(n, s)[0] == advances


def test_enough_snapshots_need_two_evaluations_per_step():
    for n in (1, 2, 10, 100):
        assert rx.Binomial(n).evaluations(n) == 2 * n == rx.Binomial(10 * n).evaluations(n)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 100, 1000, 1024, 10**6])
def test_the_default_is_the_fewest_snapshots_with_three_runs_per_step(n):
    s = rx.Binomial().slots(n)
    assert math.comb(s + 2, 2) >= n and (s == 1 or math.comb(s + 1, 2) < n)
    assert rx.Binomial().evaluations(n) <= 3 * n
    if n <= 1000:
        runs = np.ones(n, int)  # the taped one
        stack, stops = [0], iter(rx.Binomial().stops(n).tolist())
        for i in range(n - 1, -1, -1):
            p = stack[-1]
            while p != i:
                q = next(stops)
                runs[p:q] += 1
                p = q
                if p != i:
                    stack.append(p)
            if stack[-1] == i:
                stack.pop()
        assert runs.max() <= 3


class Written(np.ndarray):
    """An array that counts how many of its entries are written."""

    count = 0

    def __setitem__(self, key, value):
        Written.count += self[key].size
        super().__setitem__(key, value)


@pytest.mark.parametrize("s", [1, 2, 5, 50, 1413, 10**4, 10**6])
def test_a_million_steps_are_tabulated_in_linear_time(s, monkeypatch):
    """Few lines of Python are run for each step, and each entry is written once."""
    n, lines, before = 10**6, 0, sys.gettrace()

    def trace(frame, event, _):
        nonlocal lines
        if frame.f_globals.get("__name__") == table_of.__module__:
            lines += event == "line"
            return trace

    table_of.cache_clear()
    monkeypatch.setattr(np, "empty", lambda *a: np.ndarray(*a).view(Written))
    monkeypatch.setattr(Written, "count", 0)
    sys.settrace(trace)
    try:
        stops = rx.Binomial(s).stops(n)
    finally:
        sys.settrace(before)
        table_of.cache_clear()
    assert 0 < lines < 4 * n and Written.count == n - 1
    assert stops.nbytes <= 8 * 10**6 and stops.dtype == np.int32


def test_tables_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        rx.Binomial(3).stops(10)[0] = 1


def test_counts_of_the_structural_schedules():
    assert rx.StoreAll().evaluations(10) == 10 and rx.StoreAll().stored(10) == (0, 10)
    assert rx.EveryStep().evaluations(10) == 20 and rx.EveryStep().stored(10) == (10, 1)
    assert rx.Nested(radices=(5, 2)).evaluations(10) == 30
    assert rx.Nested(radices=(5, 2)).stored(10) == (7, 1)
    assert rx.Nested(radices=(5, 2), tapes=True).evaluations(10) == 20
    assert rx.Nested(radices=(5, 2), tapes=True).stored(10) == (5, 2)
    assert rx.Nested(radices=(5, 4)).stored(10) == (3 + 4, 1)
    assert rx.Nested(radices=(5, 4)).stored(3) == (1 + 3, 1)
    assert rx.Nested(1).stored(10) == rx.EveryStep().stored(10)
    assert rx.Nested(1, tapes=True).stored(10) == rx.StoreAll().stored(10)


@pytest.mark.parametrize("schedule", [rx.StoreAll(), rx.EveryStep(), rx.Nested(), rx.Binomial()])
def test_no_steps_cost_nothing(schedule):
    assert schedule.evaluations(0) == 0 and schedule.stored(0) == (0, 0)
    with pytest.raises(ValueError, match="must not be negative"):
        schedule.evaluations(-1)
    with pytest.raises(TypeError, match="non-negative integer"):
        schedule.stored(2.5)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_default_radices_divide_evenly_or_have_the_least_sum(levels):
    for n in [1, 2, 3, 5, 10, 30, 37, 58, 64]:
        all_radices = list(itertools.product(range(1, n + 1), repeat=levels))
        least = min(sum(a) for a in all_radices if math.prod(a) >= n)
        even = [sum(a) for a in all_radices if math.prod(a) == n and (min(a) > 1 or levels == 1)]
        blocks = rx.Nested(levels).blocks(n)
        assert blocks == tuple(sorted(blocks, reverse=True))
        if even and min(even) <= 1.25 * least:
            assert math.prod(blocks) == n and sum(blocks) == min(even)
        else:
            assert math.prod(blocks) >= n and sum(blocks) == least
    assert rx.Nested().blocks(24) == (6, 4) and rx.Nested().blocks(37) == (7, 6)


def test_radices_must_cover():
    with pytest.raises(ValueError, match=r"covers 20 steps, which is fewer than the 21"):
        rx.Nested(radices=(4, 5)).evaluations(21)


def test_schedules_are_values():
    assert rx.Binomial(5) == rx.Binomial(np.int64(5)) and rx.Binomial(5) != rx.Binomial(6)
    assert hash(rx.Nested(radices=[4, 5])) == hash(rx.Nested(radices=(4, 5)))
    assert len({rx.StoreAll(), rx.StoreAll(), rx.EveryStep(), rx.Binomial()}) == 3
    with pytest.raises(AttributeError):
        rx.Binomial(5).snapshots = 6
    for schedule in (
        rx.StoreAll(),
        rx.EveryStep(),
        rx.Nested(3),
        rx.Nested(radices=(4, 5), tapes=True),
        rx.Binomial(),
        rx.Binomial(7),
    ):
        assert eval("rx." + repr(schedule)) == schedule
        assert isinstance(schedule, Schedule)
    assert repr(rx.Binomial(7)) == "Binomial(7)" and repr(rx.Binomial()) == "Binomial()"


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: rx.Binomial(0), ValueError, "snapshots must be at least 1, not 0"),
        (lambda: rx.Binomial(-3), ValueError, "snapshots must be at least 1, not -3"),
        (lambda: rx.Binomial(2.5), TypeError, "snapshots must be a positive integer, not 2.5"),
        (lambda: rx.Binomial(True), TypeError, "snapshots must be a positive integer, not True"),
        (lambda: rx.Binomial("5"), TypeError, "snapshots must be a positive integer, not '5'"),
        (lambda: rx.Nested(0), ValueError, "levels must be at least 1, not 0"),
        (lambda: rx.Nested(1.5), TypeError, "levels must be a positive integer, not 1.5"),
        (lambda: rx.Nested(radices=()), TypeError, "radices must be a tuple"),
        (lambda: rx.Nested(radices=4), TypeError, "radices must be a tuple"),
        (lambda: rx.Nested(radices=(4, 0)), ValueError, "radices must be at least 1, not 0"),
        (lambda: rx.Nested(3, radices=(4, 5)), ValueError, "levels=3 contradicts the 2 radices"),
        (lambda: rx.Nested(tapes=1), TypeError, "tapes must be True or False, not 1"),
    ],
)
def test_refusals(make, error, words):
    with pytest.raises(error, match=words) as info:
        make()
    assert "\n" not in str(info.value)


def test_more_steps_than_the_table_can_number_are_refused():
    with pytest.raises(ValueError, match="too many for its table"):
        rx.Binomial(2).stops(2**31)
