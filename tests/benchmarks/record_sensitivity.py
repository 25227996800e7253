"""The runs that docs/apply/sensitivity-analysis.md reads, since they take longer than a page may.

Run it from the root of the repository, on a machine that does nothing else; it asserts nothing::

    PYTHONPATH=src python -m tests.benchmarks.record_sensitivity

It writes docs/_data/sensitivity.json: time and bytes of the gradient through many small steps, by
what it stores; of all sensitivities of a chain of reactions, by number of rate constants; and
diffrax's reverse mode beside its forward mode for stiff kinetics, with the processor time that it
takes to compile either.
"""

from __future__ import annotations

import datetime
import json
import time
from functools import partial
from pathlib import Path

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import rematax as rx
from rematax import reactors

WHERE = Path(__file__).parents[2] / "docs" / "_data" / "sensitivity.json"
P = np.array([0.04, 1.0e4, 3.0e7])  # rate constants, 1/s
START = np.array([1.0, 0.0, 0.0])
STEPS = 70_000
SIZES = (4, 16, 64, 256)
CHAIN_STEPS = 250
ENDS = (50.0, 4.0e7)  # s
ATOL = (1e-10, 1e-14, 1e-10, 1e-6)


def robertson(state, p):
    """The page's reactions."""
    a, b, c, _ = state
    r1, r2, r3 = p[0] * a, p[1] * b * c, p[2] * b**2
    return r2 - r1, r1 - r2 - r3, r3, c


def many_steps():
    """Compare what a gradient through the page's explicit steps may store."""

    def integral(p, start, scan):
        step = reactors.rk4(lambda s, _: robertson(s, p), ENDS[0] / STEPS)
        return scan(step, tuple(jnp.append(start, 0.0)), length=STEPS)[0][-1]

    ways = {
        "plain": jax.lax.scan,
        "each step checkpointed": partial(rx.scan, schedule=rx.EveryStep()),
        "rx.scan, nested": partial(rx.scan, schedule=rx.Nested()),
        "rx.scan, binomial": partial(rx.scan, schedule=rx.Binomial()),
    }
    functions = {
        way: jax.value_and_grad(partial(integral, scan=scan), (0, 1)) for way, scan in ways.items()
    }
    costs = rx.compare(functions, P, START, time=True)
    return [
        {"way": way, "steps": STEPS, "seconds": c.seconds, "working_bytes": c.working_bytes}
        for way, c in costs.items()
    ]


def arrived(k, scan=rx.scan, end=10.0):
    """The page's chain: what has arrived at its end."""

    def slope(c, _):
        rates = k * c[:-1]
        return jnp.append(0.0, rates) - jnp.append(rates, 0.0)

    c = jnp.zeros(k.size + 1).at[0].set(1.0)
    return scan(reactors.rk4(slope, end / CHAIN_STEPS), c, length=CHAIN_STEPS)[0][-1]


def chains():
    """Compare the modes, for each number of rate constants."""
    modes = {
        "forward": jax.jacfwd(arrived),
        "reverse, plain": jax.grad(lambda k: arrived(k, jax.lax.scan)),
        "reverse, rx.scan": jax.grad(arrived),
    }
    rows = []
    for p in SIZES:
        costs = rx.compare(modes, jnp.full(p, p / 10.0), time=True)
        rows += [
            {"constants": p, "mode": m, "seconds": c.seconds, "working_bytes": c.working_bytes}
            for m, c in costs.items()
        ]
    return rows


def stiff(adjoint, max_steps):
    """The integral of C by an implicit solver."""

    def integral(p, start, end):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, s, p: jnp.stack(robertson(s, p))),
            diffrax.Kvaerno3(),
            t0=0.0,
            t1=end,
            dt0=1e-6,
            y0=jnp.append(start, 0.0),
            args=p,
            stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=jnp.array(ATOL)),
            max_steps=max_steps,
            adjoint=adjoint,
        )
        return solution.ys[-1, -1]

    return integral


def implicit():
    """Compile and run either mode of the implicit solver."""
    forward = stiff(diffrax.ForwardMode(), None)
    jax.jit(forward)(P, START, ENDS[0])  # so that what diffrax does only once is done
    reverse = stiff(diffrax.RecursiveCheckpointAdjoint(), 8192)
    modes = {
        "forward": jax.jit(jax.jacfwd(forward, (0, 1))),
        "reverse": jax.jit(jax.grad(reverse, (0, 1))),
    }
    rows = []
    for mode, fun in modes.items():
        begin = time.process_time()
        program = fun.lower(P, START, ENDS[0]).compile()
        compile_seconds = time.process_time() - begin
        for end in ENDS:
            jax.block_until_ready(program(P, START, end))
            begin = time.perf_counter()
            by_p, by_start = jax.block_until_ready(program(P, START, end))
            rows.append(
                {
                    "mode": mode,
                    "end": end,
                    "compile_seconds": compile_seconds,
                    "seconds": time.perf_counter() - begin,
                    "sensitivities": [*map(float, by_p), *map(float, by_start)],
                }
            )
    return rows


def main():
    """Write the file."""
    jax.config.update("jax_enable_x64", True)
    here = rx.describe_backend()
    record = {
        "date": datetime.date.today().isoformat(),
        "machine": f"jax {here.jax}, {here.summary}",
        "rows": {"steps": many_steps(), "chain": chains(), "implicit": implicit()},
    }
    WHERE.parent.mkdir(exist_ok=True)
    WHERE.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
