"""The execution cache cannot lie: a small book, built again and again after one change each.

The book has the project's own configuration and extensions, and a copy of its source to change.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

INDEX = """\
# Home

```{toctree}
one
two
reference/api
```
"""
ONE = """\
---
file_format: mystnb
kernelspec:
  name: python3
---
# One

The verdicts number {glue:text}`one-verdicts`.

```{code-cell} ipython3
import rematax.book
rematax.book.record("one-verdicts", len(rematax.book.VERDICTS))
```
"""
TWO = """\
---
file_format: mystnb
kernelspec:
  name: python3
---
# Two

From one: {glue:text}`one.md::one-verdicts:d`.

```{code-cell} ipython3
print(40 + 2)
```
"""


class Book:
    """A copy of the project whose docs are three small pages."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.docs = folder, folder / "docs"
        ignore = shutil.ignore_patterns("_build", "__pycache__", "*.md")
        shutil.copytree(ROOT / "docs", self.docs, ignore=ignore)
        shutil.copytree(ROOT / "src", folder / "src", ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", folder)
        (self.docs / "reference").mkdir(exist_ok=True)
        shutil.copy(ROOT / "docs/reference/api.md", self.docs / "reference/api.md")
        self.write(index=INDEX, one=ONE, two=TWO)

    def write(self, **pages: str) -> None:
        for name, text in pages.items():
            (self.docs / f"{name}.md").write_text(text, "utf-8")

    def change(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        text = path.read_text("utf-8")
        assert old in text
        path.write_text(text.replace(old, new), "utf-8")

    def build(self, **environment: str) -> dict[str, str]:
        """Build; return {page: "run" | "cached" | "unchanged"}, or {} when nothing was read."""
        limit = {"REMATAX_CELL_SECONDS": "-1"}  # none: a busy machine builds the same
        self.result = subprocess.run(
            [sys.executable, "-m", "sphinx", "-q", "-j", "2", "-W", "--keep-going", "-b", "html",
             "-d", "doctrees", "docs", "html"],
            cwd=self.folder, env={**os.environ, **limit, **environment},
            capture_output=True, text=True,
        )  # fmt: skip
        return dict(re.findall(r"^(one|two) +[\d.]+ +\d+ +(\w+)$", self.result.stdout, re.M))

    def page(self, name: str) -> str:
        return (self.folder / "html" / f"{name}.html").read_text("utf-8")


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    book = Book(tmp_path_factory.mktemp("book"))
    assert book.build() == {"one": "run", "two": "run"}, book.result.stdout + book.result.stderr
    assert book.result.returncode == 0
    return book


def test_pasted_values(book):
    assert re.search(r"verdicts number <span[^>]*>3</span>", book.page("one"))
    assert re.search(r"From one: <span[^>]*>3</span>", book.page("two"))
    assert (book.folder / "html/claims.json").exists()


def test_build_twice_runs_no_cell(book):
    assert book.build() == {}
    assert "No page with code had to be read again." in book.result.stdout


def test_prose_edit_runs_no_cell(book):
    book.change("docs/one.md", "The verdicts number", "In all the verdicts number")
    assert book.build() == {"one": "cached", "two": "unchanged"}
    assert "In all the verdicts number" in book.page("one")


def test_change_in_source_shows(book):
    book.change(
        "src/rematax/book.py", '"holds", "holds only if"', '"holds", "maybe", "holds only if"'
    )
    assert book.build() == {"one": "run", "two": "run"}
    assert re.search(r"verdicts number <span[^>]*>4</span>", book.page("one"))
    assert re.search(r"From one: <span[^>]*>4</span>", book.page("two"))
    book.change(
        "src/rematax/book.py", '"holds", "maybe", "holds only if"', '"holds", "holds only if"'
    )
    assert book.build() == {"one": "cached", "two": "cached"}  # back to a state that was built
    assert re.search(r"From one: <span[^>]*>3</span>", book.page("two"))


def test_page_that_another_glues_from(book):
    book.change("docs/one.md", "len(rematax.book.VERDICTS))", "7)")
    assert book.build() == {"one": "run", "two": "unchanged"}
    assert re.search(r"verdicts number <span[^>]*>7</span>", book.page("one"))
    assert re.search(r"From one: <span[^>]*>7</span>", book.page("two"))


def test_backend_variable_runs_all(book):
    assert book.build(XLA_FLAGS="--xla_cpu_enable_fast_math=false") == {"one": "run", "two": "run"}
    assert set(book.build().values()) == {"cached"}


def test_stored_run_runs_all(book):
    (book.docs / "_data").mkdir(exist_ok=True)
    (book.docs / "_data/run.json").write_text("{}")
    assert book.build() == {"one": "run", "two": "run"}


def test_old_caches_are_pruned(book):
    assert len(list((book.docs / "_build/execution").iterdir())) <= 3


def test_failing_cell_is_named(book):
    book.change("docs/two.md", "print(40 + 2)", "1 / 0")
    book.build()
    assert book.result.returncode != 0
    assert "two, cell 1 (line 11): ZeroDivisionError: division by zero" in book.result.stderr
    book.change("docs/two.md", "1 / 0", "import signal; signal.pause()")  # never ends
    book.build(REMATAX_CELL_SECONDS="2")
    assert book.result.returncode != 0
    assert "two, cell 1 (line 11): the cell took longer than 2 seconds." in book.result.stderr


def test_false_claim_is_named(book):
    book.change("docs/two.md", "import signal; signal.pause()",
                "from rematax.book import claim; claim('two-sum', 42, expected=43)")  # fmt: skip
    book.build()
    assert book.result.returncode != 0
    assert "claim 'two-sum' does not hold: the value is 42, expected 43" in book.result.stderr


def test_id_used_by_two_pages(book):
    book.change(
        "docs/two.md", "claim('two-sum', 42, expected=43)", "claim('one-verdicts', 1, above=0)"
    )
    book.build()
    assert book.result.returncode != 0
    assert "the id 'one-verdicts' is used by" in book.result.stderr
