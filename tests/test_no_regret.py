"""No regret: with lax.scan replaced by rx.scan, no program answers differently or needs more.

The rule, for each program of no_regret_programs, in double precision and all of it jitted:

1. The value, the gradient, the Jacobian-vector product, the Hessian-vector product (forward over
   reverse) and the gradient of the gradient's square are those of ``jax.lax.scan``, to rounding.
2. The working bytes of the gradient (temporary buffers and constants) are at most

       1.05 x those of lax.scan + 2 states + the schedule's table,

   where a state is the whole carry, of the whole batch under vmap, and the table has 8 bytes for
   each step and each snapshot, and 1 kB for numbers beside it. This holds for the default schedule,
   and for each that claims fewer bytes than lax.scan. A program with several scans is allowed the
   states and tables of all of them. (CONCEDED are the few programs and schedules given by hand
   where what the schedule says it keeps is more.)
3. One jitted ``value_and_grad`` runs the step ``schedule.evaluations(n)`` times, a
   Jacobian-vector product ``n`` times, and a Hessian-vector product with ``Binomial`` at most
   1.05 x ``schedule.evaluations(n)`` times. Counted for programs that are not batched, and that do
   not run the loop anew for reasons of their own.

On each change, the default schedule runs at 1, 3 and 100 steps: derivatives of second order and of
forward mode at 3, bytes at 100. All else is nightly.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rematax as rx
from no_regret_programs import PROGRAMS
from scan_helpers import assert_trees_close, known_bug, with_schedule

pytestmark = pytest.mark.usefixtures("x64")

SCHEDULES = {
    "default": None,
    "StoreAll": rx.StoreAll(),  # lax.scan itself: checks the test
    "EveryStep": rx.EveryStep(),
    "Nested-2": rx.Nested(2),
    "Nested-3": rx.Nested(3),
    "Binomial": rx.Binomial(),
    "Binomial-3": rx.Binomial(3),
    "Binomial-7": rx.Binomial(7),
}
BINOMIAL = ["Binomial", "Binomial-3", "Binomial-7"]
CHEAPER = ["EveryStep", "Nested-2", "Nested-3", *BINOMIAL]


def direction(x):
    """Make a tangent for x that is not x."""
    return jax.tree.map(lambda a: jnp.cos(7.0 * jnp.asarray(a)), x)


def square(tree):
    """Add up the squares of all numbers in a tree."""
    return sum((jnp.asarray(leaf) ** 2).sum() for leaf in jax.tree.leaves(tree))


MODES = {
    "grad": jax.grad,
    "value_and_grad": jax.value_and_grad,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (direction(x),)),
    "hvp": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (direction(x),)),
    "grad_of_grad": lambda f: jax.grad(lambda x: square(jax.grad(f)(x))),
}
SECOND = ["hvp", "grad_of_grad"]


def matrix(nightly, each_change=()):
    """Run a test for all programs, and some lengths, schedules and modes of each.

    Both arguments are tuples of such ``(lengths, schedules, modes)``.
    """
    always, all_of_them = (
        {case: None for group in groups for case in itertools.product(*group)}
        for groups in (each_change, (*each_change, *nightly))
    )
    params = [
        pytest.param(
            name,
            *case,
            id="-".join((name, *map(str, case))),
            marks=[] if case in always else pytest.mark.nightly,
        )
        for name in PROGRAMS
        for case in all_of_them
    ]
    return pytest.mark.parametrize(("name", "n", "schedule", "mode"), params)


# -- Answers --------------------------------------------------------------------------------------
@functools.cache
def quick():
    """Give options with which XLA makes slower code, some times sooner; the buffers are the same.

    One of them is not in JAX 0.12.
    """
    options = {"xla_backend_optimization_level": 0}
    more = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda: 0, compiler_options=more).lower().compile()
    except jax.errors.JaxRuntimeError:
        return options
    return options | more


def jitted(name, n, scan, mode):
    """Give a program's derivative as it is compiled, and its argument."""
    program = PROGRAMS[name]
    derivative = MODES[mode](program.with_scan(scan, n))
    return jax.jit(derivative, compiler_options=quick()), program.given(n)


@functools.cache
def expected(name, n, mode):
    """Give what lax.scan answers."""
    fun, x = jitted(name, n, lax.scan, mode)
    return fun(x)


@matrix(
    each_change=(
        ([1, 3, 100], ["default"], ["value_and_grad"]),
        ([3], ["default"], ["jvp", *SECOND]),
    ),
    nightly=(
        ([2, 7, 1000], ["default"], ["value_and_grad"]),
        ([1, 2, 7], ["default"], ["jvp", *SECOND]),
        ([100], ["default", "Binomial-3"], ["hvp"]),
        ([1, 2, 7, 100], CHEAPER, ["value_and_grad"]),
        ([1000], ["Nested-2", "Binomial-7"], ["value_and_grad"]),
        ([3], CHEAPER, ["jvp", *SECOND]),
    ),
)
def test_answers(name, n, schedule, mode):
    fun, x = jitted(name, n, with_schedule(SCHEDULES[schedule]), mode)
    with known_bug(SCHEDULES[schedule]):
        actual = fun(x)
    theirs = expected(name, n, mode)
    assert jax.tree.structure(actual) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(theirs), strict=True):
        assert np.isfinite(b).all()
        assert_trees_close(a, b, rtol=1e-9, atol=1e-14 + 1e-12 * float(jnp.abs(b).max()))


# -- Bytes ----------------------------------------------------------------------------------------
def barriers_in(jaxpr):
    """Find the optimization barriers in a program, inside loops and calls too."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "optimization_barrier":
            yield eqn
        for value in jax.tree.leaves(list(eqn.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from barriers_in(inner)


@functools.cache
def state_bytes(name, n):
    """Give the bytes of the carries of a program, of the whole batch, and its number of scans."""
    scans = []

    def scan(f, *args, **kwargs):
        # A mark around the carry, which shows how large it is under vmap. It also keeps lax.scan
        # from finding that a leaf does not change.
        scans.append(f)
        return lax.scan(lambda c, x: f(lax.optimization_barrier(c), x), *args, **kwargs)

    program = PROGRAMS[name]
    traced = jax.make_jaxpr(program.with_scan(scan, n))(program.given(n))
    leaves = [var.aval for eqn in barriers_in(traced.jaxpr) for var in eqn.outvars]
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves), len(scans)


@functools.cache
def working_bytes(name, n, schedule):
    """Give the bytes of a gradient, with lax.scan where no schedule is named."""
    scan = with_schedule(SCHEDULES[schedule]) if schedule else lax.scan
    return rx.measure(*jitted(name, n, scan, "grad")).working_bytes


@matrix(
    each_change=(([100], ["default"], ["bytes"]),),
    nightly=(([100, 1000], CHEAPER, ["bytes"]), ([3, 1000], ["default"], ["bytes"])),
)
def test_bytes(name, n, schedule, mode):
    states, scans = state_bytes(name, n)
    snapshots = (SCHEDULES[schedule] or rx.Binomial()).stored(n)[0]
    table = 8 * n + 8 * snapshots + 1024
    allowed = 1.05 * working_bytes(name, n, None) + 2 * states + scans * table
    with known_bug(SCHEDULES[schedule]):
        needed = working_bytes(name, n, schedule)
    if (name, schedule) in CONCEDED:
        held = SCHEDULES[schedule].stored(n)[0] + 8
        allowed = max(allowed, 3 * working_bytes(name, n, None), held * states + table)
    assert needed <= allowed


# What these schedules say they keep is more than lax.scan does; the default knows.
CONCEDED = {
    # A leaf of the carry that is read in pieces: lax.scan keeps the pieces, a snapshot the leaf.
    *itertools.product(["history"], CHEAPER),
    ("ring_buffer", "EveryStep"),
    # A block holds its part of xs, and of their gradient; here an x is as large as 16 states.
    *itertools.product(["weights_as_xs", "tree_as_xs"], ["Nested-2", "Nested-3"]),
}


# -- Work -----------------------------------------------------------------------------------------
class Counting:
    """A scan that counts the runs of the steps it is given; steps of scans inside do not count."""

    def __init__(self, scan):
        self.scan, self.steps, self.inside = scan, [], False

    def __call__(self, f, *args, **kwargs):
        if self.inside:
            return self.scan(f, *args, **kwargs)
        self.steps.append(rx.counted(f))
        self.inside = True
        try:
            return self.scan(self.steps[-1], *args, **kwargs)
        finally:
            self.inside = False

    def runs(self):
        """Give the runs of each step that was counted."""
        return [step.calls for step in self.steps]


@matrix(
    nightly=(
        ([1, 3, 100], ["StoreAll", *CHEAPER], ["value_and_grad"]),
        ([1000], ["Nested-2", "Binomial-7"], ["value_and_grad"]),
        ([1, 100], ["default", *CHEAPER], ["jvp"]),
        ([1, 100], BINOMIAL, ["hvp"]),
    )
)
def test_runs_of_the_step(name, n, schedule, mode):
    if not PROGRAMS[name].countable:
        pytest.skip("batched, or run anew as a whole")
    counting = Counting(with_schedule(SCHEDULES[schedule]))
    fun, x = jitted(name, n, counting, mode)
    jax.block_until_ready(fun(x))
    assert counting.steps
    if mode == "jvp":
        allowed = [n]
    elif mode == "value_and_grad":
        allowed = [SCHEDULES[schedule].evaluations(n)]
    else:
        allowed = range(n, int(1.05 * SCHEDULES[schedule].evaluations(n)) + 1)
    assert all(runs in allowed for runs in counting.runs()), (counting.runs(), allowed)
