"""Samples on a grid: where they lie, and which times are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rematax import reactors


@given(
    st.sets(st.integers(0, 10**6), min_size=1, max_size=20),
    st.sampled_from([1e-3, 0.1, 1 / 3, 1.0, 30.0]),
)
def test_finds_the_multiples_of_the_step(steps, dx):
    right = sorted(steps)
    assert reactors.sample_steps([n * dx for n in right], dx).tolist() == right


def test_decimal_times_are_multiples_in_spite_of_rounding():
    assert 0.3 / 0.1 != 3  # what a test for equality would stumble over
    assert reactors.sample_steps([0.3, 0.6, 1.4], 0.1).tolist() == [3, 6, 14]


def test_step_of_a_scan_meets_the_closed_form_at_its_samples(x64):
    times = np.array([0.0, 0.3, 1.1, 2.0])
    at = reactors.sample_steps(times, 0.01)
    step = reactors.rk4(lambda y, u: -2 * y, 0.01, output=lambda y: y)
    _, path = jax.lax.scan(step, jnp.array(1.0), length=int(at[-1]))
    path = jnp.concatenate([jnp.ones(1), path])
    np.testing.assert_allclose(path[at], np.exp(-2 * times), rtol=1e-8)


@pytest.mark.parametrize(
    ("times", "dx", "sentence"),
    [
        ([0.1, 0.25], 0.1, r"0.25 is 2.5 steps of 0.1; choose a step that divides it"),
        ([0.1, 0.300001], 0.1, r"0.300001 is 3.00001 steps"),
        ([0.1, -0.2], 0.1, "a time must not be negative, not -0.2"),
        (
            [0.1, float("nan")],
            0.1,
            r"times\[1\] is nan; drop such samples, keep = np.isfinite\(times\), or mask",
        ),
        ([0.1, float("inf")], 0.1, r"the times must be finite, but times\[1\] is inf"),
        ([0.2, 0.1], 0.1, r"but 0.1 follows 0.2; sort them with their data, .*np.argsort\(times"),
        ([0.2, 0.2, 0.1], 0.1, r"sort them"),
        ([0.2, 0.2], 0.1, r"0.2 follows 0.2; average replicates, .*np.unique\(times, return_inv"),
        ([0.2], 0.0, "the step dx must be positive, not 0"),
        ([0.2], float("nan"), "the step dx must be positive, not nan"),
        ([0.2], float("inf"), "the step dx must be finite"),
        ([0.2], [0.1, 0.2], r"the step dx must be one number, not of shape \(2,\)"),
        ([[0.1], [0.2, 0.3]], 0.1, "times must be a flat list of numbers"),
        ([], 0.1, r"at least one, not of shape \(0,\)"),
        ([[0.1]], 0.1, r"not of shape \(1, 1\)"),
        (0.1, 0.1, r"not of shape \(\)"),
    ],
)
def test_refuses_times_off_the_grid(times, dx, sentence):
    with pytest.raises(ValueError, match=rf"reactors\.sample_steps: .*{sentence}"):
        reactors.sample_steps(times, dx)


def test_refuses_traced_times():
    with pytest.raises(TypeError, match="must be numbers, not traced values"):
        jax.jit(lambda t: reactors.sample_steps(t, 0.1))(jnp.array([0.1]))


@pytest.mark.parametrize("times", [None, "noon", [0.1, None], ["0.1"], [1j]])
def test_refuses_what_is_no_number(times):
    with pytest.raises(TypeError, match=r"reactors\.sample_steps: a time must be a real number"):
        reactors.sample_steps(times, 0.1)
    with pytest.raises(
        TypeError, match=r"reactors\.sample_steps: the step dx must be a real number"
    ):
        reactors.sample_steps([0.1], times)


def test_replicates_share_an_entry_as_the_message_says():
    times, data = np.array([0.1, 0.3, 0.1, 0.3]), np.array([1.0, 3.0, 1.1, 2.9])
    times, entry = np.unique(times, return_inverse=True)
    path = np.arange(10.0)
    model = path[reactors.sample_steps(times, 0.1)]
    assert (model[entry] - data).shape == (4,) and model[entry].tolist() == [1.0, 3.0, 1.0, 3.0]
