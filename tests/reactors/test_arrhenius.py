"""Arrhenius' law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rematax import reactors


def test_slope_in_the_arrhenius_plot(x64):
    inverse = jnp.linspace(1 / 500, 1 / 300, 7)
    k = reactors.arrhenius(1 / inverse, 3.0, 5e4)
    slope = np.polyfit(inverse, np.log(k), 1)
    np.testing.assert_allclose(slope, [-5e4 / 8.314462618, np.log(3.0)], rtol=1e-9)


def test_gradient(x64):
    t, energy = 350.0, 5e4
    k, slope = jax.value_and_grad(reactors.arrhenius)(t, 3.0, energy)
    assert np.isclose(slope, k * energy / (reactors.GAS_CONSTANT * t**2), rtol=1e-12)


def test_refuses():
    with pytest.raises(ValueError, match="temperature in K must be positive, not -5"):
        reactors.arrhenius(jnp.array([300.0, -5.0]), 1.0, 1e4)
    with pytest.raises(ValueError, match="prefactor must not be negative, not -1"):
        reactors.arrhenius(300.0, -1.0, 1e4)
