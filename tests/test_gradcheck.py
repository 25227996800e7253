"""The Taylor test tells right gradients from wrong ones."""

import jax
import jax.numpy as jnp
import pytest

import rematax as rx


def off_by(factor):
    """A sine whose gradient a custom rule multiplies by a factor."""

    @jax.custom_vjp
    def sine(x):
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (factor * ct * jnp.cos(x),))
    return sine


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("factor", [0.0, 0.5, 0.99, 1.01, -1.0, 2.0])
def test_catches_a_rule_that_is_off_by_a_factor(factor):
    result = rx.taylor_test(lambda x: off_by(factor)(x).sum(), jnp.arange(4.0))
    assert not result.passed
    assert "FAILED" in repr(result)


@pytest.mark.usefixtures("x64")
def test_passes_a_right_gradient():
    result = rx.taylor_test(lambda x: off_by(1.0)(x).sum(), jnp.arange(4.0))
    assert result.passed and not result.exact
    assert len(result.steps) == 7 and len(result.slopes) == 6
    assert all(abs(slope - 2) < 0.1 for slope in result.slopes[2:])
    assert result.steps[0] == 64 * result.steps[-1]
    assert "passed" in repr(result) and "<table>" in result._repr_html_()


@pytest.mark.usefixtures("x64")
def test_pytrees_with_fixed_leaves_and_complex_ones():
    def fun(tree):
        z = jnp.sin(tree["z"]) * tree["k"].astype(jnp.complex128)
        return jnp.abs(z).sum() + (tree["w"][0] ** 3).sum()

    x = {"z": jnp.array([0.3 + 0.2j, 1.0 - 1j]), "k": jnp.array(3), "w": (jnp.ones(2), None)}
    assert rx.taylor_test(fun, x).passed


@pytest.mark.usefixtures("x64")
def test_a_given_direction_is_used_and_normalised():
    def fun(x):
        return off_by(2.0)(x[0]) + jnp.sin(x[1])

    x = jnp.array([0.4, 0.5])
    assert rx.taylor_test(fun, x, jnp.array([0.0, 7.0])).passed
    assert not rx.taylor_test(fun, x, jnp.array([7.0, 0.0])).passed
    steps = rx.taylor_test(fun, x, jnp.array([0.0, 7.0])).steps
    assert steps == rx.taylor_test(fun, x, jnp.array([0.0, 1.0])).steps


@pytest.mark.usefixtures("x64")
def test_a_linear_function_is_exact_to_rounding():
    result = rx.taylor_test(lambda x: 3.0 * x.sum(), jnp.arange(4.0))
    assert result.exact and result.passed and "exact to rounding" in repr(result)
    wrong = jax.custom_vjp(lambda x: x)
    wrong.defvjp(lambda x: (x, None), lambda _, ct: (1.1 * ct,))
    assert not rx.taylor_test(lambda x: 3.0 * wrong(x).sum(), jnp.arange(4.0)).passed


@pytest.mark.usefixtures("x64")
def test_a_value_that_is_no_number_does_not_pass():
    assert not rx.taylor_test(lambda x: jnp.log(x).sum(), -jnp.ones(2)).passed


def test_single_precision_warns():
    with pytest.warns(UserWarning, match="single precision"):
        rx.taylor_test(lambda x: jnp.sin(x).sum(), jnp.arange(4.0))


@pytest.mark.usefixtures("x64")
def test_refusals():
    with pytest.raises(TypeError, match="real scalar"):
        rx.taylor_test(jnp.sin, jnp.arange(4.0))
    with pytest.raises(TypeError, match="no floating-point array"):
        rx.taylor_test(lambda x: 1.0, jnp.arange(4))
    with pytest.raises(ValueError, match="direction must not be zero"):
        rx.taylor_test(jnp.sum, jnp.arange(4.0), jnp.zeros(4))
    with pytest.raises(TypeError, match="structure of x"):
        rx.taylor_test(jnp.sum, jnp.arange(4.0), (jnp.zeros(4),))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("schedule", [rx.Binomial(3), rx.Nested(2)], ids=repr)
def test_of_a_checkpointed_scan(schedule):
    def loss(tree):
        def step(c, x):
            c = jnp.tanh(tree["w"] @ c) + x
            return c, c.sum()

        c, ys = rx.scan(step, tree["c"], tree["xs"], schedule=schedule)
        return (c**2).sum() + (ys**2).sum()

    x = {
        "w": jax.random.normal(jax.random.key(0), (3, 3)),
        "c": jnp.ones(3),
        "xs": jnp.linspace(0.0, 1.0, 23),
    }
    assert rx.taylor_test(loss, x).passed
