"""Strict numerics for every test: what would be a silent cast or broadcast is an error here.

No clock decides a test, and on a change the examples that are drawn are always the same.
"""

import os
import pathlib
import sys

import jax
import pytest
from hypothesis import HealthCheck, settings

# With importlib as import mode, helpers beside the tests are found only so.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

no_clock = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("change", derandomize=True, print_blob=True, **no_clock)
settings.register_profile("nightly", derandomize=False, print_blob=True, **no_clock)
settings.load_profile(os.environ.get("REMATAX_HYPOTHESIS", "change"))


def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: slow; left out by -m 'not nightly'")


@pytest.fixture
def x64():
    """Run one test in double precision."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
