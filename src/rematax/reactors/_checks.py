"""Refuse what no reactor can have, where it can be seen: in numbers, not in traced values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def refuse_negative(what: str, value: Any) -> None:
    """Raise if a number of ``value`` is negative or not a number; traced values pass."""
    _refuse(what, "must not be negative", value, lambda x: x >= 0)


def refuse_nonpositive(what: str, value: Any) -> None:
    """Raise if a number of ``value`` is zero, negative or not a number; traced values pass."""
    _refuse(what, "must be positive", value, lambda x: x > 0)


def refuse_nonfinite(what: str, value: Any) -> None:
    """Raise if a number of ``value`` is infinite or not a number; traced values pass."""
    _refuse(what, "must be finite", value, np.isfinite)


def refuse_no_numbers(what: str, value: Any) -> None:
    """Raise if there is anything in ``value`` but real numbers; traced values pass."""
    for _ in known(what, value):
        pass


def refuse_misfits(name: str, /, **arguments: Any) -> None:
    """Raise if the shapes of arguments cannot be broadcast to one."""
    shapes = {what: np.shape(value) for what, value in arguments.items()}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        found = ", ".join(f"{what} {shape}" for what, shape in shapes.items())
        raise ValueError(
            f"reactors.{name}: the shapes of its arguments do not fit together: {found}; add axes "
            "of length 1, as by k[:, None], where each is to meet all of another."
        ) from None


def known(what: str, value: Any) -> Iterator[np.ndarray]:
    """Give the numbers of ``value`` that are not traced, and raise at what is no number."""
    for leaf in jax.tree.leaves(value, is_leaf=lambda leaf: leaf is None):
        if isinstance(leaf, jax.core.Tracer):
            continue
        try:
            if leaf is None or jnp.iscomplexobj(leaf) or isinstance(leaf, str | bytes):
                raise TypeError
            numbers = np.asarray(leaf, dtype=float)
        except (TypeError, ValueError):
            raise TypeError(
                f"{what} must be a real number or an array, not {leaf!r:.40}."
            ) from None
        yield numbers


def _refuse(what: str, must: str, value: Any, fine: Callable[[np.ndarray], Any]) -> None:
    for numbers in known(what, value):
        if not (good := fine(numbers)).all():
            bad = numbers[~good].flat[0]
            cure = "; drop or mask what is missing" if np.isnan(bad) else ""
            raise ValueError(f"{what} {must}, not {bad:g}{cure}.")
