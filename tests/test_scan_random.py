"""Random trees, dtypes, lengths and schedules: values, gradients and tangents of lax.scan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import rematax as rx
from scan_helpers import assert_trees_close, known_bug, with_schedule

FLOATS = [jnp.float32, jnp.float64, jnp.complex64, jnp.complex128]
OTHERS = [jnp.int32, jnp.int8, jnp.uint32, jnp.bool_]

leaf = st.tuples(
    st.sampled_from(FLOATS + OTHERS),
    st.sampled_from([(), (1,), (3,), (2, 2), (0,)]),
)
tree = st.recursive(
    st.one_of(leaf.map(lambda kind: ("leaf", *kind)), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=4,
)
schedules = st.one_of(
    st.builds(rx.Binomial, st.one_of(st.none(), st.integers(1, 12))),
    st.builds(rx.Nested, st.integers(1, 3), tapes=st.booleans()),
    st.just(rx.EveryStep()),
    st.just(rx.StoreAll()),
)


def build(kind, key, *lead):
    """Make arrays for a random tree."""
    if isinstance(kind, tuple) and kind and kind[0] == "leaf":
        _, dtype, shape = kind
        numbers = np.random.default_rng(key).normal(size=(*lead, *shape))
        if jnp.issubdtype(dtype, jnp.inexact):
            return jnp.asarray(numbers, dtype)
        return jnp.asarray(np.abs(10 * numbers).astype(int), dtype)
    if kind is None:
        return None
    if isinstance(kind, dict):
        return {
            name: build(part, key + i + 1, *lead) for i, (name, part) in enumerate(kind.items())
        }
    return type(kind)(build(part, key + 7 * i + 1, *lead) for i, part in enumerate(kind))


def mean(values, dtype):
    """Mix any leaves into one number of a real dtype."""
    parts = [jnp.sum(jnp.abs(jnp.sin(v.astype(jnp.complex128)))) for v in jax.tree.leaves(values)]
    return (sum(parts, jnp.float64(0.5)) / (1 + len(parts))).astype(dtype)


def step_of(w):
    """Make a step that mixes carry, x and a closed-over parameter, whatever their trees."""

    def step(carry, x):
        mixed = jnp.sin(mean((carry, x), jnp.float64) * w)

        def new(c):
            if jnp.issubdtype(c.dtype, jnp.inexact):
                return jnp.tanh(c * mixed.astype(c.dtype) + jnp.asarray(0.3, c.dtype))
            return ~c

        return jax.tree.map(new, carry), {"x": x, "c": carry, "m": mixed}

    return step


@pytest.mark.usefixtures("x64")
@settings(max_examples=15)
@given(tree, tree, st.integers(0, 13), schedules, st.booleans(), st.integers(0, 1000))
def test_any_scan_agrees_with_lax_scan(carry, x, n, schedule, reverse, seed):
    init, xs = build(carry, seed), build(x, seed + 1000, n)
    leaves, structure = jax.tree.flatten((init, xs))
    varied = [i for i, a in enumerate(leaves) if jnp.issubdtype(a.dtype, jnp.inexact)]

    def program(scan):
        def loss(w, some):
            full = list(leaves)
            for i, a in zip(varied, some, strict=True):
                full[i] = a
            c, ys = scan(step_of(w), *jax.tree.unflatten(structure, full), n, reverse)
            return mean((c, ys), jnp.float64), (c, ys)

        def value(w, some):
            return loss(w, some)[0]

        point = jnp.float64(0.9), [leaves[i] for i in varied]
        gradient = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(*point)
        return gradient, jax.jit(lambda p: jax.jvp(value, p, p))(point)

    expected = program(lax.scan)
    with known_bug(schedule):
        actual = program(with_schedule(schedule))
    assert_trees_close(actual, expected, rtol=2e-4, atol=1e-5)


@pytest.mark.usefixtures("x64")
@settings(max_examples=12)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 1000))
def test_any_binomial_gradient_agrees_in_double_precision(n, s, seed):
    numbers = np.random.default_rng(seed)
    w, c, xs = (jnp.asarray(numbers.normal(size=k)) for k in ((2, 2), (2,), (n,)))

    def gradient(scan):
        def loss(w, c, xs):
            c, ys = scan(lambda c, x: (jnp.sin(w @ c) + x, c.sum()), c, xs)
            return (c**2).sum() + (ys**2).sum()

        return jax.jit(jax.grad(loss, (0, 1, 2)))(w, c, xs)

    ours, theirs = gradient(with_schedule(rx.Binomial(s))), gradient(lax.scan)
    assert_trees_close(ours, theirs, rtol=1e-10, atol=1e-12)
