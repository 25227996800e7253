"""The counts of online checkpointing against the loop that does it."""

import equinox.internal as eqxi
import jax
import pytest

import rematax as rx
from rematax.adjoints import _online

STEPS = (1, 2, 3, 5, 6, 7, 10, 11, 14, 15, 16, 21, 28, 29, 45, 46, 78, 79, 133, 300)


def counted_loop(s):
    """Return how often the body of equinox's loop runs in one value and gradient of n steps."""
    body = rx.counted(jax.numpy.sin)

    @jax.jit
    @jax.value_and_grad
    def loop(x, n):
        def step(carry):
            i, x = carry
            return i + 1, body(x)

        start = 0, x
        options = {"kind": "checkpointed", "max_steps": None, "checkpoints": s}
        return eqxi.while_loop(lambda carry: carry[0] < n, step, start, **options)[1]

    def count(n):
        body.reset()
        jax.block_until_ready(loop(0.5, n))
        return body.calls

    return count


@pytest.mark.parametrize(
    "s", [3, 8, *(pytest.param(s, marks=pytest.mark.nightly) for s in (1, 2, 4, 5, 12, 25))]
)
def test_counts_are_those_of_the_loop(s):
    count = counted_loop(s)
    steps = [n for n in STEPS if s > 2 or n < 100]
    assert {n: _online.evaluations(n, s) for n in steps} == {n: count(n) for n in steps}


def test_counts_are_the_least_there_are_where_the_papers_say_so():
    for s in (5, 10, 30):
        for n in range(s + 1, (s + 1) * (s + 2) // 2):
            assert _online.evaluations(n, s) == 3 * n - s
            # The least for an end that is known ahead, or one step more.
            assert 0 <= _online.evaluations(n, s) - rx.Binomial(s).evaluations(n) <= 1


def test_enough_is_the_number_that_diffrax_takes_by_itself():
    for n in (1, 2, 3, 10, 100, 256, 4096, 65536):
        s = _online.enough(n)
        assert (s + 1) * (s + 2) > 2 * n
        assert s == 1 or s * (s + 1) <= 2 * n
        assert _online.evaluations(n, s) <= 3 * n


def test_more_checkpoints_are_not_always_better():
    assert _online.evaluations(1000, 42) > 1.2 * _online.evaluations(1000, 31)
    for n, most in ((1, 1), (76, 10), (1000, 42), (20_000, 60)):
        s = _online.best(n, most)
        assert 1 <= s <= most
        assert _online.evaluations(n, s) <= _online.evaluations(n, most)


def test_the_best_is_the_best_of_all():
    for n in (1, 2, 9, 40):
        runs = [_online.evaluations(n, s) for s in range(1, n + 5)]
        for most in range(1, n + 5):
            s = _online.best(n, most)
            assert 1 <= s <= most
            assert _online.evaluations(n, s) == min(runs[:most])
