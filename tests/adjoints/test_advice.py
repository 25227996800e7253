"""The advice is held to what diffrax's own gradients need, cost and return."""

import dataclasses
import math
import types

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rematax as rx
from rematax import adjoints
from rematax.adjoints import _advice, _arguments, _options

RATE = 0.7
NIGHTLY = pytest.mark.nightly


@pytest.fixture(autouse=True)
def only_the_advice(monkeypatch):
    """Leave BacksolveAdjoint to its own tests; `few` is made before."""
    monkeypatch.setattr(_advice, "judge", lambda *args: _advice.Verdict(None, "not tried"))


def decay(t, y, k):
    return -k * y + 0.1 * jnp.sin(y)


def oscillate(t, y, k):
    return jnp.stack([y[1], -k * y[0]])


@dataclasses.dataclass(frozen=True)
class Problem:
    """Arguments of diffeqsolve, and what a person does with the advice."""

    field: object = decay
    solver: object = dataclasses.field(default_factory=diffrax.Euler)
    t1: float = 5.0
    dt0: object = 0.05
    y0: object = dataclasses.field(default_factory=lambda: jnp.linspace(0.5, 1.5, 1000))
    rate: float = RATE
    tolerance: object = None  # relative; the absolute one is a hundredth of it
    saveat: object = None

    @property
    def options(self):
        options = {}
        if self.tolerance:
            controller = diffrax.PIDController(rtol=self.tolerance, atol=self.tolerance / 100)
            options["stepsize_controller"] = controller
        if self.saveat:
            options["saveat"] = self.saveat
        return options

    @property
    def args(self):
        return jnp.asarray(self.rate)

    def advise(self, memory, **more):
        problem = diffrax.ODETerm(self.field), self.solver, 0.0, self.t1, self.dt0, self.y0
        return adjoints.advise(*problem, self.args, memory=memory, **self.options, **more)

    def solve(self, y0, k, **more):
        terms = diffrax.ODETerm(self.field)
        solution = diffrax.diffeqsolve(
            terms, self.solver, 0.0, self.t1, self.dt0, y0, k, **self.options, **more
        )
        return jax.tree.leaves((solution.ys, solution.interpolation))

    def gradient(self, **more):
        def pulled_back(y0, k, cotangents):
            def run(y0, k):
                return [a for a in self.solve(y0, k, **more) if jnp.issubdtype(a, jnp.inexact)]

            out, pullback = jax.vjp(run, y0, k)
            return out, pullback(cotangents)

        return pulled_back

    def needs(self, **more):
        """Compile the gradient independently, with cotangents for arguments."""
        like = jax.eval_shape(lambda y0, k: self.solve(y0, k, **more), self.y0, self.args)
        like = [a for a in like if jnp.issubdtype(a.dtype, jnp.inexact)]
        program = jax.jit(self.gradient(**more)).lower(self.y0, self.args, like)
        return program.compile().memory_analysis().temp_size_in_bytes


def given(advice):
    return {"adjoint": advice.adjoint, "max_steps": advice.max_steps}


def check(problem, memory, **more):
    """Hold one advice to the memory, and to the candidates that it measured."""
    advice = problem.advise(memory, **more)
    limit = advice.memory_bytes
    assert advice.chosen.measured_bytes <= limit
    assert problem.needs(**given(advice)) <= 1.02 * limit
    for each in advice.candidates:
        if each.measured_bytes is not None and each.measured_bytes <= limit:
            assert advice.chosen.evaluations <= each.evaluations
    return advice


def least_for(problem):
    """Read from the refusal how many bytes the smallest adjoint needs."""
    with pytest.raises(ValueError, match="no adjoint fits") as refusal:
        problem.advise(1)
    return int(str(refusal.value).rpartition("memory=")[2].split(",")[0])


def test_with_plenty_of_memory_each_state_is_kept():
    advice = check(Problem(), "1 GB")
    assert advice.adjoint == diffrax.RecursiveCheckpointAdjoint(checkpoints=101)
    assert (advice.steps, advice.accepted, advice.rejected, advice.max_steps) == (100, 100, 0, 101)
    assert advice.chosen.evaluations == 200
    assert advice.state_bytes == Problem().y0.nbytes
    assert eval(f"dict({advice.line})") == given(advice)


@pytest.fixture(scope="module")
def few():
    return check(Problem(), 20 * Problem().y0.nbytes)


def test_with_little_memory_few_states_are_kept(few):
    advice = few
    assert advice.chosen.checkpoints < 20
    assert 2 < advice.chosen.evaluations / advice.steps < 10


@pytest.mark.nightly
@pytest.mark.parametrize("solver", [diffrax.Heun(), diffrax.Tsit5(), diffrax.Kvaerno3()])
def test_it_fits_at_every_budget(solver, monkeypatch):
    programs = []
    monkeypatch.setattr(_advice, "measure", lambda *a: programs.append(a) or rx.measure(*a))
    problem = Problem(solver=solver, dt0=None, tolerance=1e-4, t1=20.0)
    smallest = least_for(problem)
    chosen = []
    for factor in (1, 1.5, 3, 1000):
        programs.clear()
        advice = check(problem, int(factor * smallest))
        assert len(programs) <= 5  # and the solve
        chosen.append(advice.chosen)
    work = [c.evaluations for c in chosen]
    assert work == sorted(work, reverse=True)
    assert chosen[0].measured_bytes <= smallest
    if not isinstance(solver, diffrax.AbstractImplicitSolver):
        # An implicit solver's matrix outweighs all checkpoints, so more of them may fit as well.
        assert chosen[0].checkpoints == 1


@pytest.mark.nightly
@pytest.mark.parametrize(
    "saveat",
    [
        diffrax.SaveAt(ts=[1.0, 2.0, 5.0]),
        diffrax.SaveAt(steps=True),
        diffrax.SaveAt(dense=True),
        diffrax.SaveAt(t1=True, fn=lambda t, y, args: y.mean()),
    ],
    ids=["ts", "steps", "dense", "fn"],
)
def test_it_fits_whatever_is_saved(saveat):
    problem = Problem(solver=diffrax.Heun(), dt0=None, tolerance=1e-3, saveat=saveat)
    smallest = least_for(problem)
    for factor in (1.3, 100):
        check(problem, int(factor * smallest))


@pytest.mark.nightly
def test_a_state_of_several_arrays():
    def field(t, y, k):
        return {"a": -k * y["a"], "b": (y["a"][:10] - y["b"][0], y["b"][1] * k)}

    start = {"a": jnp.ones(2000), "b": (jnp.zeros(10), jnp.ones((30, 40)))}
    problem = Problem(field, diffrax.Tsit5(), dt0=None, y0=start, tolerance=1e-4)
    for factor in (40, 80, 1000):
        check(problem, factor * sum(a.nbytes for a in jax.tree.leaves(start)))


@NIGHTLY
@pytest.mark.usefixtures("x64")
def test_the_gradient_is_that_of_the_default():
    problem = Problem(y0=jnp.linspace(0.5, 1.5, 1000))
    cotangents = [jnp.ones((1, 1000))]
    expected = jax.jit(problem.gradient())(problem.y0, problem.args, cotangents)
    advice = problem.advise(20 * problem.y0.nbytes)
    found = jax.jit(problem.gradient(**given(advice)))(problem.y0, problem.args, cotangents)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)


@pytest.mark.parametrize(  # recursive, direct, recursive
    "states",
    [pytest.param(20, marks=NIGHTLY), 60, pytest.param(1000, marks=NIGHTLY)],
)
def test_the_steps_run_as_often_as_it_says(states):
    field = rx.counted(decay)
    problem = Problem(field)
    advice = problem.advise(states * problem.y0.nbytes)
    gradient = jax.jit(problem.gradient(**given(advice)))
    field.reset()
    jax.block_until_ready(gradient(problem.y0, problem.args, [jnp.ones((1, 1000))]))
    assert field.calls == advice.chosen.evaluations
    if states == 60:
        assert advice.adjoint == diffrax.DirectAdjoint()


@NIGHTLY
@pytest.mark.parametrize("states", [1000, 60, 20])
def test_the_steps_run_as_often_for_a_product(states):
    field = rx.counted(decay)
    problem = Problem(field)
    advice = problem.advise(states * problem.y0.nbytes, mode="hvp")

    def loss(k):
        return (problem.solve(problem.y0, k, **given(advice))[0] ** 2).sum()

    product = jax.jit(lambda k: jax.jvp(jax.grad(loss), (k,), (k,)))
    field.reset()
    jax.block_until_ready(product(problem.args))
    assert field.calls == advice.chosen.evaluations


def test_rejected_steps_are_counted():
    problem = Problem(oscillate, diffrax.Tsit5(), 30.0, 1.0, jnp.array([1.0, 0.0]), 4.0, 1e-4)
    advice = problem.advise("1 MB", mode="forward")
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(oscillate), diffrax.Tsit5(), 0.0, 30.0, 1.0, problem.y0, problem.args,
        **problem.options,
    )  # fmt: skip
    assert advice.rejected == solution.stats["num_rejected_steps"] > 0
    assert advice.accepted == solution.stats["num_accepted_steps"]
    assert advice.max_steps == math.ceil(1.5 * advice.steps)


def test_forward_mode():
    problem = Problem()
    advice = problem.advise(10 * problem.y0.nbytes, mode="forward")
    assert advice.adjoint == diffrax.ForwardMode()
    assert advice.chosen.evaluations == advice.steps
    tangents = problem.y0, problem.args
    jax.jvp(lambda *x: problem.solve(*x, **given(advice)), tangents, tangents)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "solver",
    [diffrax.Heun(), *(pytest.param(s, marks=NIGHTLY) for s in (
        diffrax.Euler(), diffrax.Tsit5(), diffrax.Kvaerno3(), diffrax.LeapfrogMidpoint(),
        diffrax.ReversibleHeun(), diffrax.Heun(scan_kind="lax"), diffrax.Dopri8(),
    ))],
    ids=repr,
)  # fmt: skip
def test_hessian_vector_products(solver):
    """What is advised does them in the memory, and they are right."""
    tolerance = 1e-4 if isinstance(solver, diffrax.AbstractImplicitSolver) else None
    problem = Problem(oscillate, solver, 2.0, 0.05, jnp.array([1.0, 0.0]), 2.0, tolerance)
    advice = problem.advise("1 MB", mode="hvp")
    again = dataclasses.replace(problem, solver=advice.solver)

    def loss(k, **more):
        return (again.solve(problem.y0, k, **more)[0] ** 3).sum()

    default = jax.jit(jax.grad(lambda k: loss(k, max_steps=256)))
    step = 1e-5
    expected = float(default(problem.args + step) - default(problem.args - step)) / (2 * step)
    product = jax.jit(lambda k: jax.jvp(jax.grad(lambda k: loss(k, **given(advice))), (k,), (1.0,)))
    assert product(problem.args)[1] == pytest.approx(expected, rel=1e-4)
    needed = product.lower(problem.args).compile().memory_analysis().temp_size_in_bytes
    assert needed <= 1.1 * advice.chosen.measured_bytes
    assert "no second derivatives" in repr(advice)
    if solver == diffrax.Heun():
        bounded = diffrax.Heun(scan_kind="bounded")
        assert advice.solver == bounded
        assert eval(f"dict({advice.line})") == given(advice) | {"solver": bounded}
        kinds = {type(row.adjoint).__name__: row.scan_kind for row in advice.candidates}
        assert kinds == {
            "RecursiveCheckpointAdjoint": "bounded", "DirectAdjoint": "checkpointed",
        }  # fmt: skip
        assert "DirectAdjoint(), scan_kind='checkpointed'" in repr(advice)


@pytest.mark.parametrize(
    "own, mode, recursive, direct, forward",
    [
        (None, "reverse", None, "checkpointed", None),
        ("lax", "reverse", "checkpointed", "checkpointed", None),
        ("bounded", "reverse", None, None, None),
        ("checkpointed", "reverse", None, None, "lax"),
        (None, "hvp", "bounded", "checkpointed", None),
        ("lax", "hvp", "bounded", "checkpointed", None),
        ("bounded", "hvp", None, None, None),
        ("checkpointed", "hvp", "bounded", None, "lax"),
    ],
)
def test_the_kind_of_loop_for_the_stages(own, mode, recursive, direct, forward):
    solve = types.SimpleNamespace(solver=diffrax.Heun(scan_kind=own))
    stages = _options.Options(solve, mode)._stages
    assert stages(diffrax.RecursiveCheckpointAdjoint(3)) == recursive
    assert stages(diffrax.DirectAdjoint()) == direct
    assert stages(diffrax.ForwardMode()) == forward
    solve.solver = diffrax.Euler()
    assert stages(diffrax.RecursiveCheckpointAdjoint(3)) is None


def test_as_many_checkpoints_as_there_may_be_steps_or_fewer_than_there_were():
    solve = types.SimpleNamespace(solver=diffrax.Euler(), steps=10, allowed=15)
    options = _options.Options(solve, "reverse")
    every, family = options.alone[0], options.family
    assert every == _options.Option(diffrax.RecursiveCheckpointAdjoint(15), 15)
    assert (family.most, family.number(every), family.number(options.alone[1])) == (9, 0, 0)
    assert family.number(family.member(7)) == 7
    assert options.work(family.member(9)) == 21 and options.work(every) == 20


def test_a_solver_that_cannot_be_written_is_replaced():
    ours = type("Ours", (diffrax.Heun,), {})(scan_kind="bounded")
    assert _advice._solver_written(ours) == "dataclasses.replace(solver, scan_kind='bounded')"
    newton = diffrax.Kvaerno3(root_find_max_steps=7, scan_kind="bounded")
    assert _advice._solver_written(newton).startswith("dataclasses.replace(solver, ")
    usual = dataclasses.replace(diffrax.Kvaerno3(), scan_kind="bounded")
    assert _advice._solver_written(usual) == "diffrax.Kvaerno3(scan_kind='bounded')"


@NIGHTLY
def test_a_network_where_direct_is_too_much():
    """Case V06: once DirectAdjoint was said to fit, and the product needed twice the memory."""
    network = eqx.nn.MLP(64, 64, 128, 2, activation=jnp.tanh, key=jax.random.key(0))
    y0 = jax.random.normal(jax.random.key(1), (64, 64))
    field = diffrax.ODETerm(lambda t, y, net: jax.vmap(net)(y))
    problem = field, diffrax.Tsit5(), 0.0, 20.0, None, y0, network
    options = {"stepsize_controller": diffrax.PIDController(rtol=1e-6, atol=1e-8), "mode": "hvp"}
    for memory in ("60 MB", "8 MB"):
        advice = adjoints.advise(*problem, memory=memory, **options)
        weights, rest = eqx.partition(network, eqx.is_inexact_array)

        def loss(w, advice=advice, rest=rest):
            options = {"stepsize_controller": diffrax.PIDController(rtol=1e-6, atol=1e-8)}
            problem = field, advice.solver, 0.0, 20.0, None, y0, eqx.combine(w, rest)
            return (diffrax.diffeqsolve(*problem, **options, **given(advice)).ys ** 2).sum()

        cost = rx.measure(lambda w: jax.jvp(jax.grad(loss), (w,), (w,)), weights)
        assert cost.temp_bytes <= 1.05 * advice.memory_bytes


def batch(size):
    """Rates that need more and more steps."""
    return jnp.linspace(1.0, 4.0, size)


BATCHES = {
    "states": (0, None, jnp.tile(jnp.array([1.0, 0.0]), (5, 1)), jnp.array(2.0)),
    "rates": (None, 0, jnp.array([1.0, 0.0]), batch(5)),
    "both": (1, 0, jnp.tile(jnp.array([[1.0], [0.0]]), (1, 5)), batch(5)),
}


@pytest.mark.parametrize(
    "name", ["both", *(pytest.param(name, marks=NIGHTLY) for name in ("states", "rates"))]
)
def test_a_batch(name):
    """What is measured is the gradient of the batch, and the slowest example counts."""
    *axes, y0, rates = BATCHES[name]
    controller = diffrax.PIDController(rtol=1e-4, atol=1e-6)

    def solve(y0, k, **more):
        problem = diffrax.ODETerm(oscillate), diffrax.Heun(), 0.0, 3.0, None, y0, k
        return diffrax.diffeqsolve(*problem, stepsize_controller=controller, **more)

    batched = lambda what: jax.vmap(what, in_axes=tuple(axes))  # noqa: E731
    steps = jax.jit(batched(lambda *x: solve(*x).stats["num_steps"]))(y0, rates)
    advice = adjoints.advise(
        diffrax.ODETerm(oscillate), diffrax.Heun(), 0.0, 3.0, None, y0, rates,
        stepsize_controller=controller, in_axes=tuple(axes), memory="1 MB",
    )  # fmt: skip
    assert advice.steps == steps.max() and (advice.steps > steps.min() or name == "states")
    assert advice.max_steps == math.ceil(1.5 * advice.steps)
    assert advice.state_bytes == 5 * 2 * 4

    def loss(y0, k):
        return (batched(lambda *x: solve(*x, **given(advice)).ys)(y0, k) ** 2).sum()

    gradient = jax.jit(jax.grad(loss, (0, 1))).lower(y0, rates).compile()
    needed = gradient.memory_analysis().temp_size_in_bytes
    assert needed == pytest.approx(advice.chosen.measured_bytes, rel=0.15)


def test_what_of_a_batch_fails_is_named():
    with pytest.raises(ValueError, match=r"the solve of example 2 stopped after max_steps=50"):
        adjoints.advise(
            TERMS, diffrax.Heun(), 0.0, 3.0, None, jnp.ones(3), jnp.array([0.1, 0.2, 300.0]),
            stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
            in_axes=(None, 0), memory="1 MB", max_steps=50,
        )  # fmt: skip


def test_tolerances_for_each_entry():
    """Case V05: `atol` as an array."""
    rough, fine = (
        adjoints.advise(
            TERMS, diffrax.Heun(), 0.0, 2.0, None, jnp.ones(2), jnp.array(1.0), memory="1 MB",
            stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=atol), mode="forward",
        ).steps
        for atol in (jnp.array([1.0, 1.0]), jnp.array([1e-9, 1e-9]))
    )  # fmt: skip
    assert rough < fine


@pytest.mark.parametrize(
    "y0", [(2.0, jnp.zeros((0, 3))), 2, 2.0, np.array([1, 2]), jnp.array([1, 2]), np.float32(1.0)]
)
def test_numbers_are_a_state(y0):
    advice = adjoints.advise(
        diffrax.ODETerm(lambda t, y, k: jax.tree.map(lambda a: -k * a, y)), diffrax.Euler(),
        0.0, 1.0, 0.5, y0, jnp.array(1.0), memory="1 MB", mode="forward",
    )  # fmt: skip
    assert advice.steps == 2
    assert advice.state_bytes == 4 * sum(map(np.size, jax.tree.leaves(y0)))


def test_whole_numbers_are_differentiated_as_the_floats_that_diffrax_makes_of_them():
    times, options = (0.0, 1.0, 0.5), ("forward", None, None, None, 10, {})
    given = _arguments.Arguments.checked(TERMS, diffrax.Euler(), times, (2, 3.0), None, *options)
    assert all(jnp.issubdtype(a.dtype, jnp.floating) for a in given.inputs[1])


def test_models_as_fields_and_as_arguments():
    model = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
    start = jnp.ones(2)
    forms = [
        (diffrax.ODETerm(lambda t, y, args: args["net"](y)), {"net": model, "name": "it"}),
        (diffrax.ODETerm(Wrapped(model)), {"module": math, "f": jnp.sin}),
    ]
    for terms, args in forms:
        problem = terms, diffrax.Euler(), 0.0, 1.0, 0.25, start, args
        advice = adjoints.advise(*problem, memory="1 MB", mode="forward")
        assert advice.steps == 4


class Wrapped(eqx.Module):
    net: eqx.Module

    def __call__(self, t, y, args):
        return self.net(y)


def test_it_says_how_much_the_smallest_needs():
    problem = Problem(dt0=0.5)
    needed = least_for(problem)
    smallest = problem.needs(adjoint=diffrax.RecursiveCheckpointAdjoint(1), max_steps=11)
    assert smallest <= needed < 1.1 * smallest


def test_it_reads_well(few):
    advice = few
    lines = repr(advice).splitlines()
    assert lines[0].startswith(f"diffrax.{advice.adjoint!r} fits the gradient of 100 + 0 steps")
    assert sum(line.startswith("*") for line in lines) == 1
    assert advice.line in lines
    work = [c.evaluations for c in advice.candidates]
    assert work == sorted(work)
    shown = advice._repr_html_()
    assert shown.startswith('<table class="rx-table rx-advice">')
    assert advice.line in shown and advice.backsolve in shown


def test_it_says_why_the_others_were_passed_over(few):
    for each in few.candidates:
        size, work = each.measured_bytes, each.evaluations - few.chosen.evaluations
        if each is few.chosen:
            expected = {""}
        elif each.adjoint == diffrax.RecursiveCheckpointAdjoint():
            expected = {"not compiled: diffrax's default"}
        elif size is None and work < 0:
            expected = {"not compiled: predicted to need too much"}
        elif size is None:
            expected = {"not compiled: more runs" if work else "not compiled: as many runs"}
        else:
            expected = {"too much" if size > few.memory_bytes else "more runs"}
        assert each.passed_over_for in expected
        assert not each.passed_over_for or f"  {each.passed_over_for}\n" in repr(few)


def test_evaluations():
    assert adjoints.evaluations(0, 1) == 0
    assert adjoints.evaluations(100, 1) == 100 + 100 * 101 // 2
    for steps, checkpoints in ((-1, 3), (10, 0)):
        with pytest.raises(ValueError, match=f"not {steps} and {checkpoints}"):
            adjoints.evaluations(steps, checkpoints)
    with pytest.raises(TypeError):
        adjoints.evaluations(10, 2.0)


def white_noise():
    path = diffrax.UnsafeBrownianPath((), jax.random.key(0))
    noise = diffrax.ControlTerm(lambda t, y, args: y, path)
    return diffrax.MultiTerm(diffrax.ODETerm(decay), noise)


TERMS = diffrax.ODETerm(decay)
REFUSED = {
    "term": (TypeError, "made of diffrax.ODETerm, not function; write", {"terms": decay}),
    "terms by name": (ValueError, "diffeqsolve does not take these", {"terms": {"a": TERMS}}),
    "no term": (TypeError, "not NoneType; write diffrax.ODETerm", {"terms": None}),
    "noise": (TypeError, "not ControlTerm; stochastic", {"terms": white_noise()}),
    "solver class": (TypeError, r"diffrax.Tsit5\(\), not", {"solver": diffrax.Tsit5}),
    "solver": (TypeError, "not 'tsit5'", {"solver": "tsit5"}),
    "saveat": (TypeError, "must be a diffrax.SaveAt, such as", {"saveat": [1.0]}),
    "part of a saveat": (
        TypeError,
        "must be a diffrax.SaveAt",
        {"saveat": diffrax.SubSaveAt(t1=True)},
    ),
    "times in two axes": (
        ValueError,
        r"times of shape \(1, 1\)",
        {"saveat": diffrax.SaveAt(ts=[[1.0]])},
    ),
    "late": (
        ValueError,
        "times outside of the solve.*t1=5.0",
        {"saveat": diffrax.SaveAt(ts=[9])},
    ),
    "controller": (
        TypeError,
        "stepsize_controller must be one of diffrax's",
        {"stepsize_controller": diffrax.PIDController},
    ),
    "two ways to step": (
        ValueError,
        "does not take these arguments: `dt0` should be `None`",
        {"stepsize_controller": diffrax.StepTo([0.0, 1.0, 5.0])},
    ),
    "implicit": (ValueError, "does not take.*fixed step size", {"solver": diffrax.Kvaerno3()}),
    "max_steps": (TypeError, "positive whole number, not None", {"max_steps": None}),
    "no steps": (TypeError, "positive whole number, not 0", {"max_steps": 0}),
    "yes": (TypeError, "positive whole number, not True", {"max_steps": True}),
    "too few steps": (ValueError, "the solve stopped after max_steps=10", {"max_steps": 10}),
    "mode": (ValueError, "'forward' or 'hvp' .a Hessian.*not 'jvp'", {"mode": "jvp"}),
    "both": (ValueError, "'hvp' .a Hessian-vector product.*not 'both'", {"mode": "both"}),
    "text": (ValueError, "memory: 'lots' is not a memory size", {"memory": "lots"}),
    "nothing": (ValueError, "at least one byte", {"memory": 0}),
    "shapes": (TypeError, "ShapeDtypeStruct", {"y0": jax.ShapeDtypeStruct((3,), jnp.float32)}),
    "words": (TypeError, r"y0\['a'\] is a str, but", {"y0": {"a": "one"}}),
    "not finite": (ValueError, "not finite", {"y0": jnp.array([1.0, jnp.nan])}),
    "empty": (ValueError, "y0 has no entries", {"y0": jnp.zeros((0, 3))}),
    "no state": (ValueError, "y0 has no entries", {"y0": None}),
    "backwards": (ValueError, "dt0=0.1 does not lead from t0=0.0 to t1=-5", {"t1": -5.0}),
    "wrong sign": (ValueError, "give it the sign of t1 - t0", {"dt0": -0.1}),
    "no step": (ValueError, "dt0=0.0 does not lead", {"dt0": 0.0}),
    "unknown step": (ValueError, "dt0=None lets the controller choose", {"dt0": None}),
    "time": (TypeError, "t1 must be a real finite number, not 'end'", {"t1": "end"}),
    "times": (TypeError, "t0 must be a real finite number", {"t0": jnp.zeros(2)}),
    "no end": (TypeError, "t1 must be a real finite number, not inf", {"t1": math.inf}),
    "adjoint": (
        TypeError,
        "takes no argument adjoint=: the adjoint is what it finds",
        {"adjoint": diffrax.DirectAdjoint()},
    ),
    "event": (TypeError, "no argument event=: solves with an event", {"event": None}),
    "misspelt": (TypeError, "no argument memori=: see", {"memori": 1}),
    "axes": (TypeError, r"in_axes must be.*such as \(0, None\), not 'all'", {"in_axes": "all"}),
    "an axis": (TypeError, "but has 0.5 for an axis", {"in_axes": (0.5, None)}),
    "axis of a number": (ValueError, "names axis 0 of an array of shape", {"in_axes": 0}),
    "axis too far": (
        ValueError,
        r"names axis 1 of an array of shape \(3,\)",
        {"in_axes": (1, None)},
    ),
    "axes of a tree": (ValueError, "or trees of these", {"in_axes": ([0, 0], None)}),
    "lengths": (
        ValueError,
        r"axes of different lengths, \[2, 3\]",
        {"in_axes": (0, 0), "args": jnp.ones(2)},
    ),
}


@pytest.mark.parametrize("error, words, changed", REFUSED.values(), ids=REFUSED)
def test_refusals(error, words, changed):
    good = {
        "terms": TERMS, "solver": diffrax.Euler(), "t0": 0.0, "t1": 5.0, "dt0": 0.1,
        "y0": jnp.ones(3), "args": jnp.array(1.0), "memory": "1 MB",
    }  # fmt: skip
    with pytest.raises(error, match=words) as refusal:
        adjoints.advise(**(good | changed))
    assert str(refusal.value).startswith("adjoints.advise")


def test_it_is_not_for_tracing():
    def loss(y0):
        return adjoints.advise(TERMS, diffrax.Euler(), 0.0, 5.0, 0.1, y0, 1.0, memory="1 MB")

    with pytest.raises(TypeError, match=r"needs values.*outside of jax\.jit.*in_axes=\(0, None\)"):
        jax.grad(loss)(jnp.ones(3))


def test_without_diffrax(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "diffrax", None)
    with pytest.raises(ImportError, match="pip install diffrax"):
        adjoints.advise(None, None, 0.0, 1.0, None, 1.0, memory=1)


def test_errors_of_the_vector_field_are_passed_on():
    def field(t, y, k):
        raise ValueError("no such species")

    with pytest.raises(ValueError, match=r"^no such species"):
        adjoints.advise(
            diffrax.ODETerm(field), diffrax.Euler(), 0.0, 1.0, 0.1, jnp.ones(3), memory="1 MB"
        )


def test_steps_at_given_times():
    steps = diffrax.StepTo([0.0, 1.0, 2.0, 4.0, 5.0])
    advice = adjoints.advise(
        TERMS, diffrax.Heun(), 0.0, 5.0, None, jnp.ones(3), jnp.array(1.0), memory="1 MB",
        stepsize_controller=steps, mode="forward",
    )  # fmt: skip
    assert (advice.steps, advice.max_steps) == (4, 5)
