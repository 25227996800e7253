#!/usr/bin/env -S uv run --script

# /// script
# dependencies = ["nox>=2025.2.9"]
# ///

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
DOCS = ROOT / "docs"
BUILD = DOCS / "_build"
SITE = BUILD / "html"
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")

# backend -> its lock, and what JAX calls it
LOCKS = {"cpu": "requirements.txt", "gpu": "requirements-gpu.txt", "tpu": "requirements-tpu.txt"}
PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}
# Device files of the accelerators' drivers: without one, a lock of gigabytes need not be installed.
DRIVERS = {"gpu": ("/dev/nvidia*", "/dev/dxg"), "tpu": ("/dev/accel*", "/dev/vfio/*")}

# Tests take all cores; one that is done early takes over from the others.
WORKERS = ("--numprocesses=auto", "--dist=worksteal")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the book and run the doctests: `nox -s docs [-- --backend cpu|gpu|tpu]`."""
    backend, rest = _backend(session)
    _install(session, f"docs/{LOCKS[backend]}")
    _build_book(session, backend, *rest)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, the built book's among them; arguments go to pytest."""
    _install(session, "tests/requirements.txt")
    _pytest(session, *session.posargs)


@nox.session(default=False)
def nightly(session: nox.Session) -> None:
    """Run all tests, the slow ones too and on random examples, then with `jax_remat3`.

    Arguments go to pytest.
    """
    _install(session, "tests/requirements.txt")
    random = {"REMATAX_HYPOTHESIS": "nightly"}
    command = ("python", "-m", "pytest", *WORKERS)
    session.run(*command, *session.posargs, env=_environment("cpu") | random)
    _pytest(session, "--ignore=tests/site", *session.posargs, JAX_REMAT3="1", **random)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Time the scan beside its peers, each in its own process; prints ratios."""
    _install(session, "tests/requirements.txt")
    session.run(
        "python", "-m", "tests.benchmarks.bench_scan", *session.posargs, env=_environment("cpu")
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, the prose's numbers, and that the locks are what they should be."""
    _install(session, "tests/requirements.txt")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("python", "-m", "docs._ext.prose_numbers", "docs", "README.md")


@nox.session(default=False)
def live(session: nox.Session) -> None:
    """Rebuild and reload in the browser while you write; arguments go to sphinx-autobuild."""
    _install(session, "docs/requirements.txt")
    if _has_venv(session):
        session.install(*nox.project.dependency_groups(PYPROJECT, "live"))
    session.run(
        "sphinx-autobuild", "-q", "-j", "2", "--watch", "src", "--ignore", "*/_build/*",
        "--open-browser", *session.posargs, "docs", str(BUILD / "live"),
        env=_environment("cpu"),
    )  # fmt: skip


@nox.session(default=False, python="3.11")
def oldest(session: nox.Session) -> None:
    """Build the book and run the tests with the oldest JAX that is supported."""
    _install(session, "docs/requirements-oldest.txt")
    _build_book(session, "cpu", folder="oldest")
    _pytest(session, "--ignore=tests/site", *session.posargs)


@nox.session(default=False, python=["3.12", "3.13"])
def newest(session: nox.Session) -> None:
    """Build the book and run the tests with the newest locked JAX."""
    _install(session, "tests/requirements.txt")
    _build_book(session, "cpu", folder=f"newest-{session.python}")
    _pytest(session, "--ignore=tests/site", *session.posargs)


@nox.session(default=False)
def linkcheck(session: nox.Session) -> None:
    """Open every outside address of the book; needs the network."""
    _install(session, "docs/requirements.txt")
    session.run(
        "python", "-m", "sphinx", "-q", "-b", "linkcheck", "docs", str(BUILD / "linkcheck"),
        env=_environment("cpu"),
    )  # fmt: skip


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Write all locks anew; arguments such as `--upgrade` go to `uv pip compile`."""
    session.install("uv")
    for inputs, output in (
        (["--extra=book", "--group=docs"], "docs/requirements.txt"),
        (["--extra=book", "--extra=cuda", "--group=docs"], "docs/requirements-gpu.txt"),
        (["--extra=book", "--extra=tpu", "--group=docs"], "docs/requirements-tpu.txt"),
        (["--extra=book", "--group=tests", "--group=lint"], "tests/requirements.txt"),
        (["--extra=book", "--group=tests", "docs/oldest.in"], "docs/requirements-oldest.txt"),
    ):
        session.run(
            "uv", "pip", "compile", "pyproject.toml", "--universal", "--python-version=3.11",
            "--generate-hashes", "--no-header", "--no-emit-index-url", "--no-emit-find-links",
            *inputs, *session.posargs, f"--output-file={output}",
            silent=True,
        )  # fmt: skip


def _has_venv(session: nox.Session) -> bool:
    """Say whether the session has an environment of its own, or uses what is there (--no-venv)."""
    return session.venv_backend not in (None, "none")


def _install(session: nox.Session, lock: str) -> None:
    """Install a lock and this package, where the session has an environment of its own."""
    if _has_venv(session):
        session.install("--require-hashes", "-r", lock)
        session.install("--no-deps", "-e", ".")


def _pytest(session: nox.Session, *arguments: str, **variables: str) -> None:
    """Run the tests that run on every change, on all cores."""
    command = ("python", "-m", "pytest", "-m", "not nightly", *WORKERS)
    session.run(*command, *arguments, env=_environment("cpu") | variables)


def _environment(backend: str) -> dict[str, str]:
    return {"JAX_PLATFORMS": PLATFORMS[backend]}


def _backend(session: nox.Session) -> tuple[str, list[str]]:
    """Read `--backend` and refuse at once what this machine cannot have."""
    parser = argparse.ArgumentParser(prog="nox -s docs --", allow_abbrev=False)
    parser.add_argument("--backend", choices=sorted(LOCKS), default="cpu")
    options, rest = parser.parse_known_args(session.posargs)
    patterns = DRIVERS.get(options.backend, ())
    if patterns and not any(list(Path("/").glob(pattern[1:])) for pattern in patterns):
        session.error(
            f"no {options.backend} here: found none of {', '.join(patterns)}. "
            "Nothing was built, and the last site is as it was; try --backend cpu."
        )
    return options.backend, rest


def _build_book(session: nox.Session, backend: str, *arguments: str, folder: str = "") -> None:
    """Check the backend, build into a working folder, run the doctests, then publish the site."""
    environment = _environment(backend)
    check = f"import rematax as rx; rx.use_backend('{backend}'); print(rx.describe_backend())"
    session.run("python", "-c", check, env=environment)

    work, site = BUILD / "work" / folder, SITE if not folder else BUILD / f"html-{folder}"
    doctrees = work / "doctrees"
    try:
        session.run(
            "python", "-m", "sphinx", "-q", "-j", "2", "-W", "-b", "html",
            "-d", str(doctrees), *arguments, "docs", str(work / "html"),
            env=environment,
        )  # fmt: skip
        session.run(
            "python", "-m", "pytest", "-q", "--doctest-modules", "--ignore=docs/conf.py",
            "src", "docs", "README.md", env=environment,
        )  # fmt: skip
    except nox.command.CommandFailed:
        # Sphinx forgets the warnings of pages it has read: the next build must read all again.
        shutil.rmtree(work, ignore_errors=True)
        session.error("the book was not built; the last good site is as it was.")
    _publish(work / "html", site)
    session.log(f"The book is at {(site / 'index.html').as_uri()}")


def _publish(built: Path, site: Path) -> None:
    """Put the built site in its place in one step, so that no reader finds half of one."""
    fresh, old = site.with_suffix(".new"), site.with_suffix(".old")
    for folder in (fresh, old):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(built, fresh)
    if site.exists():
        site.rename(old)
    fresh.rename(site)
    shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    nox.main()
