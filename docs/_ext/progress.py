"""What a build says while pages execute: which cell, how long so far, how much is left.

Sphinx reads pages in forked processes, so the counts live in shared memory and whoever finishes a
cell prints. On a terminal that is one line, rewritten; elsewhere it is a plain line a cell.
"""

from __future__ import annotations

import multiprocessing
import sys
import time

WIDTH = 24


class Progress:
    """Counts of finished cells and pages, shared between the processes of one build."""

    def __init__(self, cells: int, pages: int) -> None:
        """Start counting towards ``cells`` code cells on ``pages`` pages."""
        self.cells, self.pages = cells, pages
        self.started = time.monotonic()
        self.terminal = sys.stdout.isatty()
        self._done = multiprocessing.Value("i", 0)

    def start(self, page: str, cells: int) -> None:
        """Say that a page begins to execute: its kernel is being started."""
        self._say(f"{page}: starting a kernel for {cells} cells")

    def cell(self, page: str, index: int, cells: int, line: int) -> None:
        """Say that a cell begins to execute."""
        self._say(f"{page}: cell {index} of {cells} (line {line})")

    def cell_done(self, count: int = 1) -> None:
        """Count cells that were executed or taken from the cache."""
        with self._done.get_lock():
            self._done.value += count

    def end(self) -> None:
        """Leave the terminal on a fresh line."""
        if self.terminal and self.cells:
            print("\r\033[K", end="", flush=True)

    def _say(self, what: str) -> None:
        with self._done.get_lock():  # one line at a time
            done, elapsed = self._done.value, time.monotonic() - self.started
            left = f", about {clock(elapsed * (self.cells - done) / done)} left" if done else ""
            count = f"{done}/{self.cells} cells, {clock(elapsed)}{left}"
            if self.terminal:
                filled = WIDTH * done // max(self.cells, 1)
                bar = "█" * filled + "░" * (WIDTH - filled)
                print(f"\r\033[K{bar} {count} · {what}"[:150], end="", flush=True)
            else:
                print(f"[{count}] {what}", flush=True)


def clock(seconds: float) -> str:
    """Write seconds as minutes and seconds.

    >>> clock(75.2)
    '1:15'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def table(rows: list[tuple[str, float | None, int, str]]) -> str:
    """Lay out the closing table: page, seconds, cells, and whether it was run or cached."""
    width = max([len(page) for page, *_ in rows] + [4])
    lines = [f"{'page':<{width}}  {'seconds':>7}  {'cells':>5}  how"]
    for page, seconds, cells, how in rows:
        took = "-" if seconds is None else f"{seconds:.1f}"
        lines.append(f"{page:<{width}}  {took:>7}  {cells:>5}  {how}")
    return "\n".join(lines)
