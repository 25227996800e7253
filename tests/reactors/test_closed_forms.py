"""The closed form of A -> B -> C, against high precision, an integrator, and itself."""

from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

from rematax import reactors

GAPS = [0.0, 1e-14, 1e-9, 1e-6, 1e-3, 0.1, 0.3, 0.9, 1.0, 1.1, 3.0, 30.0]


def exact(k1, k2, t):
    """Return B, dB/dk1 and dB/dk2 by the textbook's formula, in 80 digits."""
    with localcontext() as context:
        context.prec = 80
        k1, k2, t = Decimal(k1), Decimal(k2), Decimal(t)
        a, b, d = (-k1 * t).exp(), (-k2 * t).exp(), k2 - k1
        value = k1 * (a - b) / d
        by_k1 = (a - b) / d + k1 * (-t * a / d + (a - b) / d**2)
        by_k2 = k1 * (t * b / d - (a - b) / d**2)
        return [float(x) for x in (value, by_k1, by_k2)]


@pytest.mark.parametrize("gap", GAPS[1:])
@pytest.mark.parametrize("sign", [1, -1])
def test_against_high_precision(gap, sign, x64):
    k1 = 1.3 if sign > 0 else 1.3 + gap
    k2 = k1 + sign * gap
    value, *slopes = exact(k1, k2, 0.7)
    assert np.isclose(reactors.consecutive(k1, k2, 0.7)[1], value, rtol=1e-14, atol=0)
    np.testing.assert_allclose(
        reactors.consecutive_sensitivities(k1, k2, 0.7)[1], slopes, rtol=2e-13, atol=1e-18
    )


@pytest.mark.parametrize("k", [0.0, 1e-8, 0.5, 1.0, 40.0])
def test_equal_rate_constants(k, x64):
    t = 2.0
    value = reactors.consecutive(k, k, t)[1]
    assert np.isclose(value, k * t * np.exp(-k * t), rtol=1e-14)
    slopes = reactors.consecutive_sensitivities(k, k, t)[1]
    right = np.array([t - k * t**2 / 2, -k * t**2 / 2]) * np.exp(-k * t)
    np.testing.assert_allclose(slopes, right, rtol=1e-13, atol=1e-16)


@pytest.mark.parametrize("gap", GAPS)
def test_against_the_matrix_exponential(gap, x64):
    k1, k2 = 0.8, 0.8 + gap
    rates = np.array([[-k1, 0, 0], [k1, -k2, 0], [0, k2, 0]])
    right = expm(1.5 * rates) @ [2.0, 0, 0]
    np.testing.assert_allclose(reactors.consecutive(k1, k2, 1.5, feed=2.0), right, atol=1e-14)


@pytest.mark.parametrize("gap", GAPS)
def test_sensitivities_equal_autodiff(gap, x64):
    k1, k2, t = 0.8 + gap, 0.8, jnp.array([0.0, 0.5, 5.0])

    def concentrations(k1, k2):
        return reactors.consecutive(k1, k2, t, 3.0)

    closed = reactors.consecutive_sensitivities(k1, k2, t, 3.0)
    assert closed.shape == (3, 2, 3)
    for jacobian in (jax.jacfwd, jax.jacrev):
        by_autodiff = jax.jit(jacobian(concentrations, argnums=(0, 1)))(k1, k2)
        for i in (0, 1):
            np.testing.assert_allclose(closed[:, i], by_autodiff[i], rtol=1e-12, atol=1e-13)


def test_second_derivatives_at_equal_rate_constants(x64):
    value = jax.jit(jax.hessian(lambda k: reactors.consecutive(k[0], k[1], 1.0)[1]))
    hessian = value(jnp.ones(2))
    # B = k1 D(k1, k2), and D's second derivatives are e^-1 times 1/3, 1/6, 1/3
    right = np.exp(-1) * np.array([[-1 + 1 / 3, -1 / 2 + 1 / 6], [-1 / 2 + 1 / 6, 1 / 3]])
    np.testing.assert_allclose(hessian, right, rtol=1e-12)


def test_finite_for_fast_reactions(x64):
    for k1, k2 in ((1e4, 1e-4), (1e-4, 1e4), (1e4, 1e4)):
        values = reactors.consecutive(k1, k2, 10.0)
        slopes = reactors.consecutive_sensitivities(k1, k2, 10.0)
        assert jnp.isfinite(values).all() and jnp.isfinite(slopes).all()
        assert jnp.isfinite(jax.grad(lambda k: reactors.consecutive(k, 1.0, 10.0)[1])(k1))


def test_single_precision_keeps_its_digits():
    assert np.isclose(
        reactors.consecutive(1.0, 1.0 + 1e-4, 1.0)[1], exact(1.0, 1.0001, 1.0)[0], rtol=1e-6
    )


@pytest.mark.parametrize("name", ["k1", "k2", "t", "feed"])
def test_refuses_negative_arguments(name):
    arguments = {"k1": 1.0, "k2": 0.5, "t": 1.0} | {name: -1.0}
    for function in (reactors.consecutive, reactors.consecutive_sensitivities):
        with pytest.raises(ValueError, match=rf"{name} must not be negative, not -1"):
            function(**arguments)
