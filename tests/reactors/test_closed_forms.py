"""The closed form of A -> B -> C, against high precision, a matrix exponential, and itself."""

from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

from rematax import reactors

GAPS = np.array([0.0, 1e-14, 1e-9, 1e-6, 1e-3, 0.1, 0.3, 0.9, 1.0, 1.1, 1.4, 1.5, 3.0, 30.0])


def exact(k1, k2, t):
    """Return B, dB/dk1 and dB/dk2 by the textbook's formula, in 80 digits."""
    with localcontext() as context:
        context.prec = 80
        k1, k2, t = Decimal(float(k1)), Decimal(float(k2)), Decimal(float(t))
        a, b, d = (-k1 * t).exp(), (-k2 * t).exp(), k2 - k1
        value = k1 * (a - b) / d
        by_k1 = (a - b) / d + k1 * (-t * a / d + (a - b) / d**2)
        by_k2 = k1 * (t * b / d - (a - b) / d**2)
        return [float(x) for x in (value, by_k1, by_k2)]


@pytest.mark.parametrize("faster", ["k1", "k2"])
def test_against_high_precision(faster, x64):
    low, high = np.full(len(GAPS) - 1, 1.3), 1.3 + GAPS[1:]
    k1, k2 = (high, low) if faster == "k1" else (low, high)
    right = np.array([exact(a, b, 0.7) for a, b in zip(k1, k2, strict=True)]).T
    b = reactors.consecutive(k1, k2, 0.7)[1]
    np.testing.assert_allclose(b, right[0], rtol=1e-14)
    slopes = reactors.consecutive_sensitivities(k1, k2, 0.7)[1]
    np.testing.assert_allclose(slopes, right[1:], rtol=2e-13, atol=1e-17)


def test_equal_rate_constants(x64):
    k, t = np.array([0.0, 1e-8, 0.5, 1.0, 40.0]), 2.0
    b = reactors.consecutive(k, k, t)[1]
    np.testing.assert_allclose(b, k * t * np.exp(-k * t), rtol=1e-14)
    slopes = reactors.consecutive_sensitivities(k, k, t)[1]
    right = np.array([t - k * t**2 / 2, -k * t**2 / 2]) * np.exp(-k * t)
    np.testing.assert_allclose(slopes, right, rtol=1e-13, atol=1e-16)


def test_against_the_matrix_exponential(x64):
    k1 = 0.8
    found = reactors.consecutive(k1, k1 + GAPS, 1.5, feed=2.0)
    for gap, values in zip(GAPS, found.T, strict=True):
        rates = np.array([[-k1, 0, 0], [k1, -k1 - gap, 0], [0, k1 + gap, 0]])
        np.testing.assert_allclose(values, expm(1.5 * rates) @ [2.0, 0, 0], atol=1e-14)


def test_sensitivities_equal_autodiff(x64):
    k = (np.ones((3, 1)) * (0.8 + GAPS), np.full((3, len(GAPS)), 0.8))
    t = np.ones(len(GAPS)) * np.array([[0.0], [0.5], [5.0]])
    closed = reactors.consecutive_sensitivities(*k, t, 3.0)
    assert closed.shape == (3, 2, 3, len(GAPS))

    @jax.jit
    def by_autodiff(*k):
        def concentrations(*k):
            return reactors.consecutive(*k, t, 3.0)

        # each entry depends on its own rate constants alone
        one, zero = jnp.ones_like(k[0]), jnp.zeros_like(k[0])
        forward = [jax.jvp(concentrations, k, d)[1] for d in ((one, zero), (zero, one))]
        reverse = [
            jax.grad(lambda *k, i=i: concentrations(*k)[i].sum(), (0, 1))(*k) for i in range(3)
        ]
        return jnp.stack(forward, 1), jnp.stack([jnp.stack(r) for r in reverse])

    for found in by_autodiff(*map(jnp.asarray, k)):
        np.testing.assert_allclose(closed, found, rtol=1e-12, atol=1e-13)


def test_second_derivatives_at_equal_rate_constants(x64):
    hessian = jax.jit(jax.hessian(lambda k: reactors.consecutive(k[0], k[1], 1.0)[1]))
    # B = k1 D(k1, k2), and D's second derivatives are e^-1 times 1/3, 1/6, 1/3
    right = np.exp(-1) * np.array([[-1 + 1 / 3, -1 / 2 + 1 / 6], [-1 / 2 + 1 / 6, 1 / 3]])
    np.testing.assert_allclose(hessian(jnp.ones(2)), right, rtol=1e-12)


def test_finite_for_fast_reactions(x64):
    k1, k2 = jnp.array([1e4, 1e-4, 1e4]), jnp.array([1e-4, 1e4, 1e4])
    assert jnp.isfinite(reactors.consecutive(k1, k2, 10.0)).all()
    assert jnp.isfinite(reactors.consecutive_sensitivities(k1, k2, 10.0)).all()
    total = jax.jit(jax.grad(lambda k: reactors.consecutive(*k, 10.0)[1].sum()))
    assert all(jnp.isfinite(slope).all() for slope in total((k1, k2)))


def test_single_precision_keeps_its_digits():
    b = reactors.consecutive(1.0, 1.0 + 1e-4, 1.0)[1]
    assert np.isclose(b, exact(1.0, 1.0001, 1.0)[0], rtol=1e-6)


@pytest.mark.parametrize("name", ["k1", "k2", "t", "feed"])
def test_refuses_negative_arguments(name):
    arguments = {"k1": 1.0, "k2": 0.5, "t": 1.0} | {name: -1.0}
    for function in (reactors.consecutive, reactors.consecutive_sensitivities):
        with pytest.raises(ValueError, match=rf"{name} must not be negative, not -1"):
            function(**arguments)


def test_refuses_what_does_not_fit_and_what_is_no_number():
    for function in (reactors.consecutive, reactors.consecutive_sensitivities):
        with pytest.raises(
            ValueError, match=rf"{function.__name__}: the shapes .* k1 \(3,\), k2 \(2,"
        ):
            function(np.ones(3), np.ones(2), 1.0)
        for wrong in (None, "1", 1j):
            with pytest.raises(TypeError, match=rf"{function.__name__}: t must be a real number"):
                function(1.0, 1.0, wrong)
