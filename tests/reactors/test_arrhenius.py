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
    with pytest.raises(ValueError, match="activation energy must be finite, not nan; drop or mask"):
        reactors.arrhenius(300.0, 1.0, np.nan)
    with pytest.raises(
        ValueError, match=r"arrhenius: the shapes .* temperature \(3,\), prefactor \(2"
    ):
        reactors.arrhenius(np.full(3, 300.0), np.ones(2), 1e4)
    with pytest.raises(TypeError, match="a temperature in K must be a real number or an array"):
        reactors.arrhenius("300", 1.0, 1e4)
    with pytest.raises(TypeError, match="activation energy must be a real number or an array"):
        reactors.arrhenius(300.0, 1.0, None)


@pytest.mark.parametrize("temperature", [25.0, 99.9, [350.0, 80.0]])
def test_warns_of_celsius(temperature):
    with pytest.warns(UserWarning, match=r"arrhenius: a temperature of .* K is .* add 273.15"):
        reactors.arrhenius(temperature, 1.0, 1e4)


@pytest.mark.parametrize("energy", [50.0, -80.0, 499.9, [4e4, 40.0]])
def test_warns_of_kilojoules(energy):
    with pytest.warns(UserWarning, match=r"activation energy of .* J/mol is .* multiply by 1000"):
        reactors.arrhenius(300.0, 1.0, energy)


@pytest.mark.filterwarnings("error")
def test_does_not_warn_of_what_is_likely_meant_or_cannot_be_seen():
    for temperature, energy in ((100.0, 500.0), (300.0, 0.0), (300.0, -5e3)):
        k = reactors.arrhenius(temperature, 2.0, energy)
        assert np.isclose(k, 2 * np.exp(-energy / (8.314462618 * temperature)), rtol=1e-5)
    jax.jit(reactors.arrhenius)(25.0, 1.0, 50.0)


def test_lists_will_do():
    k = reactors.arrhenius([300.0, 400.0], [1.0, 2.0], [1e4, 2e4])
    assert k.shape == (2,)
