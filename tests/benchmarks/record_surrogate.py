"""Train the network of ``docs/apply/surrogate-training.md`` again, in more ways.

It is no test. It runs the visible cells of the page, then the page's own ``fit`` with other seeds,
on shorter runs and with cut gradients and few samples, each from three seeds, of which the median
is kept; and it measures gradients of longer runs. A few minutes::

    python -m tests.benchmarks.record_surrogate
"""

from __future__ import annotations

import datetime
import json

import jax
import matplotlib
import numpy as np

import rematax as rx

from ..site.test_as_pasted import ROOT, visible_code

SEEDS = (1, 2, 3, 4, 5)
LENGTHS = (16, 32, 64, 96, 160)  # steps
WINDOWS = (1, 8, 40, 160)  # steps
SIZES = (160, 640, 2560, 10240)  # steps


def main() -> None:
    """Write ``docs/_data/surrogate.json``."""
    matplotlib.use("agg")
    page: dict = {}
    exec(visible_code(ROOT / "docs/apply/surrogate-training.md"), page)

    def trained(seed, **options):
        nets, history = page["fit"](show=lambda line: None, seed=seed, **options)
        law, held_out = page["score"](nets[-1])
        return {"law": law, "held_out": held_out, "misfit": float(np.mean(history[-20:]))}

    def typical(**options):
        rows = [trained(seed, **options) for seed in SEEDS[:3]]
        print(rows, flush=True)
        return {key: float(np.median([row[key] for row in rows])) for key in rows[0]}

    def needed(steps):
        runs = page["BATCH"]
        one, along = (jax.ShapeDtypeStruct(s, float) for s in ((runs,), (runs, steps)))
        experiments = ((one,) * 3, along, [along] * 2)
        sampled = jax.ShapeDtypeStruct((steps,), bool)
        sizes = {
            name: rx.measure(gradient, page["net"], experiments, sampled, steps).working_bytes
            for name, gradient in page["gradients"].items()
        }
        print(steps, sizes, flush=True)
        return {"steps": steps, **sizes}

    samples, step = page["SAMPLED"], np.arange(page["STEPS"])
    run = {
        "date": datetime.date.today().isoformat(),
        "machine": rx.describe_backend().summary,
        "jax": jax.__version__,
        "bytes": [needed(steps) for steps in SIZES],
        "seeds": [{"seed": seed, **trained(seed)} for seed in SEEDS],
        "lengths": [{"steps": n, **typical(sampled=samples & (step < n))} for n in LENGTHS],
        "windows": [{"window": window, **typical(window=window)} for window in WINDOWS],
        "few": [{"window": w, **typical(sampled=page["FEW"], window=w)} for w in WINDOWS],
    }
    path = ROOT / "docs/_data/surrogate.json"
    path.write_text(json.dumps(run, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
