"""How a rate constant depends on temperature: Arrhenius' law."""

from __future__ import annotations

import warnings

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ._checks import known, refuse_misfits, refuse_negative, refuse_nonfinite, refuse_nonpositive

#: The molar gas constant in J/(mol K), exact since the SI of 2019.
GAS_CONSTANT = 8.31446261815324

# Below these no rate is measured by Arrhenius' law, but degrees Celsius and kJ/mol are typed.
_COLDEST = 100.0
_LEAST_ENERGY = 500.0


def arrhenius(temperature: ArrayLike, prefactor: ArrayLike, energy: ArrayLike) -> Array:
    r"""Compute rate constants from the temperature.

    .. math::
        k = A \exp\left(-\frac{E}{R T}\right)

    Args:
        temperature: :math:`T` in K, positive.
        prefactor: :math:`A`, not negative, in the unit that the rate constant is to have: 1/s for a
            reaction of first order, m³/(mol s) for one of second order.
        energy: The activation energy :math:`E` in J/mol, finite; 0 for a rate constant that does
            not depend on temperature. If your source gives :math:`E/R` in K,
            multiply by :data:`GAS_CONSTANT`.

    Returns:
        :math:`k` in the unit of ``prefactor``, in the shape that the arguments broadcast to.

    Raises:
        TypeError: An argument is no real number.
        ValueError: A temperature is not positive, a prefactor is negative, an energy is not finite,
            or the shapes do not fit together. Values that JAX is tracing cannot be checked.

    Warns:
        UserWarning: A temperature is below 100 K, which may be in degrees Celsius, or the magnitude
            of an energy is below 500 J/mol and not 0, which may be in kJ/mol.

    Example:
        With the larger activation energy, the second of two rates grows faster with temperature:

        >>> import jax.numpy as jnp
        >>> from rematax import reactors
        >>> prefactor, energy = jnp.array([4e3, 6.2e5]), jnp.array([2.0e4, 4.0e4])
        >>> cold, hot = (reactors.arrhenius(t, prefactor, energy) for t in (300.0, 400.0))
        >>> bool((hot / cold)[1] > (hot / cold)[0] > 1)
        True
    """
    refuse_nonpositive("reactors.arrhenius: a temperature in K", temperature)
    refuse_negative("reactors.arrhenius: a prefactor", prefactor)
    refuse_nonfinite("reactors.arrhenius: an activation energy", energy)
    refuse_misfits("arrhenius", temperature=temperature, prefactor=prefactor, energy=energy)
    for kelvin in known("temperature", temperature):
        if (cold := kelvin[kelvin < _COLDEST]).size:
            warnings.warn(
                f"reactors.arrhenius: a temperature of {cold[0]:g} K is below {_COLDEST:g} K; if "
                "it is in degrees Celsius, add 273.15.",
                stacklevel=2,
            )
    for joule in known("energy", energy):
        if (low := joule[(joule != 0) & (np.abs(joule) < _LEAST_ENERGY)]).size:
            warnings.warn(
                f"reactors.arrhenius: an activation energy of {low[0]:g} J/mol is below "
                f"{_LEAST_ENERGY:g} J/mol; if it is in kJ/mol, multiply by 1000, and if it is E/R "
                "in K, by reactors.GAS_CONSTANT.",
                stacklevel=2,
            )
    thermal = GAS_CONSTANT * jnp.asarray(temperature)
    return jnp.multiply(jnp.asarray(prefactor), jnp.exp(-jnp.asarray(energy) / thermal))
