"""Choosing a backend, each case in a process where JAX has not chosen yet."""

import os
import platform
import subprocess
import sys

import jax
import numpy as np
import pytest

import rematax as rx


def run(code: str) -> str:
    """Run code in a fresh process without a backend chosen for it; return what it prints."""
    environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cpu_before_the_first_computation():
    assert "cpu ok" in run(
        "import rematax as rx; rx.use_backend('cpu'); rx.use_backend('cpu')\n"
        "import jax; print(jax.default_backend(), 'ok')"
    )


@pytest.mark.parametrize("name", ["gpu", "tpu"])
def test_missing_backend_is_one_sentence_and_leaves_jax_usable(name):
    if name in {device.platform for device in jax.devices()}:
        pytest.skip(f"this machine has a {name}")
    out = run(
        "import rematax as rx, jax\n"
        f"try: rx.use_backend('{name}')\n"
        "except RuntimeError as error: print(error); print(repr(error.__cause__))\n"
        "print(float(jax.numpy.ones(3).sum()))"
    )
    message, cause, total = out.splitlines()
    assert message.startswith(f"rx.use_backend: no {name} can be used here") and "jax[" in message
    assert cause == "None" and total == "3.0"


def test_too_late():
    out = run(
        "import rematax as rx, jax; jax.config.update('jax_platforms', 'cpu'); jax.devices()\n"
        "for name in ('gpu', 'tpu'):\n"
        "    try: rx.use_backend(name)\n"
        "    except RuntimeError as error: print(error)\n"
        "print(jax.default_backend(), jax.config.jax_platforms)"
    )
    *messages, last = out.splitlines()
    assert last == "cpu cpu"
    assert len(messages) == 2
    assert all(m.startswith("rx.use_backend: JAX computes on the cpu already") for m in messages)
    assert all("fresh process" in m for m in messages)


@pytest.mark.parametrize("name", ["gpuu", "CPU", "", None, 3])
def test_misspelt_backend(name):
    with pytest.raises(ValueError, match=r"rx\.use_backend: .*choose 'cpu', 'gpu' or 'tpu'"):
        rx.use_backend(name)


@pytest.mark.parametrize(
    ("name", "meant"), [("gpuu", "gpu"), ("cuda", "gpu"), ("rocm", "gpu"), ("CPU", "cpu")]
)
def test_misspelt_backend_gets_a_hint(name, meant):
    with pytest.raises(ValueError, match=f"Did you mean '{meant}'"):
        rx.use_backend(name)


def test_description():
    here = rx.describe_backend()
    assert here.name == jax.default_backend()
    assert (here.jax, here.numpy) == (jax.__version__, np.__version__)
    assert here.python == platform.python_version()
    assert len(here.devices) == len(jax.devices()) and here.cores >= 1 and here.cpu
    assert here.summary.startswith(here.name)
    for shown in (repr(here), here._repr_html_(), here.summary):
        assert platform.node() not in shown
    assert repr(here).splitlines()[0].split() == ["backend", here.name]
    assert "rx-backend" in here._repr_html_() and "Computed here" in here._repr_html_()
    assert here.jax in repr(here) and here.jaxlib in here._repr_html_()


def test_description_knows_the_precision(x64):
    assert rx.describe_backend().float64
    assert "float64" in repr(rx.describe_backend())
