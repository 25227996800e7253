"""What the type checkers make of a user's program: nothing to object to; and of one with mistakes.

Pyright is run as basedpyright, whose node comes with it, by pyright's own rules.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GOOD, BAD = HERE / "typed_program.py", HERE / "mistyped_program.py"


def mypy(program, folder):
    """Give the numbers of the lines with errors, and what is said of them."""
    command = ["mypy", "--strict", "--config-file=", "--cache-dir", str(folder), str(program)]
    out = run(command).stdout
    return {int(line) for line in re.findall(r"\.py:(\d+): error", out)}, out


def pyright(program, folder):
    """Give the numbers of the lines with errors, and what is said of them."""
    config = folder / "pyrightconfig.json"
    options = {"include": [str(program)], "typeCheckingMode": "standard"}
    config.write_text(json.dumps(options), "utf-8")
    command = ["basedpyright", "--outputjson", "-p", str(config), "--pythonpath", sys.executable]
    out = run(command).stdout
    found = json.loads(out)
    assert found["summary"]["filesAnalyzed"] == 1
    return {row["range"]["start"]["line"] + 1 for row in found["generalDiagnostics"]}, out


def run(command):
    """Run a module of this environment; 1 says that it found errors."""
    if importlib.util.find_spec(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed here")
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=HERE.parent, capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done


every_checker = pytest.mark.parametrize("checker", [mypy, pyright])


@every_checker
def test_a_users_program_is_clean(checker, tmp_path):
    lines, out = checker(GOOD, tmp_path)
    assert not lines, out


@every_checker
def test_a_users_mistakes_are_seen(checker, tmp_path):
    marked = {
        i for i, line in enumerate(BAD.read_text("utf-8").splitlines(), 1) if "# wrong" in line
    }
    lines, out = checker(BAD, tmp_path)
    assert marked and lines == marked, out


def test_a_users_program_runs():
    done = subprocess.run(
        [sys.executable, GOOD],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
