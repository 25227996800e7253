"""Time and memory of gradients through a loop, side by side with the alternatives.

Run it as a module; it is no test and asserts nothing::

    python -m tests.benchmarks.bench_scan [--rounds 7] [--only WORKLOAD ...] [--json FILE]
                                          [--against PATH]

Each contender lives in a process of its own, so that neither the allocator nor the compilation
cache of one helps another. The processes run one at a time and take turns: a round is one timed
call in each, so that a slow minute of the machine hits all of them. What is printed is the median
over the rounds of the ratio to ``jax.lax.scan`` *in the same round*, its spread (10th and 90th
percentile), and the bytes that the compiler allocates: temporaries and constants, which hold a
schedule's table.

The *work bound* is what a gradient takes that does nothing but its runs of the step and its
pullbacks: (evaluations - n) forward steps and n turns, each timed in the same round by itself.

With ``--against`` and the path of a worktree of another commit, each contender ``rx.scan ...`` also
runs with the engine of that worktree, in a process of its own that takes its turns; ratios of new
to old are printed, and not stored::

    git worktree add ../old COMMIT
    python -m tests.benchmarks.bench_scan --only tiny matmul --against ../old
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEERS = ("equinox", "diffrax")
PARTS = ("forward", "turns")  # no gradients, but what the work bound is made of
OLD = "old "  # begins the name of a contender with the engine that is compared against
# Times as many, where one is short or long.
ROUNDS = {"tiny": 5, "scalar": 0.5, "shared_xs": 3, "shared_closed": 3, "buffer": 3, "eager": 5,
          "eager_grad": 3}  # fmt: skip

# Snapshots are as many as bring nested schedules of the same line to the same bytes.
CONTENDERS = {
    "packed": """
        lax.scan, per-step, nested 32 32, nested 16 8 8,
        rx.scan step, rx.scan nested 32 32, rx.scan nested 16 8 8,
        rx.scan 62, rx.scan 30, rx.scan 10, rx.scan 5,
        equinox 62, equinox 30, equinox 10, equinox 5,
        forward, turns""",
    "tiny": "lax.scan, per-step, nested 32 32, rx.scan 62, equinox 62",
    "matmul": """
        lax.scan, per-step, nested 32 16, nested 8 8 8,
        rx.scan 46, rx.scan 22, rx.scan 5,
        equinox 46, equinox 22, equinox 5,
        forward, turns""",
    "scalar": """
        lax.scan, per-step, nested 1000 1000, nested 100 100 100,
        rx.scan, rx.scan 100, equinox 100""",
    "tsit5": """
        lax.scan, per-step, nested 40 25,
        rx.scan, rx.scan 10, rx.scan 5,
        recursive, recursive 10, recursive 5, direct""",
    "shared_xs": "lax.scan, rx.scan, rx.scan by hand",
    "shared_closed": "lax.scan, rx.scan, rx.scan by hand",
    "buffer": "lax.scan, lax.scan by hand, rx.scan, rx.scan by hand",
    "running_sum": """
        lax.scan, per-step, nested 32 32,
        rx.scan, rx.scan step, rx.scan nested 32 32""",
    "hvp": "lax.scan, per-step, nested 33 30, nested 30 11 3, rx.scan, rx.scan 62",
    "small": "lax.scan, per-step, nested 280 250, rx.scan, rx.scan nested",
    "eager": "lax.scan, rx.scan",
    "eager_grad": "lax.scan, rx.scan",
}
# One in ratio to the other, round by round.
PAIRS = {
    "packed": """
        rx.scan 62 / nested 32 32, rx.scan 30 / nested 16 8 8,
        rx.scan nested 32 32 / nested 32 32,
        rx.scan 62 / equinox 62, rx.scan 30 / equinox 30,
        rx.scan 10 / equinox 10, rx.scan 5 / equinox 5""",
    "tiny": "rx.scan 62 / per-step, rx.scan 62 / equinox 62",
    "matmul": """
        rx.scan 46 / nested 32 16, rx.scan 22 / nested 8 8 8,
        rx.scan 46 / equinox 46, rx.scan 22 / equinox 22, rx.scan 5 / equinox 5""",
    "scalar": """
        rx.scan / nested 1000 1000, rx.scan 100 / nested 100 100 100,
        rx.scan 100 / equinox 100""",
    "tsit5": "rx.scan / recursive, rx.scan 10 / recursive 10, rx.scan 5 / recursive 5",
    "shared_xs": "rx.scan / rx.scan by hand",
    "shared_closed": "rx.scan / rx.scan by hand",
    "buffer": "rx.scan / rx.scan by hand, lax.scan / lax.scan by hand",
    "running_sum": "rx.scan step / per-step, rx.scan nested 32 32 / nested 32 32",
    "hvp": "rx.scan / nested 30 11 3, rx.scan 62 / nested 33 30",
    "small": "rx.scan / rx.scan nested, rx.scan nested / nested 280 250",
    "eager": "rx.scan / lax.scan",
    "eager_grad": "rx.scan / lax.scan",
}


def listed(text):
    """Take a list apart."""
    return [" ".join(entry.split()) for entry in text.split(",")]


def contend(name, workload):
    """Compile one contender; then time one call for every line on standard input."""
    import jax

    import rematax as rx

    from .contenders import evaluations, gradient, label
    from .workloads import WORKLOADS

    jax.config.update("jax_enable_x64", True)
    work = WORKLOADS[workload]()
    call = gradient(name, work)
    run = jax.jit(call)
    begin = time.perf_counter()
    compiled = run.lower(work.first, work.k).compile()
    seconds = time.perf_counter() - begin
    cost = rx.measure(run, work.first, work.k)
    call, calls = (compiled, 1) if work.calls is None else (call, work.calls)
    value, (_, slope) = jax.block_until_ready(call(work.first, work.k))
    report = {
        "engine": rx.__file__,
        "bytes": cost.working_bytes,
        "compile": seconds,
        "value": float(value),
        "slope": float(slope.sum()),
        "evaluations": evaluations(name, work),
        "label": label(name),
        "n": work.n,
        "state": work.first.nbytes,
    }
    print(json.dumps(report), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        for _ in range(calls):
            jax.block_until_ready(call(work.first, work.k))
        print((time.perf_counter() - begin) / calls, flush=True)


class Contender:
    """A process that compiles a contender and times it on demand."""

    def __init__(self, name, workload, against=None):
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        if name.startswith(OLD):
            environment["PYTHONPATH"] = str(against / "src")
        contend = ["--contend", name.removeprefix(OLD), workload]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.bench_scan", *contend],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.report = json.loads(self.process.stdout.readline())
        if name.startswith(OLD) and against not in Path(self.report["engine"]).parents:
            raise AssertionError(f"{name} took its engine from {self.report['engine']}.")
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


def take_turns(names, workload, rounds, against=None):
    """Start the contenders, let them take turns, and give their reports and times."""
    if against is not None:
        ours = [name for name in names if name.split()[0] == "rx.scan"]
        names = [each for name in names for each in (name, OLD + name)[: 1 + (name in ours)]]
    contenders = {}
    try:
        for name in names:
            contenders[name] = Contender(name, workload, against)
            _say(f"{workload}: compiled {name} in {contenders[name].report['compile']:.2f} s")
        for turn in range(rounds + 1):
            begin = time.perf_counter()
            # Back and forth, so that none always comes after the same.
            for contender in list(contenders.values())[:: -1 if turn % 2 else 1]:
                contender.time()
            _say(f"{workload}: round {turn} of {rounds}: {time.perf_counter() - begin:.1f} s")
            if turn == 0:  # warm caches
                for contender in contenders.values():
                    contender.times.clear()
    finally:
        for contender in contenders.values():
            contender.close()
    return {name: (c.report, c.times) for name, c in contenders.items()}


def _say(line):
    print(line, file=sys.stderr, flush=True)


def ratios(times, reference):
    """Give the median, the 10th and the 90th percentile of the ratios round by round."""
    all_ratios = [a / b for a, b in zip(times, reference, strict=True)]
    deciles = statistics.quantiles(all_ratios, n=10, method="inclusive")
    return [statistics.median(all_ratios), deciles[0], deciles[-1]]


def work_bounds(found):
    """Give the times, round by round, that the runs and pullbacks of each contender take alone."""
    if "turns" not in found:
        return {}
    (report, forward), (_, turns) = found["forward"], found["turns"]
    n = report["n"]
    return {
        name: [(E - n) / n * f + t for f, t in zip(forward, turns, strict=True)]
        for name, (other, _) in found.items()
        if (E := other["evaluations"])
    }


def summarise(workload, found):
    """Turn reports and times into the rows that are printed and stored."""
    base, base_times = found["lax.scan"]
    for name, (report, _) in found.items():
        if name not in PARTS:
            for what in ("value", "slope"):
                if not math.isclose(report[what], base[what], rel_tol=1e-4):
                    raise AssertionError(f"{workload}: {name} has another {what} than lax.scan.")
    found, old = ({name: it for name, it in found.items() if name.startswith(OLD) == is_old}
                  for is_old in (False, True))  # fmt: skip
    bounds = work_bounds(found)
    rows = {}
    for name, (report, times) in found.items():
        rows[name] = {
            "label": report["label"],
            "bytes": report["bytes"],
            "compile": report["compile"],
            "evaluations": report["evaluations"],
            "seconds": statistics.median(times),
            "time": ratios(times, base_times),
            "bound": ratios(times, bounds[name])[0] if name in bounds else None,
        }
    pairs = {}
    for pair in listed(PAIRS[workload]):
        ours, theirs = pair.split(" / ")
        pairs[pair] = {
            "bytes": rows[ours]["bytes"] / rows[theirs]["bytes"],
            "time": ratios(found[ours][1], found[theirs][1]),
        }
    result = {"n": base["n"], "state": base["state"], "rows": rows, "pairs": pairs}
    against = {
        f"{name} / {theirs}": {
            "bytes": found[name][0]["bytes"] / report["bytes"],
            "time": ratios(found[name][1], times),
        }
        for theirs, (report, times) in old.items()
        if (name := theirs.removeprefix(OLD))
    }
    return result, against


def show(workload, result, against):
    """Print a workload's tables."""
    base = result["rows"]["lax.scan"]
    print(f"\n{workload}: n = {result['n']:,}, state {result['state']:,} B")
    print(
        f"{'gradient by':<24}{'MB':>10}{'/ scan':>9}{'ms':>10}"
        f"{'/ scan':>8}  (10 %, 90 %)   compile  / bound"
    )
    for name, row in result["rows"].items():
        middle, low, high = row["time"]
        bound = f"{row['bound']:9.3f}" if row["bound"] else ""
        print(
            f"{name:<24}{row['bytes'] / 1e6:>10.3f}{row['bytes'] / base['bytes']:>9.4f}"
            f"{row['seconds'] * 1e3:>10.3f}"
            f"{middle:>8.3f}  ({low:.3f}, {high:.3f}) {row['compile']:>7.2f} s{bound}"
        )
    for pair, row in (result["pairs"] | against).items():
        middle, low, high = row["time"]
        print(f"{pair}: time {middle:.3f} ({low:.3f}, {high:.3f}), bytes {row['bytes']:.3f}")


def machine():
    """Describe what this ran on; no name of a host."""
    import rematax as rx

    backend = rx.describe_backend()
    return {
        "cpu": backend.cpu,
        "cores": backend.cores,
        "python": backend.python,
        "jax": backend.jax,
        "jaxlib": backend.jaxlib,
        **{name: importlib.metadata.version(name) for name in PEERS},
    }


def main():
    """Read the arguments, run the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=CONTENDERS, nargs="+", help="workloads")
    parser.add_argument("--against", type=Path, help="worktree of the commit to compare with")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--contend", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        contend(*options.contend)
        return
    results = {}
    against = options.against and options.against.resolve()
    for workload in options.only or CONTENDERS:
        rounds = max(2, round(options.rounds * ROUNDS.get(workload, 1)))
        found = take_turns(listed(CONTENDERS[workload]), workload, rounds, against)
        results[workload], new_to_old = summarise(workload, found)
        show(workload, results[workload], new_to_old)
    if options.json:
        run = {
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "rounds": options.rounds,
            "workloads": results,
        }
        options.json.write_text(json.dumps(run, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
