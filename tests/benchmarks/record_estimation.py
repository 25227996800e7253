"""Bytes and time of the gradient in the chapter on parameter estimation, for many batches.

Run it as a module; it is no test and asserts nothing::

    python -m tests.benchmarks.record_estimation

It runs the chapter's own visible cells, calls the function ``costs`` that they define, and writes
``docs/_data/estimation.json``, which the chapter draws. Times are ratios to the plain gradient.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import rematax as rx

from ..site.test_as_pasted import visible_code

DOCS = Path(__file__).parents[2] / "docs"
SIZES = (1, 10, 100, 1000)


def row(costs, batches):
    """Measure the three ways for so many batches."""
    measured = costs(batches)
    ways = {
        name: {"bytes": measured[name].working_bytes, "time": round(measured.time_ratio(name), 3)}
        for name in measured
    }
    return {"batches": batches, "ways": ways}


def main():
    """Run the chapter's cells, then more batches."""
    chapter = {}
    exec(visible_code(DOCS / "apply/parameter-estimation.md"), chapter)
    here = rx.describe_backend()
    run = {
        "date": datetime.date.today().isoformat(),
        "machine": {"cpu": here.cpu, "cores": here.cores, "jax": here.jax},
        "rows": [row(chapter["costs"], batches) for batches in SIZES],
    }
    (DOCS / "_data/estimation.json").write_text(json.dumps(run, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
