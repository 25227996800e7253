"""Steppers: their order, their inputs, and that they are bodies of scans."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import rematax as rx
from rematax import reactors

ORDERS = {reactors.euler: 1, reactors.midpoint: 2, reactors.rk4: 4}


@pytest.mark.parametrize(
    ("stepper", "order"), ORDERS.items(), ids=lambda p: getattr(p, "__name__", p)
)
def test_order_of_convergence(stepper, order, x64):
    # y' = u - y², with its solution tanh(x + artanh y0) for u = 1
    def error(n):
        step = stepper(lambda y, u: u - y * y, 1 / n)
        y, _ = jax.lax.scan(step, jnp.array(0.3), jnp.ones(n))
        return abs(float(y) - np.tanh(1 + np.arctanh(0.3)))

    slopes = np.log2([error(n) / error(2 * n) for n in (32, 64)])
    np.testing.assert_allclose(slopes, order, atol=0.1)


def test_rk4_meets_an_adaptive_integrator_on_a_nonlinear_network(x64):
    network = reactors.Network(tuple("ABCD"), [[-1, 0], [-1, 1], [1, -2], [0, 1]])
    c0 = network.feed({"A": 1.0, "B": 0.7})
    k = jnp.array([2.0, 0.8])

    def rhs(c, _):
        return network.production(network.rates(c, k))

    c, _ = jax.lax.scan(reactors.rk4(rhs, 0.01), c0, length=300)

    def by_hand(_, c):
        r1, r2 = 2.0 * c[0] * c[1], 0.8 * c[2] ** 2
        return [-r1, -r1 + r2, r1 - 2 * r2, r2]

    right = solve_ivp(by_hand, (0, 3), np.asarray(c0), "DOP853", rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(c, right.y[:, -1], atol=1e-9)


@pytest.mark.parametrize("stepper", ORDERS)
def test_input_is_held_over_a_step_and_output_is_the_new_state(stepper, x64):
    step = stepper(lambda y, u: u, 0.5, output=lambda y: 2 * y)
    y, path = jax.lax.scan(step, jnp.array(1.0), jnp.array([1.0, 3.0]))
    assert float(y) == 3.0 and path.tolist() == [3.0, 6.0]


def test_states_are_trees_and_rx_scan_takes_the_step(x64):
    def rhs(y, u):
        return {"c": -y["c"] * y["T"], "T": y["c"].sum()}

    step = reactors.rk4(rhs, 0.01)
    y0 = {"c": jnp.array([1.0, 2.0]), "T": jnp.array(0.5)}

    def end(y0, scan):
        return scan(step, y0, length=50)[0]["T"]

    plain, ours = (jax.grad(end)(y0, scan) for scan in (jax.lax.scan, rx.scan))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), plain, ours)
    assert rx.taylor_test(lambda y: end(y, rx.scan), y0).passed


@pytest.mark.parametrize("dx", [0.0, -0.1, float("nan")])
@pytest.mark.parametrize("stepper", ORDERS)
def test_refuses_a_step_that_does_not_go_forward(stepper, dx):
    with pytest.raises(ValueError, match=f"{stepper.__name__}: the step dx must be positive"):
        stepper(lambda y, u: y, dx)


def test_step_size_may_be_traced(x64):
    def end(length):
        step = reactors.rk4(lambda y, u: -y, length / 20)
        return jax.lax.scan(step, jnp.array(1.0), length=20)[0]

    assert np.isclose(jax.grad(end)(2.0), -np.exp(-2.0), rtol=1e-4)
