r"""The closed form of A → B → C, both of first order, in a batch reactor or in plug flow.

With :math:`p = k_1 t` and :math:`q = k_2 t` (in plug flow, :math:`t` is the residence time: length
over velocity) and pure A at first,

.. math::
    \frac{c_A}{c_{A0}} = e^{-p}, \qquad
    \frac{c_B}{c_{A0}} = p \, D(p, q), \qquad
    D(p, q) = \frac{e^{-p} - e^{-q}}{q - p}, \qquad
    c_C = c_{A0} - c_A - c_B.

As it stands, :math:`D` is 0/0 at :math:`p = q` and loses digits nearby. It is a divided difference,
smooth and symmetric, so near the diagonal it is computed as
:math:`e^{-(p+q)/2} \sinh(x)/x` with :math:`x = (p - q)/2` and the series of the second factor.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ._checks import refuse_misfits, refuse_negative

# Coefficients of sinh(x)/x in x². With |x| < 1/2 the first one left out is below 1e-22.
_SINHC = [1 / math.factorial(2 * m + 1) for m in range(9)]
_NEAR = 0.5


def consecutive(k1: ArrayLike, k2: ArrayLike, t: ArrayLike, feed: ArrayLike = 1.0) -> Array:
    """Compute the concentrations of A, B and C for A → B → C, both of first order.

    Right at ``k1 == k2`` and near it, and differentiable there any number of times.

    Args:
        k1: Rate constant of A → B, not negative, in 1/s (or 1 over the unit of ``t``).
        k2: Rate constant of B → C, likewise.
        t: Time in batch, or residence time (length over velocity) in plug flow, not negative, in s.
        feed: Concentration of A at first, not negative, in any unit such as mol/m³; there is no B
            or C at first.

    Returns:
        Concentrations in the unit of ``feed``, shape ``(3, ...)``, with the shape that the
        arguments broadcast to. C is computed from the balance, to rounding of ``feed``.

    Raises:
        TypeError: An argument is no real number.
        ValueError: An argument is negative, or the shapes do not fit together. Values that JAX is
            tracing cannot be checked.

    Example:
        >>> from rematax import reactors
        >>> a, b, c = reactors.consecutive(1.0, 1.0, 2.0)
        >>> abs(float(b) - 2 * float(a)) < 1e-6, abs(float(a + b + c) - 1) < 1e-6
        (True, True)
    """
    p, q, t, feed = _arguments("consecutive", k1, k2, t, feed)
    a, b = feed * jnp.exp(-p), feed * p * _difference(p, q)[0]
    return jnp.stack([a, b, feed - a - b])


def consecutive_sensitivities(
    k1: ArrayLike, k2: ArrayLike, t: ArrayLike, feed: ArrayLike = 1.0
) -> Array:
    """Compute how those concentrations change with the rate constants, without autodiff.

    Args:
        k1: As in :func:`consecutive`.
        k2: As in :func:`consecutive`.
        t: As in :func:`consecutive`.
        feed: As in :func:`consecutive`.

    Returns:
        Derivatives of A, B and C (first axis) with respect to ``k1`` and ``k2`` (second axis), in
        the unit of ``feed`` times that of ``t``; shape ``(3, 2, ...)``.

    Raises:
        TypeError: An argument is no real number.
        ValueError: An argument is negative, or the shapes do not fit together. Values that JAX is
            tracing cannot be checked.

    Example:
        Faster A → B makes more B in a short reactor and less in a long one; nothing is lost:

        >>> from rematax import reactors
        >>> short, long = (reactors.consecutive_sensitivities(1.0, 0.5, t) for t in (0.5, 5.0))
        >>> bool(short[1, 0] > 0 > long[1, 0]), bool(abs(long.sum(axis=0)).max() < 1e-6)
        (True, True)
    """
    p, q, t, feed = _arguments("consecutive_sensitivities", k1, k2, t, feed)
    d, d_p, d_q = _difference(p, q)
    a = jnp.stack([-feed * t * jnp.exp(-p), jnp.zeros_like(p)])
    b = jnp.stack([feed * t * (d + p * d_p), feed * t * p * d_q])
    return jnp.stack([a, b, -a - b])


def _arguments(name: str, k1, k2, t, feed) -> tuple[Array, Array, Array, Array]:
    """Check the arguments, broadcast them, and make them dimensionless."""
    for what, value in {"k1": k1, "k2": k2, "t": t, "feed": feed}.items():
        refuse_negative(f"reactors.{name}: {what}", value)
    refuse_misfits(name, k1=k1, k2=k2, t=t, feed=feed)
    k1, k2, t, feed = (
        jnp.asarray(value, dtype=jnp.result_type(float)) for value in (k1, k2, t, feed)
    )
    shape = jnp.broadcast_shapes(k1.shape, k2.shape, t.shape, feed.shape)
    k1, k2, t, feed = (jnp.broadcast_to(value, shape) for value in (k1, k2, t, feed))
    return k1 * t, k2 * t, t, feed


@jax.jit
def _difference(p: Array, q: Array) -> tuple[Array, Array, Array]:
    """Compute the divided difference D(p, q) and its derivatives with respect to p and q."""
    x = (p - q) / 2
    near = abs(x) < _NEAR

    # Each branch gets arguments at which it is finite: jnp.where differentiates both.
    small = jnp.where(near, x, 0.0)
    mean = jnp.exp(-(p + q) / 2)
    even, odd = jax.jvp(_sinhc, (small,), (jnp.ones_like(small),))
    close = mean * even, mean * (odd - even) / 2, -mean * (odd + even) / 2

    apart = jnp.where(near, 1.0, q - p)
    ep, eq = jnp.exp(-p), jnp.exp(-q)
    d = (ep - eq) / apart
    far = d, (d - ep) / apart, (eq - d) / apart
    d, d_p, d_q = (jnp.where(near, a, b) for a, b in zip(close, far, strict=True))
    return d, d_p, d_q


def _sinhc(x: Array) -> Array:
    """Compute sinh(x)/x by its series, for small x."""
    square, value = x * x, jnp.zeros_like(x)
    for coefficient in reversed(_SINHC):
        value = value * square + coefficient
    return value
