"""The verdict on BacksolveAdjoint is held to the true error of its gradient, on known problems."""

import dataclasses
import types

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rematax import adjoints
from rematax.adjoints import _backsolve, _solve

NIGHTLY = pytest.mark.nightly
pytestmark = pytest.mark.usefixtures("x64")


@dataclasses.dataclass(frozen=True)
class Problem:
    """A solve; `works` is whether its gradient by BacksolveAdjoint is right, found by this test."""

    field: object
    y0: object
    args: object
    t1: float
    works: bool
    rtol: float = 1e-6
    atol: float = 1e-8
    solver: object = dataclasses.field(default_factory=diffrax.Tsit5)

    def solve(self, y0, args, adjoint, solver=None, tighter=1.0, max_steps=4096):
        rtol, atol = self.rtol * tighter, self.atol * tighter
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(self.field), solver or self.solver, 0.0, self.t1, None, y0, args,
            stepsize_controller=diffrax.PIDController(rtol, atol), adjoint=adjoint,
            max_steps=max_steps,
        )  # fmt: skip
        return solution.ys

    def advise(self):
        return adjoints.advise(
            diffrax.ODETerm(self.field), self.solver, 0.0, self.t1, None, self.y0, self.args,
            stepsize_controller=diffrax.PIDController(self.rtol, self.atol), memory="20 MB",
        )  # fmt: skip

    def loss(self, y0, args, **more):
        out = self.solve(y0, args, **more)
        goal = jnp.cos(jnp.arange(1.0, out.size + 1.0, dtype=out.dtype)).reshape(out.shape)
        return 0.5 * jnp.sum((out - goal) ** 2)

    def true_error(self):
        """Compare with the gradient in forward mode of a solve that is a thousand times tighter."""
        tight = diffrax.Kvaerno5() if isinstance(self.solver, IMPLICIT) else diffrax.Dopri8()
        options = dict(adjoint=diffrax.ForwardMode(), solver=tight, tighter=1e-3, max_steps=10**6)
        right = jax.jit(jax.jacfwd(lambda *x: self.loss(*x, **options), (0, 1)))
        back = jax.jit(
            jax.grad(lambda *x: self.loss(*x, adjoint=diffrax.BacksolveAdjoint()), (0, 1))
        )
        point = jnp.asarray(self.y0), jnp.asarray(self.args)
        try:
            found = jax.block_until_ready(back(*point))
        except jax.errors.JaxRuntimeError:  # raised while it runs: it does not come back
            return np.inf
        return float(max(map(relative, found, right(*point), point)))


IMPLICIT = diffrax.AbstractImplicitSolver


def relative(found, right, parameter):
    """Return the error of a gradient, weighted by the sizes of its parameters."""
    size = np.abs(parameter)
    weight = np.where(size > 0, size, size.max() or 1.0)
    return np.linalg.norm(weight * (found - right)) / np.linalg.norm(weight * right)


def decay(t, y, k):
    return -k * y


def dose(t, y, k):
    """A species that decays, and the integral of it: diffrax issue 596."""
    return jnp.stack([-k * y[0], y[0]])


def oscillator(t, y, k):
    return jnp.stack([y[1], -k * y[0]])


def lotka_volterra(t, y, k):
    return jnp.stack([y[0] * (k[0] - k[1] * y[1]), y[1] * (k[2] * y[0] - k[3])])


def logistic(t, y, k):
    return k[0] * y * (1 - y / k[1])


def lorenz(t, y, k):
    return jnp.stack([k[0] * (y[1] - y[0]), y[0] * (k[1] - y[2]) - y[1], y[0] * y[1] - k[2] * y[2]])


def spiral(t, y, k):
    return jnp.stack([-k[0] * y[0] - k[1] * y[1], k[1] * y[0] - k[0] * y[1]])


def heat(t, y, k):
    padded = jnp.pad(y, 1)
    return k * (padded[2:] - 2 * y + padded[:-2]) * (y.size + 1) ** 2


def robertson(t, y, k):
    r1, r2, r3 = k[0] * y[0], k[1] * y[1] ** 2, k[2] * y[1] * y[2]
    return jnp.stack([-r1 + r3, r1 - r2 - r3, r2])


def van_der_pol(t, y, k):
    return jnp.stack([y[1], k * ((1 - y[0] ** 2) * y[1] - y[0])])


def oregonator(t, y, k):
    return jnp.stack([
        k[0] * (y[1] + y[0] * (1 - k[1] * y[0] - y[1])),
        (y[2] - (1 + y[0]) * y[1]) / k[0],
        k[2] * (y[0] - y[2]),
    ])  # fmt: skip


ONE, PLANE = np.array([1.0]), np.array([1.0, 0.0])
HEAT = np.sin(np.pi * np.arange(1, 10) / 10)
ROBERTSON = np.array([1.0, 0.0, 0.0]), np.array([0.04, 3e7, 1e4])
OREGONATOR = np.array([1.0, 2.0, 3.0]), np.array([77.27, 8.375e-6, 0.161])
K3, K5 = diffrax.Kvaerno3(), diffrax.Kvaerno5()
PROBLEMS = {
    "decay, short": Problem(decay, ONE, np.array(1.0), 2.0, True),
    "decay, long": Problem(decay, ONE, np.array(1.0), 40.0, False),
    "decay, implicit": Problem(decay, ONE, np.array(1.0), 40.0, False, solver=K5),
    "dose, short": Problem(dose, PLANE, np.array(1.0), 2.0, True),
    "dose, middling": Problem(dose, PLANE, np.array(1.0), 17.5, False),
    "dose": Problem(dose, PLANE, np.array(1.0), 40.0, False),
    "dose, implicit": Problem(dose, PLANE, np.array(1.0), 40.0, False, solver=K5),
    "oscillator": Problem(oscillator, PLANE, np.array(1.0), 30.0, True),
    "oscillator, implicit": Problem(oscillator, PLANE, np.array(1.0), 10.0, True, solver=K5),
    "Lotka-Volterra": Problem(
        lotka_volterra, np.array([10.0, 5.0]), np.array([1.1, 0.4, 0.1, 0.4]), 20.0, True
    ),
    "logistic": Problem(logistic, np.array([0.1]), np.array([1.0, 2.0]), 40.0, False),
    "logistic, short": Problem(logistic, np.array([0.1]), np.array([1.0, 2.0]), 3.0, True),
    "Lorenz": Problem(
        lorenz, np.array([1.0, 1.0, 20.0]), np.array([10.0, 28.0, 8 / 3]), 2.0, False
    ),
    "spiral": Problem(spiral, PLANE, np.array([2.0, 5.0]), 10.0, False),
    "spiral, slow": Problem(spiral, PLANE, np.array([0.01, 5.0]), 10.0, True),
    "heat": Problem(heat, HEAT, np.array(1.0), 0.5, False),
    "heat, implicit": Problem(heat, HEAT, np.array(1.0), 0.5, False, solver=K3),
    "Robertson, short": Problem(robertson, *ROBERTSON, 1.0, False, atol=1e-9, solver=K5),
    "Robertson": Problem(robertson, *ROBERTSON, 100.0, False, atol=1e-9, solver=K5),
    "van der Pol": Problem(
        van_der_pol, np.array([2.0, 0.0]), np.array(100.0), 1.0, False, solver=K5
    ),
    "Oregonator": Problem(oregonator, *OREGONATOR, 10.0, False, solver=K5),
}


@NIGHTLY
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_verdict_is_the_truth(name):
    problem = PROBLEMS[name]
    advice, true = problem.advise(), problem.true_error()
    assert advice.backsolve_close is problem.works
    assert (true < 0.02) is problem.works  # with room for what the steps themselves are off
    if np.isinf(true) or 1e-3 < true < 10:
        assert advice.backsolve_error == pytest.approx(true, rel=0.5)


def heun(t1, rtol=1e-5, **more):
    """Advise on the dose, by a solver that compiles fast."""
    return adjoints.advise(
        diffrax.ODETerm(dose), diffrax.Heun(), 0.0, t1, None, PLANE, jnp.array(1.0),
        stepsize_controller=diffrax.PIDController(rtol, rtol / 100), **({"memory": "1 MB"} | more),
    )  # fmt: skip


def test_its_error_is_that_of_the_gradient():
    t1 = 11.0
    advice = heun(t1)

    def loss(y0, k):
        out = diffrax.diffeqsolve(
            diffrax.ODETerm(dose), diffrax.Heun(), 0.0, t1, None, y0, k,
            adjoint=diffrax.BacksolveAdjoint(),
            stepsize_controller=diffrax.PIDController(1e-5, 1e-7),
        ).ys[0]  # fmt: skip
        return 0.5 * jnp.sum((out - jnp.cos(jnp.array([1.0, 2.0]))) ** 2)

    def exact(y0, k):
        out = jnp.stack([y0[0] * jnp.exp(-k * t1), y0[1] + y0[0] * (1 - jnp.exp(-k * t1)) / k])
        return 0.5 * jnp.sum((out - jnp.cos(jnp.array([1.0, 2.0]))) ** 2)

    point = jnp.asarray(PLANE), jnp.array(1.0)
    found = jax.jit(jax.grad(loss, (0, 1)))(*point)
    true = max(map(relative, found, jax.grad(exact, (0, 1))(*point), point))
    assert advice.backsolve_error == pytest.approx(true, rel=0.1)
    assert 0.001 < true
    assert advice.backsolve_close is bool(true <= 0.01)


def test_a_gradient_that_fails_is_infinitely_far_off(caplog, capfd):
    advice = heun(300.0, rtol=1e-3, max_steps=600)
    assert advice.backsolve_error == np.inf
    assert advice.backsolve_close is False
    assert advice.backsolve in repr(advice)
    assert "does not come back to t0 within max_steps=600 steps" in advice.backsolve
    assert not caplog.records and "Traceback" not in capfd.readouterr().err


def test_it_is_not_tried_where_it_cannot_be():
    advice = heun(5.0, saveat=diffrax.SaveAt(t1=True, fn=lambda t, y, args: y[0]))
    assert advice.backsolve_error is None and advice.backsolve_close is None
    assert "cannot be used here: Cannot use adjoint=BacksolveAdjoint() with" in advice.backsolve


def test_it_takes_no_more_than_the_memory(monkeypatch):
    much = types.SimpleNamespace(working_bytes=1_000_001)
    monkeypatch.setattr(_backsolve, "measure", lambda *args: much)
    bounds, derivative = [], _solve.Solve.derivative
    monkeypatch.setattr(
        _solve.Solve, "derivative", lambda *args: bounds.append(args[3]) or derivative(*args)
    )
    advice = heun(2.0)
    assert bounds == [advice.max_steps, 4096]
    assert advice.backsolve_error is None
    assert "was not tried: it needs 1.00 MB here, which is more than" in advice.backsolve


def test_errors_are_weighted_by_parameters():
    parameters = [jnp.array([2.0, 0.0]), jnp.array([1e6, 1e-3])]
    right = [jnp.array([1.0, 1.0]), jnp.array([1e-6, 1e3])]
    found = [jnp.array([1.0, 1.5]), jnp.array([1e-6, 1e3])]
    assert _backsolve._difference(found, right, parameters) == pytest.approx(0.5 / 2**0.5)
    # Each of these entries changes the loss by one for a change of its own size.
    found = [right[0], jnp.array([1e-6, 1.3e3])]
    assert _backsolve._difference(found, right, parameters) == pytest.approx(0.3 / 2**0.5)
    found = [right[0], jnp.array([1.3e-6, 1e3])]
    assert _backsolve._difference(found, right, parameters) == pytest.approx(0.3 / 2**0.5)
    found = [jnp.array([1.5, 1.0]), found[1]]  # the worst array counts
    assert _backsolve._difference(found, right, parameters) == pytest.approx(0.5 / 2**0.5)


def test_what_rounding_hides_is_no_error():
    parameters, right = [jnp.array(1.0), jnp.array(1.0)], [jnp.array(1.0), jnp.array(1e-15)]
    found = [jnp.array(1.0), jnp.array(1e-16)]
    assert _backsolve._difference(found, right, parameters) < 1e-6
    assert _backsolve._difference([*right], right, parameters) == 0
    assert _backsolve._difference([jnp.array(jnp.nan), right[1]], right, parameters) == np.inf
    nothing = [jnp.array(0.0), jnp.array(0.0)]
    assert _backsolve._difference(nothing, nothing, parameters) == 0
    assert _backsolve._difference(right, nothing, parameters) == np.inf


@pytest.mark.parametrize(
    "error, words",
    [
        (2e-5, "Tried here, the gradient by BacksolveAdjoint is within 2.0e-05 of this one"),
        (0.01, "is within 1.0e-02"),
        (0.011, "is off by 1.1%"),
        (0.04, "Warning: tried here, the gradient by BacksolveAdjoint is off by 4%, without"),
        (3.0, "is off by 3 times its size"),
        (np.inf, "is not finite"),
    ],
)
def test_the_words_are_those_of_the_number(error, words):
    assert words in _backsolve._sentence(error)
