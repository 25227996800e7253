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

    What is more than a step in a loop is a ``program(scan, c, k)``, with a scan as ``jax.lax.scan``
    is one; ``by_hand`` is a program with the same result, as one would write it who knows what the
    scan may miss. ``order`` is that of the derivative. If ``calls`` is given, that many calls in a
    row, outside of any jit, are timed instead of one that is compiled.
    """

    step: callable
    first: jax.Array
    k: jax.Array
    n: int
    rate: callable = None
    h: float = None
    program: callable = None
    by_hand: callable = None
    order: int = 1
    calls: int = None

    def run(self, scan, c, k):
        """Run the loop by this scan; give what its loss is taken of."""
        if self.program is not None:
            return self.program(scan, c, k)
        return scan(lambda c, _: (self.step(c, k), None), c, None, self.n)[0]


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


def shared_xs():
    """A network for a batch, vmap outside of the scan; each step has weights of its own."""
    first, weights = _network(50)

    def one(scan, c, weights):
        return scan(lambda c, w: (c + 0.1 * jnp.tanh(c @ w), None), c, weights)[0]

    def program(scan, batch, weights):
        return jax.vmap(lambda c: one(scan, c, weights))(batch)

    return Workload(None, first, weights, 50, program=program, by_hand=one)


def shared_closed(n=50):
    """A network for a batch, vmap outside of the scan; all steps close over the same weights."""
    first, (weights,) = _network(1)

    def one(scan, c, w):
        return scan(lambda c, _: (c + 0.1 * jnp.tanh(c @ w), None), c, None, n)[0]

    def program(scan, batch, w):
        return jax.vmap(lambda c: one(scan, c, w))(batch)

    return Workload(None, first, weights, n, program=program, by_hand=one)


def buffer(size=2000, n=500):
    """A trajectory in a buffer of the carry, which is only written to; by hand it is ys."""
    step, first = _wave(size)

    def program(scan, c, k):
        def write(carry, i):
            c, path = carry
            c = step(c, k)
            return (c, path.at[i].set(c)), None

        path = jnp.zeros((n, *c.shape), c.dtype)
        return scan(write, (c, path), jnp.arange(n))[0][1]

    def by_hand(scan, c, k):
        def write(c, _):
            c = step(c, k)
            return c, c

        return scan(write, c, None, n)[1]

    return Workload(step, first, jnp.float64(0.3), n, program=program, by_hand=by_hand)


def running_sum(size=20_000, n=1024):
    """A running sum in the carry, as large as the state."""
    step, first = _wave(size)

    def program(scan, c, k):
        def add(carry, _):
            c, total = carry
            c = step(c, k)
            return (c, total + c**2), None

        return scan(add, (c, jnp.zeros_like(c)), None, n)[0][1]

    return Workload(step, first, jnp.float64(0.3), n, program=program)


def hvp():
    """The Hessian of a small bed times a vector; 43 snapshots, the default, are 30 x 11 x 3's."""
    return packed(cells=100, n=990)._replace(order=2)


def small(n=70_000):
    """Four numbers: Robertson's kinetics and an integral, by steps of RK4."""

    def rate(c, k):
        a, b, c, _ = c
        r1, r2, r3 = k[0] * a, k[1] * b * c, k[2] * b**2
        return r2 - r1, r1 - r2 - r3, r3, c

    def step(c, k, h=50 / n):
        def moved(slope, h):
            return tuple(a + h * da for a, da in zip(c, slope, strict=True))

        k1 = rate(c, k)
        k2 = rate(moved(k1, h / 2), k)
        k3 = rate(moved(k2, h / 2), k)
        k4 = rate(moved(k3, h), k)
        slopes = zip(k1, k2, k3, k4, strict=True)
        return moved([(a + 2 * b + 2 * c + d) / 6 for a, b, c, d in slopes], h)

    def program(scan, c, k):
        return scan(lambda c, _: (step(c, k), None), tuple(c), None, n)[0][-1]

    first, k = jnp.array([1.0, 0.0, 0.0, 0.0]), jnp.array([0.04, 1.0e4, 3.0e7])
    return Workload(step, first, k, n, program=program)


def eager(order=0, n=100):
    """Calls in a row of a scan of the same function, outside of jit."""

    def step(c, x):
        return jnp.tanh(c + x), None

    def program(scan, c, xs):
        return scan(step, c, xs)[0]

    xs = jnp.linspace(0.1, 1.0, n)
    return Workload(None, jnp.float64(0.0), xs, n, program=program, order=order, calls=10)


def eager_grad():
    """The same for the gradient, outside of jit as well."""
    return eager(order=1)


def _network(layers, width=128, batch=64):
    keys = jax.random.split(jax.random.key(3))
    weights = jax.random.normal(keys[0], (layers, width, width), jnp.float32) / width**0.5
    return jax.random.normal(keys[1], (batch, width), jnp.float32), weights


def _wave(size):
    return lambda c, k: jnp.sin(c) * k + 0.7 * c, jnp.linspace(0.1, 1.0, size)


def _bed(cells):
    exchange = jax.random.normal(jax.random.key(0), (SPECIES, SPECIES)) / SPECIES
    first = 1.0 + 0.1 * jax.random.normal(jax.random.key(1), (cells, SPECIES))

    def rate(c, k):
        moved = jnp.roll(c, 1, axis=0) - c
        return 0.1 * moved + k * (c * c / (1 + c)) @ exchange - 0.1 * c * c

    return rate, first


WORKLOADS = {
    f.__name__: f
    for f in (
        *(packed, tiny, matmul, scalar, tsit5),
        *(shared_xs, shared_closed, buffer, running_sum, hvp, small, eager, eager_grad),
    )
}
