"""Strict numerics for every test: what would be a silent cast or broadcast is an error here."""

import pathlib
import sys

import jax
import pytest

# With importlib as import mode, helpers beside the tests are found only so.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: slow; left out by -m 'not nightly'")


@pytest.fixture
def x64():
    """Run one test in double precision."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
