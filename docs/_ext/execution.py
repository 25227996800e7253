"""Execute pages through jupyter-cache, say what is happening, and name the cell that fails.

MyST-NB has no hook for how a page is executed, so this replaces the one function that makes its
execution client (checked with MyST-NB 1.3 and 1.4). What is ours: the cells are reported as they
run, a failing or late cell stops the build with its page, number and line, and the notebook that
MyST-NB writes out holds its outputs when they came from the cache, too.
"""

from __future__ import annotations

import os
import re
import sys
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import myst_nb.sphinx_
import sphinx.util.logging
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from myst_nb.core.execute.base import NotebookClientBase
from myst_nb.sphinx_ import NbMetadataCollector
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from traitlets.config import Config

from . import cache_key
from .progress import Progress, table

LOGGER = sphinx.util.logging.getLogger(__name__)
ANSI = re.compile(r"\x1b\[[0-9;]*m")
CELL = re.compile(r"^(?:```+|~~~+|:::+)\{code-cell\}", re.MULTILINE)

# Set in the main process before Sphinx forks its readers, so that all of them share it.
_progress = Progress(cells=0, pages=0)
_source_folder = Path()


class _Zeros(dict):
    """What a failed page pastes, so that one failure is not followed by a warning a number."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> dict:
        return {"data": {"text/plain": "0"}, "metadata": {}}


class BookClient(NotebookClientBase):
    """Takes a page's outputs from the cache, or executes the page and caches them."""

    def start_client(self) -> None:
        """Fill in the outputs of all code cells."""
        cache = get_cache(self.nb_config.execution_cache_path)
        cells = [cell for cell in self.notebook.cells if cell.cell_type == "code"]
        failure = None
        try:
            record = cache.match_cache_notebook(self.notebook)
        except KeyError:
            seconds, failure = self._execute(len(cells))
            if failure is None:
                data = {"execution_seconds": seconds}
                bundle = CacheBundleIn(self.notebook, str(self.path), data=data)
                cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
            how = "run"
        else:
            _, cached = cache.merge_match_into_notebook(self.notebook)
            # In place: MyST-NB keeps its own reference to this notebook and writes it out.
            self.notebook.metadata.update(cached.metadata)
            self.notebook.cells = cached.cells
            seconds, how = record.data.get("execution_seconds"), "cached"
            _progress.cell_done(len(cells))
        self.exec_metadata = {
            "mtime": datetime.now().timestamp(),
            "runtime": seconds,
            "method": how,
            "succeeded": failure is None,
            "error": failure,
            "traceback": None,
            "cells": len(cells),  # type: ignore[typeddict-unknown-key]
        }

    @property
    def glue_data(self) -> dict:
        """What the page glued."""
        return self._glue_data if self.exec_metadata["succeeded"] else _Zeros()

    def _execute(self, total: int) -> tuple[float, str | None]:
        """Execute the notebook in place in an empty folder; return seconds, and what failed."""
        page = self.path.relative_to(_source_folder).with_suffix("").as_posix()
        code = [i for i, cell in enumerate(self.notebook.cells) if cell.cell_type == "code"]
        started: list[int] = []  # lines of the code cells that have begun, the last one running

        def begin(cell, cell_index: int) -> None:
            if cell_index in code:
                started.append(self.cell_line(cell_index))
                _progress.cell(page, len(started), total, started[-1])

        def end(cell, cell_index: int, **_) -> None:
            if cell_index in code:
                _progress.cell_done()

        _progress.start(page, total)
        with TemporaryDirectory() as folder:
            result = single_nb_execution(
                self.notebook,
                cwd=folder,
                timeout=self.nb_config.execution_timeout,
                allow_errors=False,
                on_cell_start=begin,
                on_cell_executed=end,
                extra_arguments=["--log-level=40"],  # errors; the kernel's warnings are not ours
                config=_sockets(folder),
            )
        if result.err is None:
            return result.time, None
        where = f"{page}, cell {len(started)} (line {started[-1] if started else 1})"
        return result.time, f"{where}: {_reason(result.err, self.nb_config.execution_timeout)}"


def _sockets(folder: str) -> Config:
    """Let a kernel talk through sockets in its folder, where the system has such.

    Otherwise it gets ports that were free a moment ago, and two kernels that start at once may
    well get the same.
    """
    if os.name != "posix":
        return Config()
    return Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"})


def _reason(error: CellExecutionError | CellTimeoutError, timeout: int) -> str:
    if isinstance(error, CellTimeoutError):
        return f"the cell took longer than {timeout} seconds."
    return f"{error.ename}: {error.evalue}\n{ANSI.sub('', error.traceback)}"


def _create_client(notebook, path, nb_config, logger, read_fmt=None) -> NotebookClientBase:
    if any(cell.cell_type == "code" for cell in notebook.cells):
        return BookClient(notebook, Path(path), nb_config, logger)
    return NotebookClientBase(notebook, Path(path), nb_config, logger)


def _prepare(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Count what is to be read, and deal the pages out so that parallel readers finish together."""
    global _progress, _source_folder
    _source_folder = Path(app.srcdir)
    env.rx_read = set(docnames)
    cells = {
        name: len(CELL.findall(Path(env.doc2path(name)).read_text("utf-8"))) for name in docnames
    }
    # Sphinx cuts the list into equal runs, one a reader: long and short pages go to each in turn.
    longest_first = sorted(docnames, key=lambda name: -cells[name])
    readers = max(app.parallel, 1)
    docnames[:] = [name for i in range(readers) for name in longest_first[i::readers]]
    _progress = Progress(sum(cells.values()), sum(map(bool, cells.values())))
    # Make the cache's tables now: two readers that both find none would both make them.
    folder = Path(app.config.nb_execution_cache_path)
    cache_key.prune(folder.parent, folder.name)
    get_cache(folder).list_cache_records()


def _after_reading(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Stop if a page failed. Else re-write all if outputs are new: pages glue from one another."""
    _progress.end()
    runs = [data.get("exec_data") or {} for data in NbMetadataCollector.get_doc_data(env).values()]
    failures = [run["error"] for run in runs if run.get("error")]
    if failures:
        # Not an exception: Sphinx would print its own stack above what the author needs to see.
        print("\n\n".join(("A page failed.", *failures)), file=sys.stderr)
        sys.exit(1)
    return sorted(env.found_docs) if NbMetadataCollector.new_exec_data(env) else []


def _report(app: Sphinx, exception: Exception | None) -> None:
    """Print the closing table."""
    if exception or not _progress.pages:
        if not exception:
            print("No page with code had to be read again.")
        return
    data = NbMetadataCollector.get_doc_data(app.env)
    rows = [
        (
            page,
            run["runtime"],
            run["cells"],
            run["method"] if page in app.env.rx_read else "unchanged",
        )
        for page, run in sorted((page, data[page].get("exec_data")) for page in data)
        if run
    ]
    print(table(rows), flush=True)


def setup(app: Sphinx) -> dict:
    """Install the client and its reports."""
    myst_nb.sphinx_.create_client = _create_client
    app.connect("env-before-read-docs", _prepare)
    app.connect("env-updated", _after_reading)
    app.connect("build-finished", _report)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
