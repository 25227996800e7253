"""What the contenders compute: a step, where it starts, its parameters, and how often it runs."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

SPECIES = 10


class Workload(NamedTuple):
    """A loop to differentiate.

    ``step(c, k) -> c`` is one step. A problem of differential equations has a ``rate(c, k)`` and a
    step length ``h`` as well, for solvers that make their own steps.
    """

    step: callable
    first: jax.Array
    k: jax.Array
    n: int
    rate: callable = None
    h: float = None


def packed(cells=2000, n=1024):
    """A packed bed's worth of work: RK4 on cells x species, float64, with a tape of 24 states."""
    rate, first = _bed(cells)

    def step(c, k, h=1e-2):
        k1 = rate(c, k)
        k2 = rate(c + h / 2 * k1, k)
        k3 = rate(c + h / 2 * k2, k)
        k4 = rate(c + h * k3, k)
        return c + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    return Workload(step, first, jnp.float64(0.3), n)


def tiny():
    """The same on ten cells: a step so small that the loop around it shows."""
    return packed(cells=10)


def matmul(width=256, batch=128, n=512):
    """A recurrent cell, float32: two matrix products a step, and little else."""
    keys = jax.random.split(jax.random.key(2), 3)
    weights = jax.random.normal(keys[0], (2, width, width), jnp.float32) / width**0.5
    first = jax.random.normal(keys[1], (batch, width), jnp.float32)

    def step(c, k):
        return jnp.tanh(jnp.tanh(c @ k[0]) @ k[1])

    return Workload(step, first, weights, n)


def scalar(n=10**6):
    """One number and a million steps: nothing but the loop."""

    def step(c, k):
        return c + 1e-6 * jnp.sin(k * c)

    return Workload(step, jnp.float64(1.0), jnp.float64(0.3), n)


def tsit5(cells=200, n=1000):
    """Steps of equal length by Tsit5, with diffrax's coefficients."""
    import diffrax

    rate, first = _bed(cells)
    tableau = diffrax.Tsit5().tableau

    def step(c, k, h=1e-2):
        slopes = [rate(c, k)]
        for row in tableau.a_lower[:-1]:
            slopes.append(rate(c + h * sum(w * s for w, s in zip(row, slopes, strict=True)), k))
        return c + h * sum(w * s for w, s in zip(tableau.b_sol[:-1], slopes, strict=True))

    return Workload(step, first, jnp.float64(0.3), n, rate, 1e-2)


def _bed(cells):
    exchange = jax.random.normal(jax.random.key(0), (SPECIES, SPECIES)) / SPECIES
    first = 1.0 + 0.1 * jax.random.normal(jax.random.key(1), (cells, SPECIES))

    def rate(c, k):
        moved = jnp.roll(c, 1, axis=0) - c
        return 0.1 * moved + k * (c * c / (1 + c)) @ exchange - 0.1 * c * c

    return rate, first


WORKLOADS = {f.__name__: f for f in (packed, tiny, matmul, scalar, tsit5)}
