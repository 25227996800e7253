"""Train the network of ``docs/apply/surrogate-training.md`` again, in more ways.

It is no test. It runs the visible cells of the page, then the page's own ``fit`` from five seeds:
on shorter runs, and with cut gradients, few samples, and gradients of any length. It also measures
gradients of longer and of more runs. A few minutes::

    python -m tests.benchmarks.record_surrogate
"""

from __future__ import annotations

import datetime
import json

import jax
import matplotlib
import numpy as np
import optax

import rematax as rx

from ..site.test_as_pasted import ROOT, visible_code

SEEDS = (1, 2, 3, 4, 5)
LENGTHS = (16, 32, 64, 96, 160)  # steps
WINDOWS = (8, 40, 160)  # steps
SIZES = (160, 640, 2560, 10240)  # steps
LIMIT = 100_000_000  # bytes


def main() -> None:
    """Write ``docs/_data/surrogate.json``."""
    matplotlib.use("agg")
    page: dict = {}
    exec(visible_code(ROOT / "docs/apply/surrogate-training.md"), page)

    def trained(seed, **options):
        nets, history = page["fit"](show=lambda line: None, seed=seed, **options)
        law, held_out = page["score"](nets[-1])
        return {"law": law, "held_out": held_out, "misfit": float(np.mean(history[-20:]))}

    def all_seeds(**options):
        rows = [trained(seed, **options) for seed in SEEDS]
        print(options.keys(), rows, flush=True)
        return rows

    def typical(**options):
        rows = all_seeds(**options)
        return {key: float(np.median([row[key] for row in rows])) for key in rows[0]}

    def cut():
        """Train with cut gradients, shortened as on the page and as they are."""
        shortened, whole = page["optimiser"], optax.adam(page["rate"])
        for gradients, optimiser in (("shortened", shortened), ("as they are", whole)):
            page["optimiser"] = optimiser
            page["update"].clear_cache()
            for samples, sampled in (("all", page["SAMPLED"]), ("few", page["FEW"])):
                for window in WINDOWS:
                    runs = all_seeds(sampled=sampled, window=window)
                    kind = {"samples": samples, "gradients": gradients, "window": window}
                    yield kind | {"runs": runs}

    def most(name):
        """Find how many runs fit into the limit: from two sizes, checked by a third."""
        few, many = 1000, 4000
        sizes = [needed(page["STEPS"], runs)[name] for runs in (few, many)]
        each = (sizes[1] - sizes[0]) / (many - few)
        runs = int(few + (LIMIT - sizes[0]) / each)
        while (size := needed(page["STEPS"], runs)[name]) > LIMIT:
            runs = int(runs * 0.995)
        return {"runs": runs, "bytes": size}

    def needed(steps, runs=page["BATCH"]):
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
        "windows": list(cut()),
        "limit": LIMIT,
        "fits": {name: most(name) for name in page["gradients"]},
    }
    path = ROOT / "docs/_data/surrogate.json"
    path.write_text(json.dumps(run, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
