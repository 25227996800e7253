"""The default is a rule on sizes: nothing is recomputed in vain, and no more held than needed."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rematax as rx
from rematax import _jax
from rematax._default import choose, decided
from rematax._loop import Loop, Parts

sizes = st.integers(0, 10**7)


def held(schedule, n, state, tape):
    """Bytes of a schedule, a table and pieces of xs and ys left out."""
    states, tapes = schedule.stored(n)
    working = 0 if isinstance(schedule, rx.StoreAll) else 2
    return (states + working) * state + tapes * tape


@given(st.integers(1, 10**5), sizes, sizes, sizes, sizes)
def test_the_rule_never_holds_more_than_twice_the_least(n, state, tape, x, y):
    chosen = choose(n, state, tape, x, y)
    least = min(held(rx.Binomial(), n, state, tape) + 4 * n, n * tape)
    assert held(chosen, n, state, tape) <= 2 * least
    if held(chosen, n, state, tape) > least and not isinstance(chosen, rx.StoreAll):
        assert chosen == rx.Nested() and state < 1024


@pytest.mark.parametrize(
    ("sizes", "schedule"),
    [
        ((1000, 20_000, 200_000, 0, 0), rx.Binomial()),
        ((70_000, 32, 300, 0, 0), rx.Nested()),  # the table outweighs the states
        ((10**6, 4, 4, 0, 0), rx.Nested()),
        ((3, 20_000, 20_000, 0, 0), rx.StoreAll()),  # too few steps
        ((1000, 10**6, 100, 0, 0), rx.StoreAll()),  # a large leaf, read in small pieces
        ((1000, 500, 0, 0, 0), rx.StoreAll()),  # linear
        ((97, 800, 20_000, 10**6, 0), rx.Binomial()),  # blocks would cut xs
    ],
)
def test_cases(sizes, schedule):
    assert choose(*sizes) == schedule


def decided_for(f, init, n):
    """Give the schedule for a derivative along the first carry."""
    call = _jax.captured(f, init, None, n)
    consts, carry, xs = call.sizes
    loop = Loop(call.program, call.sizes, n, False, 1, None)
    return decided(loop, Parts((False,) * consts, (True,) * carry, (False,) * xs)).schedule


def wide(c, _):
    """A step with a tape of several states."""
    for _ in range(4):
        c = jnp.sin(c) * jnp.cos(0.3 * c)
    return c, None


@pytest.mark.skipif(_jax.rematerialises_late(), reason="with jax_remat3 Nested is never taken")
def test_sizes_are_read_from_the_step():
    state = jnp.ones(5000)
    assert decided_for(wide, state, 1000) == rx.Binomial()
    assert decided_for(wide, state[:50], 1000) == rx.Nested()
    assert decided_for(wide, state, 2) == rx.StoreAll()
    assert decided_for(lambda c, _: (2 * c, None), state, 1000) == rx.StoreAll()

    def summed(carry, _):
        c, total, path = carry
        c, _ = wide(c, None)
        return (c, total + c, path.at[0].set(c[0])), None

    # What is only added to or written to is no part of the state.
    large = jnp.zeros(10**6)
    assert decided_for(summed, (state[:50], jnp.zeros(50), large), 1000) == rx.Nested()


def test_the_default_stores_everything_where_it_decides_so():
    program = jax.make_jaxpr(jax.grad(lambda c: rx.scan(wide, c, length=2)[0].sum()))
    like = jax.make_jaxpr(jax.grad(lambda c: jax.lax.scan(wide, c, length=2)[0].sum()))
    x = jnp.ones(500)
    count = lambda p: str(p(x)).count("sin")  # noqa: E731
    assert count(program) == count(like)
