"""The advice is held to what diffrax's own gradients need, cost and return."""

import dataclasses
import math

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rematax as rx
from rematax import adjoints

RATE = 0.7
NIGHTLY = pytest.mark.nightly


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
    monkeypatch.setattr(adjoints, "measure", lambda *a: programs.append(a) or rx.measure(*a))
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


def linear(t, y, k):
    x, _ = y
    return jnp.stack([-k * x, x])


def dose(t1):
    """A species that decays, and the integral of it: diffrax issue 596."""
    start = jnp.array([1.0, 0.0])
    return Problem(linear, diffrax.Tsit5(), t1, None, start, 1.0, 1e-5)


@pytest.mark.usefixtures("x64")
def test_it_warns_of_backsolve_where_things_decay():
    advice = dose(20.0).advise("1 MB", mode="forward")
    assert not advice.reversible
    assert "Warning: solved backwards" in repr(advice)
    # What is off at the end has grown by exp(20) at the start, in units of 1e-5 * 1 + 1e-7.
    (end,) = dose(20.0).solve(dose(20.0).y0, jnp.array(1.0))
    grown = abs(float(end[0, 0]) - math.exp(-20)) * math.exp(20) / 1.01e-5
    assert 0.1 * grown < advice.reconstruction_error < 10 * grown


@pytest.mark.nightly
@pytest.mark.usefixtures("x64")
def test_the_warning_tells_right_from_wrong_gradients():
    def integral(k, t1):
        more = {"adjoint": diffrax.BacksolveAdjoint()}
        return dataclasses.replace(dose(1.0), t1=t1).solve(dose(1.0).y0, k, **more)[0][0, 1]

    slope = jax.jit(jax.grad(integral))
    exact = jax.grad(lambda k, t1: (1 - jnp.exp(-k * t1)) / k)
    for t1 in (1.0, 5.0, 7.0, 20.0, 40.0):
        advice = dose(t1).advise("1 MB", mode="forward")
        wrong = abs(float(slope(1.0, t1) / exact(1.0, t1)) - 1)
        assert advice.reversible is (t1 < 10)
        assert wrong < 1e-4 if advice.reversible else wrong > 1


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("t1", [2 * np.pi, 100.0])
def test_it_does_not_warn_where_nothing_decays(t1):
    start = jnp.array([1.0, 0.0])
    problem = Problem(oscillate, diffrax.Tsit5(), t1, None, start, 1.0, 1e-5)
    advice = problem.advise("1 MB", mode="forward")
    assert advice.reversible
    assert advice.reconstruction_error < advice.allowed_error / 10


def test_a_solve_that_cannot_go_back_is_infinitely_far_off():
    start = jnp.array([1.0, 0.0])
    problem = Problem(linear, diffrax.Tsit5(), 300.0, None, start, 1.0, 1e-4)
    advice = problem.advise("1 MB", mode="forward")
    assert advice.reconstruction_error == math.inf
    assert not advice.reversible


def test_steps_of_fixed_length_are_held_to_a_thousandth():
    # Euler there and back multiplies a decaying state by (1 - (h k)^2)^n.
    problem = Problem(lambda t, y, k: -k * y, y0=jnp.ones(3))
    advice = problem.advise("1 MB", mode="forward")
    expected = 1000 * (1 - (1 - (0.05 * RATE) ** 2) ** 100)
    assert advice.reconstruction_error == pytest.approx(expected, rel=1e-3)
    assert not advice.reversible
    finer = dataclasses.replace(problem, solver=diffrax.Tsit5())
    assert finer.advise("1 MB", mode="forward").reversible


def test_forward_mode():
    problem = Problem()
    advice = problem.advise(10 * problem.y0.nbytes, mode="forward")
    assert advice.adjoint == diffrax.ForwardMode()
    assert advice.chosen.evaluations == advice.steps
    tangents = problem.y0, problem.args
    jax.jvp(lambda *x: problem.solve(*x, **given(advice)), tangents, tangents)


def test_both_modes():
    problem = Problem()
    advice = problem.advise("1 MB", mode="both")
    assert advice.adjoint == diffrax.DirectAdjoint()

    def loss(k):
        return problem.solve(problem.y0, k, **given(advice))[0].sum()

    for second in (jax.hessian(loss), jax.grad(jax.grad(loss))):
        jax.eval_shape(second, problem.args)


def test_it_says_how_much_the_smallest_needs():
    problem = Problem(dt0=0.5)
    needed = least_for(problem)
    smallest = problem.needs(adjoint=diffrax.RecursiveCheckpointAdjoint(1), max_steps=11)
    assert smallest <= needed < 1.1 * smallest


def test_it_reads_well(few):
    advice = few
    lines = repr(advice).splitlines()
    assert lines[0].startswith(f"diffrax.{advice.adjoint!r} fits 100 + 0 steps")
    assert sum(line.startswith("*") for line in lines) == 1
    assert advice.line in lines
    work = [c.evaluations for c in advice.candidates]
    assert work == sorted(work)
    shown = advice._repr_html_()
    assert shown.startswith('<table class="rx-table rx-advice">')
    assert advice.line in shown and "solved backwards" in shown


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
    "term": (TypeError, "made of diffrax.ODETerm, not function", {"terms": decay}),
    "noise": (TypeError, "not ControlTerm; stochastic", {"terms": white_noise()}),
    "solver class": (TypeError, r"diffrax.Tsit5\(\), not", {"solver": diffrax.Tsit5}),
    "solver": (TypeError, "not 'tsit5'", {"solver": "tsit5"}),
    "saveat": (TypeError, "must be a diffrax.SaveAt", {"saveat": [1.0]}),
    "controller": (
        TypeError,
        "ConstantStepSize or adaptive",
        {"stepsize_controller": diffrax.StepTo([0.0, 1.0, 5.0])},
    ),
    "max_steps": (TypeError, "positive whole number, not None", {"max_steps": None}),
    "no steps": (TypeError, "positive whole number, not 0", {"max_steps": 0}),
    "too few steps": (ValueError, "stopped after max_steps=10 steps", {"max_steps": 10}),
    "mode": (ValueError, "'reverse', 'forward' or 'both', and not 'jvp'", {"mode": "jvp"}),
    "text": (ValueError, "is not a memory size", {"memory": "lots"}),
    "nothing": (ValueError, "at least one byte", {"memory": 0}),
    "shapes": (TypeError, "ShapeDtypeStruct", {"y0": jax.ShapeDtypeStruct((3,), jnp.float32)}),
    "words": (TypeError, "has a str", {"y0": "one"}),
    "not finite": (ValueError, "not finite", {"y0": jnp.array([1.0, jnp.nan])}),
}


@pytest.mark.parametrize("error, words, changed", REFUSED.values(), ids=REFUSED)
def test_refusals(error, words, changed):
    good = {
        "terms": TERMS, "solver": diffrax.Euler(), "t0": 0.0, "t1": 5.0, "dt0": 0.1,
        "y0": jnp.ones(3), "args": jnp.array(1.0), "memory": "1 MB",
    }  # fmt: skip
    with pytest.raises(error, match=words):
        adjoints.advise(**(good | changed))


def test_it_is_not_for_tracing():
    def loss(y0):
        return adjoints.advise(TERMS, diffrax.Euler(), 0.0, 5.0, 0.1, y0, 1.0, memory="1 MB")

    with pytest.raises(TypeError, match=r"needs values.*outside of jax\.jit"):
        jax.grad(loss)(jnp.ones(3))


def test_without_diffrax(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "diffrax", None)
    with pytest.raises(ImportError, match="pip install diffrax"):
        adjoints.advise(None, None, 0.0, 1.0, None, 1.0, memory=1)
