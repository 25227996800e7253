"""The noise of a function, found from its values."""

import numpy as np
import pytest

from rematax._noise import VALUES, noise, stuck


@pytest.mark.parametrize("level", [1e-12, 1e-3, 5.0])
def test_finds_the_level_of_noise_on_a_curve(level):
    rng, at = np.random.default_rng(0), 1e-8 * np.arange(VALUES)
    found = [noise(3 + 2 * at + at**2 + level * rng.normal(size=VALUES)) for _ in range(2000)]
    assert 0.8 < np.median(found) / level < 1.25
    assert np.quantile(found, 0.01) > level / 5


def test_a_smooth_function_has_no_noise_but_its_rounding():
    assert noise(1 + 0.25 * np.arange(VALUES)) == 0
    assert noise(np.sin(1e-4 * np.arange(VALUES))) < 1e-12


def test_equal_neighbours_show_no_noise():
    assert stuck([1.0] * VALUES) and stuck([1.0] * 5 + [2.0] * 3)
    assert not stuck(np.arange(VALUES)) and not stuck([1.0, 1.0, 2.0, 3.0, 3.0, 4.0, 5.0, 5.0])


def test_values_that_are_not_finite_show_none():
    for bad in (np.nan, np.inf):
        assert noise([1.0, bad, bad, *range(5)]) == 0
        assert not stuck([1.0, bad, *range(6)])
