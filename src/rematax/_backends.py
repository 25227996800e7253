"""Which device JAX computes on: choose it, with errors that say what to do, and describe it."""

from __future__ import annotations

import difflib
import os
import platform
import subprocess
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp

from ._tables import list_text, table_html
from ._tracing import first_line

_MEANT = {"cpu": "cpu", "gpu": "gpu", "tpu": "tpu", "cuda": "gpu", "nvidia": "gpu", "rocm": "gpu"}
_INSTALL = {"gpu": "pip install 'jax[cuda12]'", "tpu": "pip install 'jax[tpu]'"}


@dataclass(frozen=True)
class Backend:
    """What JAX computes on, as returned by :func:`describe_backend`. Holds no host name.

    Attributes:
        name: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
        devices: Kind of each device.
        cpu: Model of the processor.
        cores: Number of processor cores that this process may use.
        float64: Whether double precision is on.
        python: Version of Python.
        jax: Version of JAX.
        jaxlib: Version of jaxlib.
        numpy: Version of NumPy.
    """

    name: str
    devices: tuple[str, ...]
    cpu: str
    cores: int
    float64: bool
    python: str
    jax: str
    jaxlib: str
    numpy: str

    @property
    def summary(self) -> str:
        """The backend and its hardware in a few words."""
        if self.name == "cpu":
            return f"cpu ({self.cpu}, {self.cores} core{'' if self.cores == 1 else 's'})"
        kinds = Counter(self.devices).items()
        return f"{self.name} ({', '.join(f'{count} × {kind}' for kind, count in kinds)})"

    def _rows(self) -> list[tuple[str, str]]:
        return [
            ("backend", self.name),
            ("devices", ", ".join(f"{n} × {kind}" for kind, n in Counter(self.devices).items())),
            ("processor", f"{self.cpu}, {self.cores} cores"),
            ("precision", "float64" if self.float64 else "float32"),
            ("Python", self.python),
            ("jax, jaxlib", f"{self.jax}, {self.jaxlib}"),
            ("NumPy", self.numpy),
        ]

    def __repr__(self) -> str:
        return list_text(self._rows())

    def _repr_html_(self) -> str:
        return table_html("Computed here", (), self._rows(), "backend")


def describe_backend() -> Backend:
    """Describe what JAX computes on. Starts JAX's backend if nothing has yet.

    Returns:
        Versions, devices, processor and precision; never the name of the machine.

    Example:
        >>> import rematax as rx
        >>> rx.describe_backend().name in ("cpu", "gpu", "tpu")
        True
    """
    affinity = getattr(os, "sched_getaffinity", None)
    return Backend(
        name=jax.default_backend(),
        devices=tuple(device.device_kind for device in jax.devices()),
        cpu=_processor(),
        cores=len(affinity(0)) if affinity else os.cpu_count() or 1,
        float64=jnp.result_type(float) == jnp.float64,
        python=platform.python_version(),
        jax=jax.__version__,
        jaxlib=_version("jaxlib"),
        numpy=_version("numpy"),
    )


def use_backend(name: Literal["cpu", "gpu", "tpu"]) -> None:
    """Make JAX compute on a backend. Call it before anything is computed.

    Args:
        name: ``"cpu"``, ``"gpu"`` or ``"tpu"``.

    Raises:
        ValueError: There is no backend of that name.
        RuntimeError: This machine or this installation lacks the backend, or JAX has computed on
            another one already. JAX stays as it was.

    Example:
        >>> import jax, rematax as rx
        >>> rx.use_backend(jax.default_backend())  # what is in use already is fine
    """
    if name not in ("cpu", "gpu", "tpu"):
        near = difflib.get_close_matches(str(name).lower(), _MEANT, n=1, cutoff=0.5)
        hint = f" Did you mean {_MEANT[near[0]]!r}?" if near else ""
        raise ValueError(
            f"rx.use_backend: there is no backend {name!r}: choose 'cpu', 'gpu' or 'tpu'.{hint}"
        )
    before = jax.config.jax_platforms  # type: ignore[attr-defined]
    try:
        jax.config.update("jax_platforms", _platform(name))
        in_use = jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # the latter where no plugin is installed
        jax.config.update("jax_platforms", before)
        reason = first_line(error) if str(error) else "JAX has no plugin for it"
        install = f", install its support ({_INSTALL[name]})" if name in _INSTALL else ""
        raise RuntimeError(
            f"rx.use_backend: no {name} can be used here ({reason}): check that the machine "
            f"has one{install}, or choose 'cpu'."
        ) from None
    if in_use != name:
        jax.config.update("jax_platforms", before)
        raise RuntimeError(
            f"rx.use_backend: JAX computes on the {in_use} already, so it cannot change to the "
            f"{name}: call rx.use_backend({name!r}) before the first computation, in a fresh "
            "process."
        )


def _platform(name: str) -> str:
    """Return JAX's own name for a backend: a GPU goes by the name of the plugin installed."""
    if name != "gpu":
        return name
    return "rocm" if any(_version(f"jax-rocm{n}-plugin") != "unknown" for n in "678") else "cuda"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _processor() -> str:
    """Return the processor's model; where the system does not tell, its architecture."""
    try:
        if platform.system() == "Darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(
                command, capture_output=True, text=True, check=True
            ).stdout.strip()
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
