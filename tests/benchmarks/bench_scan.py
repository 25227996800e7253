"""Time and memory of gradients through a loop, side by side with the alternatives.

Run it as a script; it is no test and asserts nothing::

    python tests/benchmarks/bench_scan.py [--rounds 7] [--cells 2000] [--only WORD] [--json FILE]

Each contender lives in a process of its own, so that neither the allocator nor the compilation
cache of one helps another. The processes run one at a time and take turns: a round is one timed
call in each, so that a slow minute of the machine hits all of them. What is printed is the median
over the rounds of the ratio to ``jax.lax.scan`` *in the same round*, its spread (10th and 90th
percentile), and the temporary bytes that the compiler allocates.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

SNAPSHOTS = (5, 10, 30, 62)
STEPS = 1024
SPECIES = 10


def workload(cells):
    """A packed bed's worth of work: RK4 on cells x species, float64, with a tape of 24 states."""
    import jax
    import jax.numpy as jnp

    exchange = jax.random.normal(jax.random.key(0), (SPECIES, SPECIES)) / SPECIES
    first = 1.0 + 0.1 * jax.random.normal(jax.random.key(1), (cells, SPECIES))

    def rate(c, k):
        moved = jnp.roll(c, 1, axis=0) - c
        return 0.1 * moved + k * (c * c / (1 + c)) @ exchange - 0.1 * c * c

    def step(c, k):
        h = 1e-2
        k1 = rate(c, k)
        k2 = rate(c + h / 2 * k1, k)
        k3 = rate(c + h / 2 * k2, k)
        k4 = rate(c + h * k3, k)
        return c + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    return step, first, jnp.float64(0.3)


def loop(name):
    """Give ``(step, first, k) -> last`` for a contender's name."""
    import jax

    kind, _, number = name.partition(" ")

    def body(step, k):
        return lambda c, _: (step(c, k), None)

    if kind == "lax.scan":
        return lambda step, c, k: jax.lax.scan(body(step, k), c, None, STEPS)[0]
    if kind == "per-step":
        return lambda step, c, k: jax.lax.scan(jax.checkpoint(body(step, k)), c, None, STEPS)[0]
    if kind == "hand-written":

        def nested(step, c, k):
            leaf = jax.checkpoint(body(step, k), prevent_cse=False)

            def block(c, _):
                return jax.lax.scan(leaf, c, None, 32)

            return jax.lax.scan(jax.checkpoint(block, prevent_cse=False), c, None, STEPS // 32)[0]

        return nested
    if kind == "equinox":
        import equinox.internal as eqxi

        def checkpointed(step, c, k):
            _, last = eqxi.while_loop(
                lambda s: s[0] < STEPS,
                lambda s: (s[0] + 1, step(s[1], k)),
                (0, c),
                max_steps=STEPS,
                kind="checkpointed",
                checkpoints=int(number),
            )
            return last

        return checkpointed

    import rematax as rx

    schedule = rx.Binomial(int(number))
    return lambda step, c, k: rx.scan(body(step, k), c, None, STEPS, schedule=schedule)[0]


def contend(name, cells):
    """Compile one contender; then time one call for every line on standard input."""
    import jax

    jax.config.update("jax_enable_x64", True)
    step, first, k = workload(cells)
    run = loop(name)

    def loss(c, k):
        return (run(step, c, k) ** 2).sum()

    begin = time.perf_counter()
    compiled = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(first, k).compile()
    seconds = time.perf_counter() - begin
    value, (_, slope) = jax.block_until_ready(compiled(first, k))
    report = {
        "temp": compiled.memory_analysis().temp_size_in_bytes,
        "compile": seconds,
        "value": float(value),
        "slope": float(slope),
        "jax": jax.__version__,
    }
    print(json.dumps(report), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        jax.block_until_ready(compiled(first, k))
        print(time.perf_counter() - begin, flush=True)


class Contender:
    """A process that compiles a contender and times it on demand."""

    def __init__(self, name, cells):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--contend", name, "--cells", str(cells)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        self.report = json.loads(self.process.stdout.readline())
        self.times = []

    def time(self):
        """Time one call."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.times.append(float(self.process.stdout.readline()))

    def close(self):
        """Let the process end."""
        self.process.stdin.close()
        self.process.wait()


def ratios(times, reference):
    """Give the median and the 10th and 90th percentile of the ratios round by round."""
    all_ratios = [a / b for a, b in zip(times, reference, strict=True)]
    deciles = statistics.quantiles(all_ratios, n=10, method="inclusive")
    return statistics.median(all_ratios), deciles[0], deciles[-1]


def compare(names, cells, rounds, reference):
    """Run the contenders in turns and print their table."""
    contenders = {}
    try:
        for name in names:
            contenders[name] = Contender(name, cells)
            seconds = contenders[name].report["compile"]
            print(f"compiled {name} in {seconds:.2f} s", file=sys.stderr, flush=True)
        for turn in range(rounds + 1):
            begin = time.perf_counter()
            for contender in contenders.values():
                contender.time()
            seconds = time.perf_counter() - begin
            print(f"round {turn} of {rounds}: {seconds:.1f} s", file=sys.stderr, flush=True)
            if turn == 0:  # warm caches
                for contender in contenders.values():
                    contender.times.clear()
    finally:
        for contender in contenders.values():
            contender.close()
    base = contenders[reference]
    print(f"\n{cells} cells x {SPECIES} species, n = {STEPS}, jax {base.report['jax']}")
    print(f"{'gradient by':<16}{'temp MB':>9}{'/ ' + reference:>12}{'time':>8}  (10 %, 90 %)")
    rows = {}
    for name, contender in contenders.items():
        middle, low, high = ratios(contender.times, base.times)
        temp = contender.report["temp"]
        rows[name] = {
            **contender.report,
            "time": middle,
            "low": low,
            "high": high,
            "median seconds": statistics.median(contender.times),
        }
        print(
            f"{name:<16}{temp / 1e6:>9.2f}{temp / base.report['temp']:>12.5f}"
            f"{middle:>8.3f}  ({low:.3f}, {high:.3f})  compile {contender.report['compile']:.2f} s"
        )
    for s in SNAPSHOTS:
        ours, theirs = f"rx.scan {s}", f"equinox {s}"
        if ours in contenders and theirs in contenders:
            middle, low, high = ratios(contenders[ours].times, contenders[theirs].times)
            temp = contenders[ours].report["temp"] / contenders[theirs].report["temp"]
            print(f"{ours} / {theirs}: time {middle:.3f} ({low:.3f}, {high:.3f}), bytes {temp:.3f}")
    return rows


def main():
    """Read the arguments, run the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cells", type=int, default=2000)
    parser.add_argument("--only", help="contenders whose name contains this word")
    parser.add_argument("--json", help="file for the numbers")
    parser.add_argument("--contend", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        return contend(options.contend, options.cells)
    names = ["lax.scan", "per-step", "hand-written"]
    names += [f"{kind} {s}" for s in SNAPSHOTS for kind in ("rx.scan", "equinox")]
    if options.only:
        names = ["lax.scan"] + [n for n in names[1:] if options.only in n]
    results = {"packed": compare(names, options.cells, options.rounds, "lax.scan")}
    tiny = [n for n in ("per-step", "lax.scan", "rx.scan 62", "equinox 62") if n in names]
    if "per-step" in tiny:
        results["tiny"] = compare(tiny, 10, 5 * options.rounds, "per-step")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return None


if __name__ == "__main__":
    main()
