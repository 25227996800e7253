"""How noisy is a computed function? Its rounding, estimated from its own values.

The rounding of a value is not eps times the value: it accumulates over the steps of a loop, and a
sum that cancels hides it. At points so close together that a smooth function is a straight line
there, whatever bends is noise. The :math:`k`-th differences of equally spaced values remove the
line and multiply the variance of independent noise by :math:`(2k)! / k!^2`; Moré and Wild made of
that the algorithm ECnoise.

References:
    J. J. Moré and S. M. Wild (2011), "Estimating computational noise", SIAM Journal on Scientific
    Computing 33(3):1292-1314.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

# Differences of lower order still hold the function; of those of higher order there are too few.
_ORDERS = (3, 4, 5)

#: How many values :func:`noise` should be given.
VALUES = 8


def noise(values: Sequence[float]) -> float:
    """Estimate the standard deviation of the noise in equally spaced values of a function.

    The largest of the estimates by differences of order 3, 4 and 5: too much noise makes a test
    undecided, too little makes it wrong. Values that are not finite show none.
    """
    if not np.isfinite(values).all():
        return 0.0
    estimates = [0.0]
    for order in _ORDERS:
        gain = math.comb(2 * order, order)
        estimates.append(math.sqrt(float(np.mean(np.diff(values, order) ** 2)) / gain))
    return max(estimates)


def stuck(values: Sequence[float]) -> bool:
    """Tell whether values lie too close together to show noise: half of them equal the next."""
    equal = sum(one == other for one, other in itertools.pairwise(values))
    return 2 * equal > len(values) - 1
