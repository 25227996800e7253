r"""Reaction networks: which species react, in which proportions, and how fast.

A network of :math:`m` species and :math:`q` reactions is its *stoichiometric matrix* :math:`S`,
:math:`m \times q`: the entry :math:`\nu_{ij}` says how many moles of species :math:`i` one mole of
reaction :math:`j` makes; it is negative where the species is consumed. With the rates :math:`r` of
the reactions, species are produced at :math:`S r`. Whatever a vector :math:`w` with
:math:`w^\top S = 0` weighs (mass, atoms) is conserved.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from ._checks import refuse_misfits, refuse_negative, refuse_no_numbers

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, repr=False)
class Network:
    r"""A reaction network with mass-action rates.

    Args:
        species: The species' names, in the order of a state's first axis.
        stoichiometry: The stoichiometric matrix, a row for each species and a column for each
            reaction; without unit.
        orders: The order of each reaction (column) in each species (row), not negative; without
            unit. Default: the number of moles that the reaction consumes, as for an elementary
            reaction. Needed where a species is consumed and made by the same reaction, since the
            matrix holds only the difference.

    Raises:
        TypeError: The species are no list of names, or a matrix is not of numbers.
        ValueError: A species is named twice, a matrix has the wrong shape, or an order is negative.

    Its repr has each reaction's equation and, unless the reaction is elementary, the orders: what
    its rate is proportional to.

    Example:
        >>> import jax.numpy as jnp
        >>> from rematax import reactors
        >>> network = reactors.Network(("A", "B", "C"), [[-1, 0], [1, -1], [0, 1]])
        >>> network
        Network(A -> B, B -> C)
        >>> c = network.feed({"A": 2.0})
        >>> rates = network.rates(c, (1.0, 0.5))
        >>> bool((network.production(rates) == jnp.array([-2.0, 2.0, 0.0])).all())
        True
        >>> reactors.Network(("A", "B"), [[-1], [1]], orders=[[0.5], [1]])
        Network(A -> B [rate ~ A^0.5 B])
    """

    species: tuple[str, ...]
    stoichiometry: Matrix
    orders: Matrix | None = None

    def __post_init__(self) -> None:
        if isinstance(self.species, str):
            raise TypeError(
                f"reactors.Network: species must be a list of names, not the text {self.species!r}."
            )
        ordered = isinstance(self.species, list | tuple)
        if not ordered or not all(isinstance(name, str) for name in self.species):
            raise TypeError(
                "reactors.Network: species must be a list of names, such as ['A', 'B'], not "
                f"{self.species!r:.60}."
            )
        species = tuple(self.species)
        twice = sorted({name for name in species if species.count(name) > 1})
        if twice:
            raise ValueError(f"reactors.Network: the species {twice[0]!r} is named twice.")
        matrix = _matrix("the stoichiometric matrix", self.stoichiometry, len(species))
        if self.orders is None:
            orders = np.maximum(-matrix, 0.0)
        else:
            orders = _matrix("the matrix of orders", self.orders, len(species))
            if orders.shape != matrix.shape:
                raise ValueError(
                    "reactors.Network: the matrix of orders must have the shape of the "
                    f"stoichiometric matrix, {matrix.shape}, not {orders.shape}."
                )
            refuse_negative("reactors.Network: the order of a reaction", orders)
        # Tuples can be hashed and compared, so that a network may be a static argument of jax.jit.
        object.__setattr__(self, "species", species)
        object.__setattr__(self, "stoichiometry", tuple(map(tuple, matrix.tolist())))
        object.__setattr__(self, "orders", tuple(map(tuple, orders.tolist())))

    def __repr__(self) -> str:
        return f"Network({', '.join(map(self._equation, range(len(self.stoichiometry[0]))))})"

    def _equation(self, reaction: int) -> str:
        assert self.orders is not None  # set by __post_init__
        sides: tuple[list[str], list[str]] = ([], [])
        powers, elementary = [], True
        for name, row, orders in zip(self.species, self.stoichiometry, self.orders, strict=True):
            moles, order = row[reaction], orders[reaction]
            if moles:
                count = "" if abs(moles) == 1 else f"{abs(moles):g} "
                sides[moles > 0].append(count + name)
            if order:
                powers.append(name if order == 1 else f"{name}^{order:g}")
            elementary &= order == max(-moles, 0)
        equation = " -> ".join(" + ".join(side) or "nothing" for side in sides)
        return equation if elementary else f"{equation} [rate ~ {' '.join(powers) or '1'}]"

    def feed(self, concentrations: Mapping[str, ArrayLike]) -> Array:
        """Make a state from the concentrations of some species; the others are absent.

        Args:
            concentrations: Species -> concentration, not negative, in any one unit such as mol/m³:
                a number, or one for each cell.

        Returns:
            The state, shape ``(species, *cells)``, in that unit.

        Raises:
            TypeError: The concentrations do not come by name.
            ValueError: A name is not a species of the network, or a concentration is negative.

        Example:
            >>> from rematax import reactors
            >>> network = reactors.Network(("A", "B"), [[-1], [1]])
            >>> network.feed({"A": [1.0, 2.0]}).shape
            (2, 2)
        """
        if not isinstance(concentrations, Mapping):
            raise TypeError(
                "reactors.Network.feed: give concentrations by name, such as "
                f"{{{self.species[0]!r}: 1.0}}, not a {type(concentrations).__name__}."
            )
        for name, value in concentrations.items():
            if name not in self.species:
                raise ValueError(
                    f"reactors.Network.feed: {name!r} is none of the species "
                    f"{', '.join(self.species)}."
                )
            refuse_negative(f"reactors.Network.feed: the concentration of {name}", value)
        refuse_misfits("Network.feed", **concentrations)
        values = [jnp.asarray(concentrations.get(name, 0.0), float) for name in self.species]
        return jnp.stack(jnp.broadcast_arrays(*values))

    def rates(self, c: Array, k: ArrayLike | Sequence[ArrayLike]) -> Array:
        r"""Compute the rates of the reactions by mass action.

        .. math::
            r_j = k_j \prod_i c_i^{n_{ij}}

        A power that is no whole number is 0 where :math:`c_i \le 0`, and so is its derivative
        there: a stepper that overshoots zero, or a feed without the species, gives finite rates
        and finite gradients. (For orders between 0 and 1 the true derivative grows without bound
        as the concentration goes to zero.)

        Args:
            c: State, shape ``(species, *cells)``, as from :meth:`feed`.
            k: Rate constants, one for each reaction, not negative; each a number or an array like a
                cell's. A reaction of order :math:`n` takes the unit of ``c`` to the power
                :math:`1 - n`, over time: 1/s for first order, m³/(mol s) for second.

        Returns:
            Rates, shape ``(reactions, *cells)``, in the unit of ``c`` over that of time.

        Raises:
            ValueError: ``c`` or ``k`` does not fit the network, or a rate constant is negative.
                Values that JAX is tracing cannot be checked for their sign.

        Example:
            >>> import jax
            >>> import jax.numpy as jnp
            >>> from rematax import reactors
            >>> half = reactors.Network(("A", "B"), [[-1], [1]], orders=[[0.5], [0]])
            >>> slope = jax.jacobian(half.rates)(jnp.array([0.0, 1.0]), jnp.array([2.0]))
            >>> bool(jnp.isfinite(slope).all())
            True
        """
        assert self.orders is not None  # set by __post_init__
        self._fits("Network.rates: the state", c, len(self.species), "species")
        self._fits("Network.rates: k", k, len(self.stoichiometry[0]), "reactions")
        refuse_negative("reactors.Network.rates: a rate constant", k)
        amounts, rates = _apart(c), []
        parts = {f"c[{i}]": amount for i, amount in enumerate(amounts)}
        parts |= {f"k[{j}]": constant for j, constant in enumerate(_apart(k))}
        refuse_misfits("Network.rates", **parts)
        for constant, column in zip(_apart(k), zip(*self.orders, strict=True), strict=True):
            powers = [_power(amounts[i], order) for i, order in enumerate(column) if order]
            rates.append(math.prod(powers, start=constant))
        # A reaction of order zero has a rate in every cell, too.
        return jnp.stack(jnp.broadcast_arrays(*rates, amounts[0])[:-1])

    def production(self, rates: Array) -> Array:
        r"""Compute how fast the reactions make each species: :math:`S r`.

        Args:
            rates: Rates, shape ``(reactions, *cells)``: those of :meth:`rates`, or by a law of your
                own.

        Returns:
            Production, negative where a species is consumed: shape ``(species, *cells)``, in the
            unit of ``rates``.

        Raises:
            ValueError: ``rates`` does not fit the network.

        Example:
            >>> import jax.numpy as jnp
            >>> from rematax import reactors
            >>> network = reactors.Network(("A", "B"), [[-2], [1]])
            >>> network.production(jnp.array([3.0])).tolist()
            [-6.0, 3.0]
        """
        self._fits("Network.production: rates", rates, len(self.stoichiometry[0]), "reactions")
        # Written out: networks are sparse, and a matrix product would be rounded coarsely on
        # accelerators, which breaks the mass balance.
        made, each = [], _apart(rates)
        refuse_misfits("Network.production", **{f"rates[{j}]": r for j, r in enumerate(each)})
        for row in self.stoichiometry:
            terms = [moles * each[j] for j, moles in enumerate(row) if moles]
            made.append(functools.reduce(operator.add, terms or [jnp.zeros_like(each[0])]))
        return jnp.stack(made)

    def _fits(self, what: str, value: Any, count: int, axis: str) -> None:
        if isinstance(value, list | tuple):
            refuse_no_numbers(f"reactors.{what}: an entry", value)
            found = (len(value),)
        else:
            found = np.shape(value)[:1]
        if found != (count,):
            has = f"length {found[0]}" if found else "none"
            raise ValueError(
                f"reactors.{what} needs a first axis of the {count} {axis} of {self!r}; "
                f"it has {has}."
            )


def _matrix(what: str, value: Any, species: int) -> np.ndarray:
    """Read a matrix with a row for each species and at least one column."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
        raise TypeError(
            f"reactors.Network: {what} must be of numbers, not of traced values, since it shapes "
            "the program; make the network outside of jax.jit."
        )
    refuse_no_numbers(f"reactors.Network: an entry of {what}", value)
    try:
        matrix = np.asarray(value, dtype=float)
        shape: Any = matrix.shape
    except (TypeError, ValueError):
        shape = "rows of different lengths"
    if isinstance(shape, tuple) and not np.isfinite(matrix).all():
        raise ValueError(f"reactors.Network: {what} must be of finite numbers.")
    if not isinstance(shape, tuple) or len(shape) != 2 or shape[0] != species or not shape[1]:
        found = f"shape {shape}" if isinstance(shape, tuple) else shape
        turned = isinstance(shape, tuple) and len(shape) == 2 and shape[1] == species
        raise ValueError(
            f"reactors.Network: {what} needs a row for each of the {species} species and a column "
            f"for each reaction, but has {found}{'; transpose it' if turned else ''}."
        )
    return matrix


def _apart(values: Any) -> Sequence[Any]:
    """Take an array apart along its first axis, all at once.

    The transpose of one split is one concatenation; that of many slices is as many paddings and
    sums, which made gradients slow to compile and to run.
    """
    if isinstance(values, list | tuple):
        return values
    array = jnp.asarray(values)
    return [jnp.squeeze(each, 0) for each in lax.split(array, [1] * len(array))]


def _power(c: Array, order: float) -> Array:
    """Raise concentrations to an order, with a finite derivative at zero."""
    if order == int(order):
        return c if order == 1 else c ** int(order)
    # The inner `where` matters: without it the derivative at zero is infinity times zero.
    present = c > 0
    return jnp.where(present, jnp.where(present, c, 1.0) ** order, 0.0)
