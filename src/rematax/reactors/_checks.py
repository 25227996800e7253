"""Refuse what no reactor can have, where it can be seen: in numbers, not in traced values."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def refuse_negative(what: str, value: Any) -> None:
    """Raise if a number of ``value`` is negative or not a number; traced values pass."""
    _refuse(what, "must not be negative", value, lambda x: x >= 0)


def refuse_nonpositive(what: str, value: Any) -> None:
    """Raise if a number of ``value`` is zero, negative or not a number; traced values pass."""
    _refuse(what, "must be positive", value, lambda x: x > 0)


def _refuse(what, must, value, fine):
    for leaf in jax.tree.leaves(value):
        if isinstance(leaf, jax.core.Tracer):
            continue
        numbers = np.asarray(leaf, dtype=float)
        if not (good := fine(numbers)).all():
            raise ValueError(f"{what} {must}, not {numbers[~good].flat[0]:g}.")
