"""The plan is held to what an independent program needs, and its line is pasted and run."""

import dataclasses
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rematax as rx
from scan_helpers import on_four_devices


@dataclasses.dataclass(frozen=True)
class Case:
    """A step of ``(weights, carry, x)``, so that tests need no closure where the plan has one."""

    step: object
    weights: object
    init: object
    x: object = None  # one slice of xs

    def xs(self, n):
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((n, *a.shape), a.dtype), self.x)

    def closed(self):
        def step(carry, x):
            return self.step(self.weights, carry, x)

        return step

    def plan(self, n, memory):
        return rx.plan(self.closed(), self.init, self.xs(n), n, memory=memory)

    def needs(self, n, schedule):
        """Measure the gradient independently: plain vjp, everything an argument."""

        def outputs(weights, init, xs):
            def step(carry, x):
                return self.step(weights, carry, x)

            return rx.scan(step, init, xs, n, schedule=schedule)

        def gradient(weights, init, xs, cotangents):
            (_, ys), pullback = jax.vjp(outputs, weights, init, xs)
            return ys, pullback(cotangents)

        inputs = self.weights, self.init, self.xs(n)
        cotangents = jax.eval_shape(outputs, *inputs)
        cost = rx.measure(gradient, *inputs, cotangents)
        return cost.temp_bytes + cost.constant_bytes


def real(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.result_type(float))


def element_wise(size=4000):
    return Case(lambda w, c, x: (jnp.sin(c) + w * c, None), real(), real(size))


def narrow_tape(size=4000):
    return Case(lambda w, c, x: (c + w * jnp.roll(c, 1), None), real(), real(size))


def wide_tape(size=1000):
    def rate(w, c):
        return w * jnp.tanh(c) * jnp.exp(-c * c) + jnp.roll(c, 1)

    def step(w, c, x):
        h = 0.01
        k1 = rate(w, c)
        k2 = rate(w, c + h / 2 * k1)
        k3 = rate(w, c + h / 2 * k2)
        k4 = rate(w, c + h * k3)
        return c + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return Case(step, real(size), real(size))


def recurrent(size=96, batch=8):
    def step(w, c, x):
        c = jnp.tanh(c @ w["h"] + x @ w["x"] + w["b"][None])
        return c, c[:, :4]

    weights = {"h": real(size, size) / 10, "x": real(16, size) / 4, "b": real(size)}
    return Case(step, weights, real(batch, size), real(batch, 16))


def driven(size=2000):
    def step(w, c, x):
        a = jnp.sin(c["a"]) * x["u"] + w
        return {"a": a, "b": c["b"] + a.sum()}, {"mean": a.mean(), "a": a[:100]}

    init = {"a": real(size), "b": jnp.zeros(3, real().dtype)}
    return Case(step, real(size), init, {"u": real(size)})


CASES = [element_wise, narrow_tape, wide_tape, recurrent, driven]
MODES = ("reverse", "forward", "forward over reverse", "reverse over reverse")
LENGTHS = [2, 37, 100, 1000]
NIGHTLY = pytest.mark.nightly


@pytest.fixture
def compiled(monkeypatch):
    """Count the programs that are compiled."""
    programs = []
    compile_ = jax.stages.Lowered.compile

    def counted(self, *args, **kwargs):
        programs.append(self)
        return compile_(self, *args, **kwargs)

    monkeypatch.setattr(jax.stages.Lowered, "compile", counted)
    return programs


def budgets(case, n):
    """Give budgets from what everything needs down to what hardly anything does."""
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(case.init))
    factors = sorted((40 * n, 1.4 * n + 40, math.sqrt(n) + 60, 30), reverse=True)
    return [int(state * m) for m in factors]


def check(case, n, memory, programs):
    """Plan, and hold the plan against independent measurements."""
    del programs[:]
    try:
        found = case.plan(n, memory)
    except ValueError as refusal:
        assert len(programs) <= 6
        return check_refusal(case, n, memory, refusal)
    assert len(programs) <= 6
    measured = [c for c in found.candidates if c.measured_bytes is not None]
    assert len(measured) == len(programs)
    assert found.chosen.measured_bytes <= memory
    # What was measured is what the gradient needs, closures and all.
    assert case.needs(n, found.schedule) == pytest.approx(found.chosen.measured_bytes, rel=0.02)
    cheaper = [c for c in found.candidates if c.evaluations < found.chosen.evaluations]
    assert all(c.measured_bytes > memory for c in cheaper if c.measured_bytes is not None)
    # Nor does a cheaper one fit that was not compiled.
    assert all(case.needs(n, c.schedule) > memory for c in cheaper if c.measured_bytes is None)
    for candidate in measured:
        assert_predicted(candidate, found)
    return found


def check_refusal(case, n, memory, refusal):
    least = int(re.search(r"\((\d+) bytes\)", str(refusal))[1])
    name = re.search(r"the smallest, (rx\.\w+\([^)]*\)),", str(refusal))[1]
    assert least > memory
    assert case.needs(n, eval(name)) == pytest.approx(least, rel=0.02)
    assert case.plan(n, least).chosen.measured_bytes <= least


def assert_predicted(candidate, found):
    """Hold a prediction to the margin that the docstring of rx.plan states."""
    share = 1 / 3 if isinstance(candidate.schedule, rx.Nested) else 0.1
    margin = share * candidate.measured_bytes + 3 * found.state_bytes + found.tape_bytes / 2 + 1000
    assert abs(candidate.measured_bytes - candidate.predicted_bytes) <= margin, candidate


SOME = [(element_wise, 100), (narrow_tape, 37), (wide_tape, 100), (recurrent, 37), (driven, 37)]


@pytest.mark.parametrize(("make", "n"), SOME, ids=lambda v: getattr(v, "__name__", v))
def test_the_pick_fits_and_nothing_cheaper_does(make, n, compiled):
    case = make()
    check(case, n, budgets(case, n)[2], compiled)


@pytest.mark.nightly
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_the_pick_fits_at_every_budget(make, n, compiled):
    case = make()
    work = [
        found.chosen.evaluations
        for memory in budgets(case, n)
        if (found := check(case, n, memory, compiled))
    ]
    assert work == sorted(work)  # less memory, more work


@pytest.mark.nightly
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_the_pick_fits_in_double_precision(make, compiled):
    case = make()
    for memory in budgets(case, 100):
        check(case, 100, memory, compiled)


@pytest.mark.parametrize("memory", ["40 MB", 40_000_000, "40_000 kB", 4e7])
def test_plenty_of_memory_stores_all_after_one_program(memory, compiled):
    found = rx.plan(lambda c, _: (jnp.sin(c), None), real(1000), length=100, memory=memory)
    assert found.schedule == rx.StoreAll() and len(compiled) == 1
    assert found.memory_bytes == 40_000_000
    assert found.chosen.work_ratio == 1 and found.chosen.evaluations == 100


def test_the_line_runs_as_pasted_and_stays_within_the_memory():
    weights = real(64, 64) / 8

    def step(c, x):
        return jnp.tanh(weights @ c) + x, c.sum()

    init, xs = real(64), real(200, 64)
    found = rx.plan(step, init, xs, memory="30 kB")
    assert found.line == f"rx.scan(step, init, xs, schedule=rx.{found.schedule})"
    pasted = eval(found.line, {"rx": rx, "step": step, "init": init, "xs": xs})
    for ours, theirs in zip(pasted, jax.lax.scan(step, init, xs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_names_that_cannot_be_pasted_become_f():
    found = rx.plan(lambda c, _: (c * 2, None), 1.0, length=3, memory="1 MB")
    assert found.line.startswith("rx.scan(f, init, length=3, schedule=rx.")


@pytest.mark.parametrize("jitted", [False, True])
def test_captured_arrays_are_arguments_with_gradients(jitted):
    table = real(300, 300)

    def step(c, _):
        return jnp.tanh(table @ c), None

    if jitted:
        step = jax.jit(step)
    n, memory = 400, 700_000
    found = rx.plan(step, real(300), length=n, memory=memory)
    case = Case(lambda w, c, x: (jnp.tanh(w @ c), None), table, real(300))
    assert case.needs(n, found.schedule) == pytest.approx(found.chosen.measured_bytes, rel=0.02)


def test_closed_over_arrays_come_on_top_and_a_table_needs_no_gradient():
    table = real(250_000)

    def step(c, _, table=table):
        where = jnp.clip((1000 * c).astype(int), 0, table.size - 1)
        return 0.5 * c + 0.1 * table[where] + jnp.sin(c), None

    def fixed(c, _):
        return step(c, _, jax.lax.stop_gradient(table))

    varied, held = (rx.plan(f, real(1000), length=100, memory="300 kB") for f in (step, fixed))
    assert varied.captured_bytes == held.captured_bytes == table.nbytes
    assert "closes over, 1.00 MB, come on top" in repr(varied)
    assert varied.chosen.evaluations > held.chosen.evaluations
    # As a constant of a program it is what rx.measure counts beside.
    loss = lambda c: (rx.scan(fixed, c, length=100, schedule=held.schedule)[0] ** 2).sum()  # noqa: E731
    cost = rx.measure(jax.grad(loss), real(1000))
    assert cost.constant_bytes >= table.nbytes
    assert cost.temp_bytes == pytest.approx(held.chosen.measured_bytes, rel=0.1)


def test_nothing_is_run_and_nothing_big_is_made(compiled):
    huge = jax.ShapeDtypeStruct((10**9,), jnp.float32)  # 4 GB a state
    driven = jax.ShapeDtypeStruct((10**4, 10**9), jnp.float32)  # 40 TB
    ran = []

    def step(c, x):
        jax.debug.callback(lambda _: ran.append(1), c[0])
        return jnp.sin(c) * x, None

    found = rx.plan(step, huge, driven, memory="1 TB")
    jax.effects_barrier()
    assert not ran and len(compiled) <= 6
    assert found.chosen.measured_bytes <= 10**12 < 10**4 * huge.size * 4


def test_leaves_without_a_derivative_are_carried():
    init = {"i": 0, "key": jax.random.key(0), "c": real(500), "on": jnp.bool_(True)}

    def step(s, x):
        key, _ = jax.random.split(s["key"])
        c = jnp.where(s["on"], jnp.sin(s["c"]) * x, s["c"])
        return {"i": s["i"] + 1, "key": key, "c": c, "on": ~s["on"]}, (s["i"], c[0])

    found = rx.plan(step, init, real(300), memory="80 kB")
    assert found.chosen.measured_bytes <= 80_000 and found.length == 300


def test_python_scalars_take_the_dtype_of_the_step():
    found = rx.plan(lambda c, _: (jnp.sin(c * jnp.float32(2)), None), 1, length=10, memory="1 MB")
    assert found.state_bytes == 4


@pytest.mark.parametrize("n", [0, 1])
def test_very_short_loops(n):
    def step(c, x):
        return jnp.sin(c) * x, c

    for memory in (10**6, 600):
        found = rx.plan(step, real(10), real(n, 10), memory=memory)
        assert found.length == n and found.chosen.measured_bytes <= memory
        assert repr(found) and found._repr_html_()


def test_a_tiny_state_gets_nested_blocks_as_the_table_would_be_larger():
    found = rx.plan(lambda c, _: (jnp.sin(c), None), real(), length=10**5, memory="50 kB")
    assert isinstance(found.schedule, rx.Nested)


def test_a_tiny_state_gets_nested_blocks_as_looking_up_takes_longer_than_the_step():
    def step(c, _):
        return jnp.sin(c) * jnp.cos(c) * jnp.tanh(c), None  # a wide tape

    found = rx.plan(step, real(16), length=1000, memory="20 kB")
    work = {c.schedule: c.evaluations for c in found.candidates}
    assert found.schedule == rx.Nested(levels=2) and work[rx.Binomial(44)] < work[found.schedule]
    assert isinstance(rx.plan(step, real(1000), length=1000, memory="400 kB").schedule, rx.Binomial)


def test_arithmetic_counts_runs_and_pullbacks_of_two_runs_each():
    found = rx.plan(lambda c, _: (jnp.sin(c), None), real(500), length=105, memory="1 MB")
    ratios = {c.schedule: c.work_ratio for c in found.candidates}
    assert ratios[rx.StoreAll()] == 1 and ratios[rx.EveryStep()] == pytest.approx(4 / 3)
    assert ratios[rx.Nested(levels=3)] == pytest.approx(6 / 3)
    # the fewest snapshots that reach 105 steps with two, three and four advances of each
    assert {s.snapshots for s in ratios if isinstance(s, rx.Binomial)} == {13, 7, 5}


def test_it_plans_inside_a_transformation():
    found = []

    @jax.jit
    def run(w, c):
        def step(c, x):
            return jnp.sin(c) * w, None

        found.append(rx.plan(step, c, length=50, memory="30 kB"))
        return rx.scan(step, c, length=50, schedule=found[0].schedule)[0]

    jax.grad(lambda w: run(w, real(300)).sum())(real(300))
    assert found[0].chosen.measured_bytes <= 30_000


def test_less_memory_takes_more_work():
    case = element_wise(500)
    plans = [case.plan(300, memory) for memory in ("2 MB", "150 kB", "60 kB", "15 kB")]
    for more, less in itertools.pairwise(plans):
        assert more.chosen.evaluations < less.chosen.evaluations
        assert more.chosen.work_ratio < less.chosen.work_ratio


def test_effects_in_order_leave_binomial_out():
    def step(c, _):
        jax.debug.print("{}", c[0], ordered=True)
        return jnp.sin(c), None

    found = rx.plan(step, real(500), length=100, memory="70 kB")
    assert isinstance(found.schedule, rx.Nested)
    assert not any(isinstance(c.schedule, rx.Binomial) for c in found.candidates)
    assert "Binomial must not repeat" in repr(found)
    with pytest.raises(ValueError, match=r"the smallest, rx\.Nested\(levels=3"):
        rx.plan(step, real(500), length=100, memory="20 kB")


@pytest.mark.parametrize(
    ("schedule", "growth"),
    [(rx.StoreAll(), 4), (rx.EveryStep(), 4), (rx.Nested(levels=2), 2), (rx.Binomial(3), 1)],
    ids=repr,
)
def test_the_modes_named_keep_to_the_schedule(schedule, growth):
    """Four times the steps: bytes grow as those of the gradient do, in the modes named."""
    c = real(500)

    def bytes_of(mode, n):
        def loss(c):
            c, _ = rx.scan(step, c, length=n, schedule=schedule)
            return (c**2).sum()

        fun = {
            "reverse": jax.grad(loss),
            "forward": jax.grad(lambda c: jax.jvp(loss, (c,), (c,))[1]),
            "forward over reverse": lambda c: jax.jvp(jax.grad(loss), (c,), (c,))[1],
            "reverse over reverse": jax.grad(lambda c: (jax.grad(loss)(c) ** 2).sum()),
        }[mode]
        return rx.measure(fun, c).temp_bytes / c.nbytes

    def step(c, _):
        return jnp.sin(c) * jnp.cos(c), None

    found = rx.plan(step, c, length=64, memory="100 kB")
    modes = {type(each.schedule): each.modes for each in found.candidates}
    for mode in MODES:
        few, many = bytes_of(mode, 64), bytes_of(mode, 256)
        kept = many < 1.05 * growth * few + 1 and many < 4.5 * bytes_of("reverse", 256)
        assert kept == (mode in modes[type(schedule)]), mode


def gives_away_little(case, n, found):
    """Say whether more snapshots than 3 % above those chosen are too many, or cost no run."""
    s = found.schedule.snapshots
    more = rx.Binomial(min(s + max(s * 3 // 100, 1) + 1, n))
    fewer_runs = more.evaluations(n) < found.schedule.evaluations(n)
    return not fewer_runs or case.needs(n, more) > found.memory_bytes


@pytest.mark.parametrize(
    ("make", "states"),
    [(element_wise, 10), (element_wise, 40), (wide_tape, 30), (wide_tape, 120)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_hardly_any_snapshot_that_fits_is_given_away(make, states, compiled):
    case, n = make(), 6000  # which the other schedules do not fit
    found = case.plan(n, states * case.init.nbytes + 8 * n)
    assert isinstance(found.schedule, rx.Binomial) and len(compiled) <= 6
    assert gives_away_little(case, n, found)


def fused(rounds, size):
    """A step whose tape the compiler fuses away: many element-wise operations."""

    def step(w, c, x):
        for _ in range(rounds):
            c = jnp.sin(c) + 0.1 * c
        return c, None

    return Case(step, None, jnp.ones(size, jnp.float32))


def test_a_tape_that_the_compiler_fuses_away_is_no_reason_to_refuse():
    case = fused(40, 25_000)  # a state is 100 kB
    found = case.plan(60, "2 MB")
    assert found.candidates[0].predicted_bytes > 100 * found.memory_bytes
    assert isinstance(found.schedule, rx.Binomial) and found.chosen.evaluations < 3 * 60
    assert gives_away_little(case, 60, found)


@pytest.mark.parametrize("states", [pytest.param(5, marks=NIGHTLY), 12, 30])
def test_fused_tapes_at_every_limit(states):
    case = fused(12, 10_000)
    found = case.plan(1000, states * case.init.nbytes)
    assert found.chosen.measured_bytes <= found.memory_bytes
    assert gives_away_little(case, 1000, found)


@pytest.mark.parametrize("memory", ["20 MB", "4 MB"])
def test_what_is_only_added_to_is_not_kept(memory):
    z = jnp.zeros((500, 500), jnp.float32)

    def step(c, y):
        x, total = c
        return (x, total + jnp.sin(x * (y + z))), None

    found = rx.plan(step, (jnp.float32(1), z), jnp.linspace(0, 1, 300), memory=memory)
    assert found.chosen.evaluations <= 2 * 300
    assert found.chosen.measured_bytes < 4 * z.nbytes


def test_each_device_has_its_part_of_the_limit():
    run = on_four_devices("sharded_plan.py")
    lines = run.stdout.splitlines()
    assert len(lines) == 2, run.stderr
    for line in lines:
        limit, snapshots, needs, of_two_more = map(int, line.split())
        assert needs <= limit < of_two_more and snapshots >= 3


def product(case, n, schedule):
    """Measure a Hessian-vector product independently: the jvp of a vjp."""

    def outputs(weights, init, xs):
        def step(carry, x):
            return case.step(weights, carry, x)

        return rx.scan(step, init, xs, n, schedule=schedule)

    def gradient(inputs, cotangents):
        (_, ys), pullback = jax.vjp(outputs, *inputs)
        return ys, pullback(cotangents)

    inputs = case.weights, case.init, case.xs(n)
    arguments = inputs, jax.eval_shape(outputs, *inputs)
    cost = rx.measure(lambda a, t: jax.jvp(gradient, a, t), arguments, arguments)
    return cost.temp_bytes + cost.constant_bytes


@pytest.mark.parametrize("states", [60, pytest.param(150, marks=NIGHTLY), 2000])
def test_a_hessian_vector_product_is_what_is_measured(states):
    case = wide_tape(500)
    found = rx.plan(case.closed(), case.init, length=200, memory=states * 2000, mode="hvp")
    assert found.mode == "hvp" and "Hessian-vector product" in repr(found)
    assert found.chosen.measured_bytes <= found.memory_bytes
    assert product(case, 200, found.schedule) == pytest.approx(
        found.chosen.measured_bytes, rel=0.02, abs=4000
    )
    assert found.chosen.measured_bytes > 1.5 * case.needs(200, found.schedule)


@pytest.mark.parametrize("axes", [0, (0, None), (1, 2)], ids=repr)
def test_a_batch_is_measured_as_one(axes):
    n, batch, width = 100, 16, 20
    weights = real(width, width) / 10
    init, xs = real(batch, width), real(batch, n, width)
    if axes == (0, None):
        xs = xs[0]
    if axes == (1, 2):
        init, xs = init.T, jnp.moveaxis(xs, 0, 2)

    def step(w, c, x):
        c = jnp.tanh(w @ c + x)
        return c, c.sum()

    found = rx.plan(lambda c, x: step(weights, c, x), init, xs, memory="400 kB", in_axes=axes)
    assert found.state_bytes == init.nbytes and found.length == n

    def outputs(weights, init, xs):
        def run(init, xs):
            return rx.scan(lambda c, x: step(weights, c, x), init, xs, schedule=found.schedule)

        return jax.vmap(run, in_axes=axes)(init, xs)

    def gradient(inputs, cotangents):
        (_, ys), pullback = jax.vjp(outputs, *inputs)
        return ys, pullback(cotangents)

    inputs = weights, init, xs
    needs = rx.measure(gradient, inputs, jax.eval_shape(outputs, *inputs)).working_bytes
    assert needs == pytest.approx(found.chosen.measured_bytes, rel=0.02)
    assert needs <= 400_000


def test_a_constant_of_the_loop_may_be_mapped():
    def step(carry, x):
        rate, c = carry
        return (rate, jnp.sin(rate * c) + x), None

    init, xs = (real(8), real(8, 50)), real(30, 50)
    found = rx.plan(step, init, xs, memory="60 kB", in_axes=(0, None))
    assert found.state_bytes >= 8 * 50 * 4 and found.chosen.measured_bytes <= 60_000


def test_times_are_those_of_a_few_that_fit_in_turns(compiled, monkeypatch):
    turns = []

    def timed(programs):
        turns.append(programs)
        costs = enumerate(programs.items())  # the last is the fastest
        return {name: dataclasses.replace(p.cost, seconds=3.0 - i) for i, (name, p) in costs}

    monkeypatch.setattr("rematax._plan.timed", timed)
    case = wide_tape(500)
    found = rx.plan(case.closed(), case.init, length=100, memory="40 MB", time=True)
    (programs,) = turns
    assert len(programs) == 3 and len(compiled) <= 8
    assert all(program.cost.working_bytes <= found.memory_bytes for program in programs.values())
    assert found.chosen.seconds == 1 and repr(found.schedule) == list(programs)[-1]
    timed = [c for c in found.candidates if c.seconds is not None]
    assert len(timed) == 3 and rx.StoreAll() in [c.schedule for c in timed]
    assert "time" in repr(found).splitlines()[2] and "1 s" in repr(found)


def test_what_is_timed_runs():
    case = element_wise(100)
    found = rx.plan(case.closed(), case.init, length=50, memory="1 MB", time=True)
    timed = [c.seconds for c in found.candidates if c.seconds is not None]
    assert found.chosen.seconds == min(timed) > 0


def test_without_time_it_is_counted_and_says_so():
    found = rx.plan(lambda c, _: (jnp.sin(c), None), real(500), length=100, memory="1 MB")
    assert found.chosen.seconds is None
    assert "arithmetic" in repr(found).splitlines()[2]
    assert "Arithmetic is counted" in repr(found) and "time=True" in repr(found)


@pytest.mark.parametrize(("step", "narrow"), [(element_wise, True), (wide_tape, False)])
def test_tapes_of_a_block_are_kept_where_they_are_narrow(step, narrow):
    found = step().plan(100, "1 MB")
    assert narrow == any(getattr(c.schedule, "tapes", False) is True for c in found.candidates)


def test_it_says_what_rx_scan_takes_without_a_schedule():
    def step(carry, _):
        c, total, clock = carry
        return (jnp.sin(c) * jnp.cos(c), total + c, clock + 1), None

    def default_of(width, length, step=step):
        init = real(width), real(width), jax.ShapeDtypeStruct((), jnp.int32)
        return rx.plan(step, init, length=length, memory="1 GB").default

    def printing(carry, x):
        jax.debug.print("", ordered=True)
        return step(carry, x)

    assert default_of(5000, 1000) == rx.Binomial()
    assert default_of(10, 1000) == rx.Nested()
    assert default_of(5000, 1) == default_of(5000, 0) == rx.StoreAll()
    assert default_of(5000, 1000, printing) == rx.StoreAll()  # since it must not be repeated


def test_it_is_shown_as_a_table():
    found = rx.plan(lambda c, _: (jnp.sin(c), None), real(500), length=100, memory="60 kB")
    lines = repr(found).splitlines()
    assert lines[0].startswith(f"rx.{found.schedule} fits the gradient of 100 steps into 60.0 kB")
    assert lines[-1] == found.line and max(map(len, lines)) <= 100
    (starred,) = (line for line in lines if line.startswith("*"))
    assert f" {found.schedule} " in starred and ", fits" in starred
    assert len(lines) == 7 + len(found.candidates)
    assert lines[-2] == f"Without a schedule, rx.scan takes rx.{found.default} here."
    shown = found._repr_html_()
    assert shown.count("<tr>") == 1 + len(found.candidates)
    assert f">* {found.schedule}<" in shown and found.line in shown
    work = [c.evaluations for c in found.candidates]
    assert work == sorted(work)


def test_nothing_fits_says_what_does_and_that_is_true():
    case = element_wise()
    with pytest.raises(
        ValueError, match=r"none of the 6 schedules that were compiled fits 100 steps into 20\.0 kB"
    ) as refusal:
        case.plan(100, "20 kB")
    assert "\n" not in str(refusal.value)
    check_refusal(case, 100, 20_000, refusal.value)


BAD = [
    (dict(memory="much"), ValueError, "rx.plan: memory: 'much' is not a memory size"),
    (dict(memory=0), ValueError, "rx.plan: memory must be at least one byte, not 0"),
    (dict(memory="0 GB"), ValueError, "at least one byte"),
    (dict(memory=-5), ValueError, "cannot be negative"),
    (dict(memory="-5 MB"), ValueError, "cannot be negative"),
    (dict(memory=1.5), TypeError, "whole number of bytes"),
    (dict(memory=None), TypeError, "whole number of bytes"),
    (dict(f=3), TypeError, "rx.plan: f must be a function"),
    (dict(init="text"), TypeError, "rx.plan: init must be an array, not 'text'"),
    (dict(init={"a": jnp.sin}), TypeError, r"rx.plan: init\['a'\] must be an array, not <"),
    (dict(mode="both"), ValueError, "rx.plan: mode must be 'reverse' or 'hvp', not 'both'"),
    (dict(mode="forward"), ValueError, "forward mode keeps no snapshots"),
    (dict(in_axes="0"), TypeError, "rx.plan: in_axes must be an axis"),
    (dict(in_axes=(0, 0, 0)), TypeError, "rx.plan: in_axes must be an axis"),
    (dict(in_axes=True), TypeError, "rx.plan: in_axes must be an axis"),
    (dict(in_axes=3), ValueError, r"rx.plan: in_axes=3 does not fit init and xs: vmap"),
    (
        dict(init=jax.ShapeDtypeStruct((2,), jnp.float32), time=True),
        TypeError,
        "rx.plan: time=True",
    ),
    (dict(length=None), ValueError, "rx.plan: give length"),
    (dict(length=-1), ValueError, "rx.plan: length must not be negative"),
    (dict(length=2.5), TypeError, "rx.plan: length must be an integer"),
    (dict(xs=np.ones(3, np.float32)), ValueError, "rx.plan: length is 10"),
    (dict(f=lambda c: c), TypeError, r"rx.plan: f must be a function of \(carry, x\): too many"),
    (dict(f=lambda c, _: c), TypeError, "rx.plan: f cannot be the step of a scan: .* be a pair"),
    (
        dict(f=lambda c, _: (jnp.append(c, c), None)),
        TypeError,
        r"rx.plan: f cannot be the step of a scan: The input carry c has type float32\[2\] but",
    ),
    (dict(xs=10, length=None), TypeError, "rx.plan: xs must be .* did you mean length=10"),
    (dict(xs=[1.0, 2.0], length=None), TypeError, "rx.plan: xs is a list of numbers"),
    (dict(time="yes"), TypeError, "rx.plan: time must be True or False, not 'yes'"),
    (dict(f=lambda c, _: (c if c[0] > 0 else -c, None)), TypeError, "rx.plan: .*if or while"),
    (
        dict(f=lambda c, _: (jax.lax.while_loop(lambda c: c[0] < 1, lambda c: c + 1, c), None)),
        ValueError,
        "rx.plan: .* cannot be differentiated in reverse mode",
    ),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_refusals(change, error, message):
    arguments = dict(f=lambda c, _: (jnp.sin(c), None), init=np.ones(2, np.float32), length=10)
    arguments |= dict(memory="1 MB") | change
    f, init = arguments.pop("f"), arguments.pop("init")
    with pytest.raises(error, match=message):
        rx.plan(f, init, **arguments)


def test_memory_has_to_be_said():
    with pytest.raises(TypeError, match="memory"):
        rx.plan(lambda c, _: (c, None), 1.0, length=3)


def test_the_step_s_own_errors_show_as_they_are():
    def step(c, _):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        rx.plan(step, 1.0, length=3, memory="1 MB")
