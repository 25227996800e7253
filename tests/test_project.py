"""What the project says of itself in several places is the same in all of them."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCKS = [*sorted((ROOT / "docs").glob("requirements*.txt")), ROOT / "tests/requirements.txt"]


def pinned(lock: Path) -> dict[str, set[str]]:
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", lock.read_text("utf-8"), re.M)
    return {name: {v for n, v in found if n == name} for name, _ in found}


def test_oldest_python_is_named_alike():
    oldest = PROJECT["requires-python"].removeprefix(">=")
    for page in ("README.md", "docs/index.md"):
        assert f"Python {oldest} or newer" in (ROOT / page).read_text("utf-8")


def test_oldest_lock_holds_the_oldest_jax():
    (floor,) = (d.removeprefix("jax>=") for d in PROJECT["dependencies"] if d.startswith("jax"))
    assert pinned(ROOT / "docs/requirements-oldest.txt")["jax"] == {floor}


def test_version_is_named_alike():
    assert f"version: {PROJECT['version']}" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_readme_has_two_commands_and_ci_runs_them():
    block = re.search(r"```bash\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)[1]
    first, second = block.strip().splitlines()
    assert "nox -s docs" in first and "nox -s tests" in second
    assert "README.md" in (ROOT / ".ci/run").read_text("utf-8")
    assert first in (ROOT / "docs/index.md").read_text("utf-8")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_locks_hold_hashes_and_no_address(lock):
    text = lock.read_text("utf-8")
    assert "://" not in text and "--index-url" not in text and "--find-links" not in text
    requirements = re.findall(r"^[\w.-]+==.*(?:\n    --hash=sha256:[0-9a-f]{64}.*)+", text, re.M)
    assert len(requirements) == len(re.findall(r"^[\w.-]+==", text, re.M)) > 50


def test_docs_and_tests_lock_the_same_versions():
    docs, tests = pinned(ROOT / "docs/requirements.txt"), pinned(ROOT / "tests/requirements.txt")
    assert {name: tests.get(name) for name in docs} == docs


def test_workflow_actions_are_pinned():
    for workflow in (ROOT / ".github/workflows").glob("*.yml"):
        for used in re.findall(r"uses: (\S+)", workflow.read_text("utf-8")):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", used), used


@pytest.mark.parametrize("backend", ["gpu", "tpu"])
def test_missing_backend_is_said_before_anything_is_built(backend, tmp_path):
    device = {"gpu": ("/dev/nvidia*", "/dev/dxg"), "tpu": ("/dev/accel*", "/dev/vfio/*")}[backend]
    if any(list(Path("/").glob(pattern[1:])) for pattern in device):
        pytest.skip(f"this machine has a {backend}")
    shutil.copy(ROOT / "noxfile.py", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    site = tmp_path / "docs/_build/html"
    site.mkdir(parents=True)
    (site / "index.html").write_text("the last good site")
    done = nox(tmp_path, "--backend", backend)
    assert done.returncode != 0
    assert f"no {backend} here" in done.stderr and "the last site is as it was" in done.stderr
    assert (site / "index.html").read_text() == "the last good site"


def test_misspelt_backend_lists_the_right_ones():
    done = nox(ROOT, "--backend", "gpuu")
    assert done.returncode != 0
    assert "invalid choice: 'gpuu'" in done.stderr and "cpu" in done.stderr


def nox(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "nox", "--no-venv", "-s", "docs", "--", *arguments],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
