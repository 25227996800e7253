"""A reader who pastes a page's visible cells, top to bottom, gets what the page shows."""

import ast
import os
import subprocess
import sys

import pytest
from myst_nb.core.read import read_myst_markdown_notebook

from .conftest import ROOT

FOLDERS = ("", "learn", "apply", "recipes", "troubleshooting")
PAGES = sorted(path for folder in FOLDERS for path in (ROOT / "docs" / folder).glob("*.md"))
MAY_IMPORT = {"jax", "numpy", "matplotlib", "optax", "diffrax", "optimistix", "rematax", "scipy"}
FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}


def visible_code(path) -> str:
    """Return the code of the cells whose input the page shows."""
    notebook = read_myst_markdown_notebook(path.read_text("utf-8"))
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return "\n".join(c.source for c in cells if not FOLDED & set(c.metadata.get("tags", [])))


def imported(code: str) -> set[str]:
    """Return the modules that code imports."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_visible_cells_need_nothing_from_folded_ones(path):
    code = visible_code(path)
    assert max(map(len, code.splitlines())) <= 80  # what a page shows without scrolling
    outside = {name for name in imported(code) if name.split(".")[0] not in MAY_IMPORT}
    assert outside <= set(sys.stdlib_module_names)
    assert "rematax.book" not in code
    # The build runs all cells; so what could fail for a reader is a name from a folded one.
    undefined = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"],
        input=code,
        capture_output=True,
        text=True,
    )
    assert undefined.returncode == 0, undefined.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_visible_cells_run_as_pasted(path, tmp_path):
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, "-c", visible_code(path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
