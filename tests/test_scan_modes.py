"""Every mode of differentiation with every schedule, under vmap and jit in every order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rematax as rx
from scan_helpers import REMAT3, assert_trees_close, known_bug, temp_bytes, with_schedule

pytestmark = pytest.mark.usefixtures("x64")

nightly = pytest.mark.nightly
SCHEDULES = [
    pytest.param(rx.Binomial(3), id="Binomial"),
    pytest.param(rx.Nested(2), id="Nested"),
    # Both are lax.scan itself, the step wrapped in jax.checkpoint for the one.
    pytest.param(rx.EveryStep(), id="EveryStep", marks=nightly),
    pytest.param(rx.StoreAll(), id="StoreAll", marks=nightly),
]
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


def loss(scan):
    """Make a scalar function of a closed-over matrix, a first carry and xs."""

    def fun(w, c, xs):
        def step(carry, x):
            a, k = carry
            b = jnp.sin(w @ a) + 0.1 * x * a
            return (b, k + 1), (b.sum(), k)

        (a, _), (ys, _) = scan(step, (c, jnp.int32(0)), xs)
        return (a**2).sum() + (ys**3).sum()

    return fun


def arguments():
    w = 0.4 * jax.random.normal(jax.random.key(0), (2, 2))
    return w, jnp.array([0.2, 0.5]), jnp.linspace(0.0, 1.0, 11)


ALL = (0, 1, 2)
MODES = {
    "grad": lambda f, x: jax.grad(f, ALL)(*x),
    "grad of one": lambda f, x: (jax.grad(f, 0)(*x), jax.grad(f, 1)(*x), jax.grad(f, 2)(*x)),
    "jvp": lambda f, x: jax.jvp(f, x, x),
    "jvp along one": lambda f, x: jax.jvp(lambda w: f(w, *x[1:]), x[:1], x[:1]),
    "jacfwd": lambda f, x: jax.jacfwd(f, ALL)(*x),
    "jacrev": lambda f, x: jax.jacrev(f, ALL)(*x),
    "linearize": lambda f, x: jax.linearize(f, *x)[1](*x),
    "vjp of linearize": lambda f, x: jax.linear_transpose(jax.linearize(f, *x)[1], *x)(1.0),
    "hessian-vector": lambda f, x: jax.jvp(jax.grad(f, ALL), x, x),
    "linearized gradient": lambda f, x: jax.linearize(jax.grad(f, ALL), *x)[1](*x),
    "hessian": lambda f, x: jax.hessian(f, ALL)(*x),
    "mixed hessian": lambda f, x: jax.jacfwd(jax.grad(f, 1), 0)(*x),
    "forward over forward": lambda f, x: jax.jacfwd(jax.jacfwd(f, 1), ALL)(*x),
    "reverse over forward": lambda f, x: jax.grad(lambda *x: jax.jvp(f, x, x)[1], ALL)(*x),
    "reverse over one tangent": lambda f, x: jax.grad(
        lambda w: jax.jvp(lambda c: f(w, c, x[2]), x[1:2], x[1:2])[1]
    )(x[0]),
    "reverse over reverse": lambda f, x: jax.grad(
        lambda *x: sum((g**2).sum() for g in jax.grad(f, ALL)(*x)), ALL
    )(*x),
    "reverse over pullback": lambda f, x: jax.jacrev(lambda ct: jax.vjp(f, *x)[1](ct))(2.0),
    "third order": lambda f, x: jax.jvp(lambda *x: jax.jvp(jax.grad(f, ALL), x, x)[1], x, x),
    "reverse over hessian": lambda f, x: jax.grad(
        lambda c: (jax.hessian(f, 1)(x[0], c, x[2]) ** 2).sum()
    )(x[1]),
    "checkpoint": lambda f, x: jax.grad(jax.checkpoint(f), ALL)(*x),
    "hessian of checkpoint": lambda f, x: jax.hessian(jax.checkpoint(f), 1)(*x),
    "inside lax.scan": lambda f, x: jax.grad(
        lambda c: lax.scan(lambda c, _: (c - 0.1 * f(x[0], c, x[2]), None), c, None, 3)[0].sum()
    )(x[1]),
    "gradient steps inside lax.scan": lambda f, x: jax.grad(
        lambda c: lax.scan(
            lambda c, _: (c - 0.1 * jax.grad(f, 1)(x[0], c, x[2]), None), c, None, 2
        )[0].sum()
    )(x[1]),
}


@every_schedule
@pytest.mark.parametrize("mode", MODES)
def test_mode(schedule, mode):
    run, x = MODES[mode], arguments()
    expected = jax.jit(lambda *x: run(loss(lax.scan), x))(*x)
    with known_bug(schedule):
        actual = jax.jit(lambda *x: run(loss(with_schedule(schedule)), x))(*x)
    assert_trees_close(actual, expected, rtol=1e-9, atol=1e-11)


@every_schedule
@pytest.mark.parametrize("mode", ["grad", "jvp", "hessian-vector", "linearize"])
def test_mode_without_jit(schedule, mode):
    run, x = MODES[mode], arguments()
    expected = run(loss(lax.scan), x)
    assert_trees_close(run(loss(with_schedule(schedule)), x), expected, rtol=1e-9, atol=1e-11)


AXES = [
    pytest.param((0, 0, 1), id="all"),
    pytest.param((None, None, 1), id="xs", marks=nightly),
    pytest.param((None, 0, None), id="c", marks=nightly),
    pytest.param((0, None, None), id="w", marks=nightly),
]


def batched(axes):
    w, c, xs = arguments()
    stacked = jnp.stack([w, 1.1 * w]), jnp.stack([c, -c]), jnp.stack([xs, 0.5 * xs], 1)
    one = w, c, xs
    return [b if axis is not None else a for a, b, axis in zip(one, stacked, axes, strict=True)]


@every_schedule
@pytest.mark.parametrize("axes", AXES)
def test_vmap_and_jit_in_every_order(schedule, axes):
    x = batched(axes)

    def product(f):
        return lambda *x: jax.jvp(jax.grad(f, ALL), x, x)

    def orders(scan):
        f = loss(scan)
        total = lambda *x: jax.vmap(f, axes)(*x).sum()  # noqa: E731
        return (
            jax.jit(jax.vmap(jax.grad(f, ALL), axes)),
            jax.jit(jax.grad(total, ALL)),
            jax.jit(lambda *x: jax.jvp(total, x, x)),
            jax.jit(jax.vmap(product(f), axes)),
            jax.vmap(jax.jit(jax.grad(jax.jit(f), ALL)), axes),
            jax.jit(jax.grad(lambda *x: sum((g**2).sum() for g in jax.grad(total, ALL)(*x)), ALL)),
        )

    pairs = zip(orders(with_schedule(schedule)), orders(lax.scan), strict=True)
    for ours, theirs in pairs:
        assert_trees_close(ours(*x), theirs(*x), rtol=1e-9, atol=1e-11)


@every_schedule
def test_numpy_arrays_under_vmap_inside_jit(schedule):
    w, c, xs = map(np.asarray, batched((0, 0, 1)))
    xs = xs.T

    def modes(scan):
        f = loss(scan)
        over = lambda g: jax.jit(lambda t: jax.tree.map(t.__mul__, jax.vmap(g)(w, c, xs)))  # noqa: E731
        yield over(f)
        yield over(jax.grad(f, ALL))
        yield over(lambda *x: jax.jvp(f, x, x))
        yield over(lambda *x: jax.jvp(jax.grad(f), x, x))
        yield over(lambda *x: jax.vjp(jax.grad(f), *x)[1](x[0]))

    for ours, theirs in zip(modes(with_schedule(schedule)), modes(lax.scan), strict=True):
        t = jnp.array(2.0)
        assert_trees_close(ours(t), theirs(t), rtol=1e-9, atol=1e-11)


def test_linear_transpose_of_a_pullback():
    x = arguments()

    def there_and_back(scan):
        return jax.linear_transpose(jax.vjp(loss(scan), *x)[1], 1.0)(x)

    binomial = there_and_back(with_schedule(rx.Binomial(3)))
    assert_trees_close(binomial, there_and_back(lax.scan), rtol=1e-9)
    if not REMAT3:
        assert_trees_close(there_and_back(with_schedule(rx.Nested(2))), binomial, rtol=1e-9)


def chain(n, scan):
    """Make a scalar function of a carry of 500 numbers and a scalar parameter."""

    def fun(c, k):
        c, _ = scan(lambda c, _: (jnp.sin(c) * k + 0.1 * c, None), c, None, n)
        return (c**2).sum()

    return fun


def tangent_alone(f):
    return lambda c, k: jax.jvp(f, (c, k), (c, 1.0))[1]


SECOND = {
    "forward over reverse": lambda f: lambda c, k: jax.jvp(jax.grad(f, (0, 1)), (c, k), (c, 1.0)),
    "reverse over forward": lambda f: jax.grad(
        lambda c, k: sum(jax.jvp(f, (c, k), (c, 1.0))), (0, 1)
    ),
    "reverse over the tangent alone": lambda f: jax.grad(tangent_alone(f), (0, 1)),
    "reverse over reverse": lambda f: jax.grad(
        lambda c, k: sum((g**2).sum() for g in jax.grad(f, (0, 1))(c, k)), (0, 1)
    ),
    "jvp": lambda f: lambda c, k: jax.jvp(f, (c, k), (c, 1.0)),
    "linearize": lambda f: lambda c, k: jax.linearize(f, c, k)[1](c, 1.0),
    "third order": lambda f: jax.grad(
        lambda c, k: (jax.grad(lambda k: tangent_alone(f)(c, k))(k)) ** 2
    ),
}


@pytest.mark.parametrize("mode", SECOND)
def test_no_derivative_of_any_order_stores_every_step(mode):
    """Never a silent store-all: temporary bytes are the same for 200 and 400 steps."""
    c, k, state = jnp.linspace(0.1, 1.0, 500), 0.9, 500 * 8
    binomial = with_schedule(rx.Binomial(7))
    short, long = (temp_bytes(SECOND[mode](chain(n, binomial)), c, k) for n in (200, 400))
    assert abs(long - short) < state and long < 150 * state
    ours = jax.jit(SECOND[mode](chain(40, binomial)))(c, k)
    theirs = jax.jit(SECOND[mode](chain(40, lax.scan)))(c, k)
    assert_trees_close(ours, theirs, rtol=1e-8, atol=1e-10)


def test_forward_mode_keeps_no_snapshots():
    c, state = jnp.linspace(0.1, 1.0, 500), 500 * 8
    fun = SECOND["jvp"](chain(1000, with_schedule(rx.Binomial(100))))
    assert temp_bytes(fun, c, 0.9) < 10 * state
