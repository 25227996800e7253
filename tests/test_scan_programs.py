"""Three programs as a user would write them, with lax.scan replaced by rx.scan: same numbers.

And fewer bytes: with ``Binomial(s)``, no more than s states, 8 more, and one and a half tapes,
beside the arrays that any gradient holds.
"""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import rematax as rx
from scan_helpers import assert_trees_close, temp_bytes

pytestmark = pytest.mark.usefixtures("x64")


def nbytes(tree):
    """Give the bytes of all leaves."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def tape_of(step, *args):
    """Give the residual bytes of one step."""
    return nbytes(jax.eval_shape(lambda *a: jax.vjp(step, *a)[1], *args))


def binomial(s):
    """Give rx.scan with s snapshots."""
    return lambda *args, **kwargs: rx.scan(*args, schedule=rx.Binomial(s), **kwargs)


def heat(carry, _, rate):
    """Move a rod with a reaction by one step: temperature (K / 100) and conversion (1)."""
    t, x = carry["temperature"], carry["conversion"]
    reaction = rate * (1.0 - x) * jnp.exp(-1.0 / jnp.maximum(t, 0.1))
    moved = jnp.roll(t, 1) + jnp.roll(t, -1) - 2.0 * t
    return {
        "temperature": t + 0.2 * moved + 0.05 * reaction,
        "conversion": x + 0.05 * reaction,
        "steps": carry["steps"] + 1,
    }, None


def test_a_pytree_carry():
    cells = 2000
    init = {
        "temperature": jnp.linspace(1.0, 2.0, cells),
        "conversion": jnp.zeros(cells),
        "steps": 0,
    }

    def loss(scan, n):
        def outlet(rate, init):
            end, _ = scan(lambda c, x: heat(c, x, rate), init, length=n)
            return (end["conversion"] ** 2).sum(), end["steps"]

        return jax.value_and_grad(outlet, has_aux=True)

    ours, theirs = (jax.jit(loss(scan, 200))(0.7, init) for scan in (binomial(8), lax.scan))
    assert_trees_close(ours, theirs, rtol=1e-11)
    assert ours[0][1] == 200
    state = 2 * cells * 8
    tape = tape_of(lambda t, r: heat({**init, "temperature": t}, None, r), init["temperature"], 0.7)
    short, long = (temp_bytes(loss(binomial(8), n), 0.7, init) for n in (1000, 2000))
    assert abs(long - short) < 0.01 * state and long < (8 + 8) * state + 1.5 * tape


def test_a_training_loop_over_an_rnn():
    """Fifty gradient steps of a recurrent network that learns to add up what it reads."""
    width, n = 16, 60
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "hidden": 0.5 * jax.random.normal(keys[0], (width, width)) / width**0.5,
        "input": jax.random.normal(keys[1], (width, 1)),
        "output": jax.random.normal(keys[2], (1, width)) / width,
    }
    inputs = jax.random.normal(keys[3], (8, n, 1)) / n**0.5

    def predict(scan, params, sequence):
        def cell(h, x):
            h = jnp.tanh(params["hidden"] @ h + params["input"] @ x)
            return h, params["output"] @ h

        return scan(cell, jnp.zeros(width), sequence)[1]

    def train(scan):
        def loss(params):
            out = jax.vmap(lambda s: predict(scan, params, s))(inputs)
            return jnp.mean((out - jnp.cumsum(inputs, axis=1)) ** 2)

        def update(params, _):
            value, gradient = jax.value_and_grad(loss)(params)
            return jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient), value

        return jax.jit(lambda params: lax.scan(update, params, None, 50))(params)

    (ours, losses), (theirs, their_losses) = train(binomial(5)), train(lax.scan)
    assert_trees_close((ours, losses), (theirs, their_losses), rtol=1e-8)
    assert losses[-1] < 0.97 * losses[0]

    def bytes_of(scan, steps):
        inputs = jnp.zeros((8, steps, 1))
        out = lambda params: jax.vmap(lambda s: predict(scan, params, s))(inputs)  # noqa: E731
        return temp_bytes(jax.grad(lambda params: (out(params) ** 2).sum()), params)

    state, per_step = 8 * width * 8, 4 * 8 * 8  # inputs, outputs, cotangents: 8 numbers each
    assert bytes_of(binomial(5), 2000) < (5 + 8) * state + 5 * nbytes(params) + per_step * 2000
    assert bytes_of(lax.scan, 2000) > 2000 * state


def test_a_simulation_with_random_forcing():
    """A particle in a double well, kicked at random: the key is part of the carry."""
    walkers = 3000

    def step(carry, drift, temperature):
        x, key = carry
        key, sub = jax.random.split(key)
        kick = jnp.sqrt(0.02 * temperature) * jax.random.normal(sub, x.shape)
        return (x + 0.01 * (x - x**3 + drift) + kick, key), x.mean()

    def loss(scan, n):
        def energy(temperature, drift):
            init = jnp.zeros(walkers), jax.random.key(42)
            (x, _), means = scan(lambda c, d: step(c, d, temperature), init, drift)
            return (x**2).mean() + (means**2).mean()

        return jax.value_and_grad(energy, (0, 1))

    drift = 0.1 * jnp.sin(jnp.arange(150.0))
    ours, theirs = (jax.jit(loss(scan, 150))(0.3, drift) for scan in (binomial(6), lax.scan))
    assert_trees_close(ours, theirs, rtol=1e-10)
    state = walkers * 8
    tape = tape_of(
        lambda x, d, t: step((x, jax.random.key(0)), d, t)[0][0], jnp.zeros(walkers), 0.1, 0.3
    )
    lengths = 1000, 2000
    short, long = (temp_bytes(loss(binomial(6), n), 0.3, jnp.zeros(n)) for n in lengths)
    per_step = 4 * 8  # the forcing, its gradient, the means, theirs: one number each
    assert long - short < 0.01 * state + per_step * 1000
    assert long < (6 + 8) * state + 1.5 * tape + per_step * 2000


def test_the_gradients_are_right_and_not_only_equal():
    """Both could be wrong alike: the Taylor remainder has to fall as h squared."""

    def loss(rate):
        init = {"temperature": jnp.linspace(1.0, 2.0, 20), "conversion": jnp.zeros(20), "steps": 0}
        end, _ = binomial(4)(lambda c, x: heat(c, x, rate), init, length=50)
        return (end["conversion"] ** 2).sum()

    assert rx.taylor_test(loss, 0.7).passed
