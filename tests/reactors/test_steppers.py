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


@pytest.mark.parametrize("stepper", ORDERS)
@pytest.mark.parametrize(
    ("slope", "found"),
    [
        (lambda y: y[:1], r"float64\[1\] where the state is float64\[2\]; it is never broadcast"),
        (lambda y: y[0], r"float64\[\] where the state is float64\[2\]"),
        (lambda y: jnp.ones((2, 2)), r"float64\[2,2\] where"),
        (lambda y: (y,), r"\(float64\[2\],\) where the state is float64\[2\]: give both the same"),
        (lambda y: [y[0], y[1]], r"\[float64\[\], float64\[\]\] where"),
        (lambda y: None, "None where"),
        (lambda y: "y", "'y' where"),
        (lambda y: y.astype(complex), r"complex128\[2\] where .*cast it with astype"),
    ],
)
def test_refuses_a_slope_unlike_the_state(stepper, slope, found, x64):
    step = stepper(lambda y, u: slope(y), 0.1)
    name = stepper.__name__
    with pytest.raises(TypeError, match=rf"^reactors\.{name}: rhs must return a slope .*{found}"):
        jax.lax.scan(step, jnp.ones(2), length=3)


def test_names_the_leaf_that_is_unlike(x64):
    step = reactors.rk4(lambda y, u: {"c": y["c"], "T": y["c"]}, 0.1)
    with pytest.raises(TypeError, match=r"where the state\['T'\] is float64\[\]"):
        step({"c": jnp.ones(2), "T": jnp.array(1.0)}, None)


@pytest.mark.parametrize("state", ["float32", "float64"])
@pytest.mark.parametrize("slope", ["float32", "float64"])
def test_precision_is_that_of_the_state_or_refused_as_by_scan(state, slope, x64):
    y = jnp.ones(2, state)

    def plain(y, _):
        return y + 0.5 * jnp.full(2, 3, slope), None

    step = reactors.euler(lambda y, u: jnp.full(2, 3, slope), 0.5)
    with jax.numpy_dtype_promotion("standard"):
        if (state, slope) == ("float32", "float64"):
            with pytest.raises(TypeError):
                jax.lax.scan(plain, y, length=2)
            with pytest.raises(
                TypeError, match=r"gives float64\[2\] where the state is float32\[2\]"
            ):
                jax.lax.scan(step, y, length=2)
            return
        ours, theirs = (jax.lax.scan(one, y, length=2)[0] for one in (step, plain))
    assert ours.dtype == theirs.dtype == state and ours.tolist() == theirs.tolist() == [4.0, 4.0]


def test_integers_are_no_states_and_numbers_are(x64):
    with pytest.raises(TypeError, match=r"the state is int64\[2\].* start from a state of float64"):
        reactors.euler(lambda y, u: jnp.ones(2), 0.1)(jnp.array([1, 2]), None)
    y, _ = jax.lax.scan(reactors.rk4(lambda y, u: 2.0, 0.5), 1.0, length=2)
    assert float(y) == 3.0


def test_a_step_must_not_change_the_state(x64):
    for dx, found in ((jnp.full((3, 2), 0.1), r"float64\[3,2\]"), (np.float64(0.1), "float64")):
        y = jnp.ones(2, "float32" if found == "float64" else "float64")
        with (
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
            pytest.raises(TypeError, match=rf"euler: the step dx must leave .* gives {found}"),
        ):
            reactors.euler(lambda y, u: -y, dx)(y, None)
    by_cells, _ = reactors.euler(lambda y, u: -y, jnp.array([0.1, 0.2]))(jnp.ones(2), None)
    np.testing.assert_allclose(by_cells, [0.9, 0.8])


@pytest.mark.parametrize("stepper", ORDERS)
def test_refuses_what_is_no_function_and_no_number(stepper):
    def refused(sentence, *arguments):
        with pytest.raises(TypeError, match=rf"^reactors\.{stepper.__name__}: {sentence}"):
            stepper(*arguments)

    refused(r"rhs must be a function of \(y, u\), .* not 0.1; pass the function", 0.1, 0.1)
    refused(r"rhs .* but is not \(too many.*\); write lambda y, u: \.\.\.", lambda y: -y, 0.1)
    refused(r"rhs .* but is not \(missing.*'args'\)", lambda t, y, args: -y, 0.1)
    refused(r"output must be a function of \(y\), the new state, not True", max, 0.1, True)
    refused(r"output .* but is not", lambda y, u: -y, 0.1, lambda y, u: y)
    for dx in (None, "0.1", 1j):
        refused("the step dx must be a real number", lambda y, u: -y, dx)
    with pytest.raises(ValueError, match="the step dx must be finite"):
        stepper(lambda y, u: -y, float("inf"))
