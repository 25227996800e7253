"""What a page's outputs depend on beside the page itself, as one short key.

jupyter-cache knows a page by its code cells alone, so a change in ``src/`` would go unseen. The key
made here names the cache's folder: a change in anything it covers starts a new, empty cache.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

# Variables that change what JAX computes or where.
PREFIXES = ("JAX_", "XLA_", "TF_", "LIBTPU_", "CUDA_", "REMATAX_", "OMP_", "OPENBLAS_")


def execution_key(
    source: Path, data: Path, environ: Mapping[str, str] = os.environ, extra: str = ""
) -> str:
    """Return a key over all of ``source`` and ``data``, versions, interpreter and environment."""
    digest = hashlib.sha256()
    for part in _parts(source, data, environ):
        digest.update(part)
        digest.update(b"\0")
    digest.update(extra.encode())
    return digest.hexdigest()[:16]


def prune(folder: Path, current: str, keep: int = 3) -> None:
    """Keep the current cache and the latest few others, so that switching back stays cheap."""
    if not folder.is_dir():
        return
    others = [path for path in folder.iterdir() if path.is_dir() and path.name != current]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[keep - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def tree_digest(folder: Path) -> bytes:
    """Return a digest of the names and contents of all files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.relative_to(folder).as_posix().encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()


def _parts(source: Path, data: Path, environ: Mapping[str, str]) -> Iterator[bytes]:
    yield tree_digest(source)
    yield tree_digest(data)
    yield f"{platform.python_version()} {platform.machine()} {platform.processor()}".encode()
    installed = {(d.name.lower(), d.version) for d in importlib.metadata.distributions()}
    yield "\n".join(f"{name}=={version}" for name, version in sorted(installed)).encode()
    chosen = sorted((k, v) for k, v in environ.items() if k.startswith(PREFIXES))
    yield "\n".join(f"{name}={value}" for name, value in chosen).encode()
