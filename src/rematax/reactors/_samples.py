"""Where the times of samples lie among the steps of a simulation."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ._checks import (
    refuse_negative,
    refuse_no_numbers,
    refuse_nonfinite,
    refuse_nonpositive,
)

# How far, in steps, a sample may lie from its step: wider than the rounding of a quotient of
# decimal numbers, and far below what a measured curve could show.
_TOLERANCE = 1e-6


def sample_steps(times: Any, dx: float) -> np.ndarray:
    r"""Count the steps to each sample: :math:`n_i = t_i / h`, a whole number.

    A simulation in equal steps meets samples at multiples of the step without interpolating.

    Args:
        times: When the samples were taken, since the start, in the unit of ``dx``: a time in batch,
            a position or a residence time in plug flow. Not negative, and increasing. Replicates
            share their entry: ``times, entry = np.unique(times, return_inverse=True)`` tells which
            entry is each measurement's. Drop missing samples, or mask their data.
        dx: The step :math:`h`, positive.

    Returns:
        For each sample the number of steps to it, integers. The state there is row ``n - 1`` of the
        outputs that a scan stacks, and the initial state where ``n`` is 0; the scan's length is the
        last of them.

    Raises:
        TypeError: An argument is traced by JAX: the numbers of steps shape the program. Or it is no
            real number.
        ValueError: There is no time; a time is negative, infinite or not a number, not later than
            the one before it, or no multiple of the step; or the step is not a positive number.

    Example:
        >>> from rematax import reactors
        >>> reactors.sample_steps([0.0, 0.3, 0.7], 0.1).tolist()
        [0, 3, 7]
        >>> reactors.sample_steps([0.25], 0.1)
        Traceback (most recent call last):
        ...
        ValueError: reactors.sample_steps: 0.25 is 2.5 steps of 0.1; choose a step that divides it.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((times, dx))):
        raise TypeError(
            "reactors.sample_steps: times and step must be numbers, not traced values, since the "
            "numbers of steps shape the program; call it outside of jax.jit."
        )
    refuse_nonpositive("reactors.sample_steps: the step dx", dx)
    refuse_nonfinite("reactors.sample_steps: the step dx", dx)
    if np.ndim(dx):
        raise ValueError(
            f"reactors.sample_steps: the step dx must be one number, not of shape {np.shape(dx)}."
        )
    refuse_no_numbers("reactors.sample_steps: a time", times)
    try:
        at = np.asarray(times, dtype=float)
    except (TypeError, ValueError):
        raise ValueError("reactors.sample_steps: times must be a flat list of numbers.") from None
    if at.ndim != 1 or not at.size:
        raise ValueError(
            "reactors.sample_steps: times must be a list of at least one, not of shape "
            f"{at.shape}; flatten a table, and put a single time into brackets."
        )
    if (bad := np.flatnonzero(~np.isfinite(at))).size:
        raise ValueError(
            f"reactors.sample_steps: the times must be finite, but times[{bad[0]}] is "
            f"{at[bad[0]]:g}; drop such samples, keep = np.isfinite(times), or mask their data."
        )
    refuse_negative("reactors.sample_steps: a time", at)
    gaps = np.diff(at)
    if (late := np.flatnonzero(gaps <= 0)).size:
        before, after = at[late[0] : late[0] + 2]
        cure = (
            "sort them with their data, order = np.argsort(times)"
            if (gaps < 0).any()
            else "average replicates, or let them share an entry: times, entry = np.unique(times, "
            "return_inverse=True), and the model of the data is that of row entry"
        )
        raise ValueError(
            f"reactors.sample_steps: the times must increase, but {after:g} follows {before:g}; "
            f"{cure}."
        )
    quotient = at / dx
    steps = np.rint(quotient)
    if (off := np.flatnonzero(abs(quotient - steps) > _TOLERANCE)).size:
        raise ValueError(
            f"reactors.sample_steps: {at[off[0]]:g} is {quotient[off[0]]:.7g} steps of {dx:g}; "
            "choose a step that divides it."
        )
    return steps.astype(int)
