"""What the tests of scan share: schedules, comparison of trees, a counter of evaluations."""

import contextlib
import functools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rematax as rx

SCHEDULES = [
    pytest.param(rx.StoreAll(), id="StoreAll", marks=pytest.mark.nightly),  # lax.scan itself
    pytest.param(rx.EveryStep(), id="EveryStep"),
    pytest.param(rx.Nested(2), id="Nested"),
    pytest.param(
        rx.Nested(radices=(3, 2, 4), tapes=True), id="Nested-tapes", marks=pytest.mark.nightly
    ),
    pytest.param(rx.Binomial(), id="Binomial", marks=pytest.mark.nightly),
    pytest.param(rx.Binomial(3), id="Binomial-3"),
]

REMAT3 = bool(getattr(jax.config, "jax_remat3", False))
OLD_REMAT3 = REMAT3 and jax.__version_info__ < (0, 12)


def on_four_devices(program, *arguments):
    """Run a program of this folder in a process with four devices."""
    four = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, pathlib.Path(__file__).with_name(program), *arguments]
    return subprocess.run(command, env=os.environ | four, capture_output=True, text=True)


@contextlib.contextmanager
def known_bug(schedule):
    """Expect what JAX 0.10 does with jax_remat3 to nested checkpointed scans; JAX 0.12 does not.

    There ``jax.grad`` of ``jax.checkpoint(lambda c, xs: jax.lax.scan(f, c, xs))`` fails where some
    of the ys get no cotangent, and so does its vmap where a carry comes to be batched.
    """
    try:
        yield
    except (ValueError, KeyError, AssertionError) as error:
        known = not isinstance(error, ValueError) or "Expected cotangent" in str(error)
        if not (known and OLD_REMAT3 and isinstance(schedule, rx.Nested)):
            raise
        pytest.xfail("JAX 0.10 with jax_remat3: nested checkpointed scans")


def with_schedule(schedule):
    """Give a scan with a schedule fixed."""
    return functools.partial(rx.scan, schedule=schedule)


def assert_trees_close(actual, expected, rtol=1e-5, atol=1e-6):
    """Compare structure, shapes, dtypes and values; random keys by their data."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(jax.typeof(a).dtype, jax.dtypes.prng_key):
            assert a.dtype == b.dtype
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert jnp.result_type(a) == jnp.result_type(b) and jnp.shape(a) == jnp.shape(b)
        if jnp.result_type(a) != jax.dtypes.float0:
            wide = [np.asarray(x, np.complex128) for x in (a, b)]
            np.testing.assert_allclose(*wide, rtol=rtol, atol=atol)


def agree(program, schedule, *args, **tolerances):
    """Assert that a program gives the same with both scans."""
    expected = program(jax.lax.scan, *args)
    with known_bug(schedule):
        actual = program(with_schedule(schedule), *args)
    assert_trees_close(actual, expected, **tolerances)


def sine(c, x):
    """One nonlinear step."""
    return jnp.sin(c) * x, c


class Counted:
    """A step that counts how often it really runs, and how often it is traced."""

    def __init__(self, step):
        self.step, self.runs, self.traces = step, [], 0

    def __call__(self, carry, x):
        self.traces += 1
        # The carry as operand: a callback without one is hoisted out of loops.
        jax.debug.callback(lambda c: self.runs.append(1), jax.tree.leaves(carry)[0])
        return self.step(carry, x)

    def calls(self):
        """Give the number of runs so far, effects flushed, and start again."""
        jax.effects_barrier()
        runs = len(self.runs)
        self.runs.clear()
        return runs


def temp_bytes(fun, *args):
    """Give the temporary bytes that the compiler allocates."""
    return jax.jit(fun).lower(*args).compile().memory_analysis().temp_size_in_bytes
