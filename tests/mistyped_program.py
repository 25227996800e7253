"""A user's mistakes: each line that is marked is to be an error. Checked by test_types.py."""

import jax
import jax.numpy as jnp

import rematax as rx


def step(c: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
    """Multiply."""
    return c * x, None


@rx.counted
def counted(c: jax.Array) -> jax.Array:
    """Count."""
    return jnp.sin(c)


xs = jnp.ones(3)
rx.scan(step, xs[0], xs, schedule="binomial")  # wrong
rx.scan(lambda c: c, xs[0], xs)  # wrong
rx.use_backend("gpuu")  # wrong
counted(xs, xs)  # wrong
rx.residuals(jnp.sin, xs)[0].size  # wrong  # noqa: B018
