"""How a rate constant depends on temperature: Arrhenius' law."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ._checks import refuse_negative, refuse_nonpositive

#: The molar gas constant in J/(mol K), exact since the SI of 2019.
GAS_CONSTANT = 8.31446261815324


def arrhenius(temperature: ArrayLike, prefactor: ArrayLike, energy: ArrayLike) -> Array:
    r"""Compute rate constants from the temperature.

    .. math::
        k = A \exp\left(-\frac{E}{R T}\right)

    Args:
        temperature: :math:`T` in K, positive.
        prefactor: :math:`A`, not negative, in the unit that the rate constant is to have: 1/s for a
            reaction of first order, m³/(mol s) for one of second order.
        energy: The activation energy :math:`E` in J/mol. If your source gives :math:`E/R` in K,
            multiply by :data:`GAS_CONSTANT`.

    Returns:
        :math:`k` in the unit of ``prefactor``, in the shape that the arguments broadcast to.

    Raises:
        ValueError: A temperature is not positive, or a prefactor is negative. Values that JAX is
            tracing cannot be checked.

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
    thermal = GAS_CONSTANT * jnp.asarray(temperature)
    return jnp.multiply(prefactor, jnp.exp(-jnp.asarray(energy) / thermal))
