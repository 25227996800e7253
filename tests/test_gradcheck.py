"""The Taylor test tells right gradients from wrong ones, and says when it cannot tell."""

import functools
import itertools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rematax as rx
from rematax import reactors


def off_by(factor, fun):
    """A function whose gradient a custom rule multiplies by a factor."""
    fun_ = jax.custom_vjp(fun)

    def backward(x, ct):
        return (jax.tree.map(lambda g: (factor * ct * g).astype(g.dtype), jax.grad(fun)(x)),)

    fun_.defvjp(lambda x: (fun(x), x), backward)
    return fun_


def sine(x):
    return jnp.sin(x).sum()


def hidden(y, large):
    """Round by a sum that cancels, out of the compiler's sight, which would simplify it."""
    return jax.lax.optimization_barrier(large + y) - large


def lorenz(steps):
    """The first coordinate of Lorenz' system after so many steps of 0.01."""

    def rhs(y, _):
        a, b, c = y
        return jnp.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c])

    return lambda y: jax.lax.scan(reactors.rk4(rhs, 0.01), y, length=steps)[0][0]


def logistic(steps):
    """The logistic map, chaotic: errors double with each step."""

    def step(x, _):
        return 3.99 * x * (1 - x), None

    return lambda x: jax.lax.scan(step, x, length=steps)[0].sum()


def singly(*arguments, **options):
    """Test in single precision, where a warning is due."""
    with pytest.warns(UserWarning, match="single precision"):
        return rx.taylor_test(*arguments, **options)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("factor", [0.0, 0.5, 0.99, 0.999, 1.0001, 1.01, -1.0, 2.0])
def test_catches_a_rule_that_is_off_by_a_factor(factor):
    result = rx.taylor_test(off_by(factor, sine), jnp.arange(4.0))
    assert result.outcome == "wrong" and not result.passed and not result.exact
    right = rx.taylor_test(sine, jnp.arange(4.0))
    assert math.isclose(result.claimed, factor * right.claimed, abs_tol=1e-12)
    assert abs(result.observed - right.claimed) <= result.uncertainty < 1e-8
    assert "FAILED: the gradient is wrong along this direction" in repr(result)
    assert f"claims the slope {result.claimed:.6g}" in result.verdict
    assert f"falls as h^{result.slopes[-1]:.2f}, where h^2 was expected" in result.verdict


@pytest.mark.usefixtures("x64")
def test_passes_a_right_gradient_and_shows_its_slopes():
    result = rx.taylor_test(off_by(1.0, sine), jnp.arange(4.0))
    assert result.outcome == "passed" and result.passed and not result.exact
    assert len(result.steps) == len(result.remainders) == len(result.slopes) + 1 > 6
    assert all(abs(slope - 2) < 0.1 for slope in result.slopes)
    for longer, shorter in itertools.pairwise(result.steps):
        assert longer == 4 * shorter
    by_hand = [math.log(a / b, 4) for a, b in itertools.pairwise(result.remainders)]
    np.testing.assert_allclose(result.slopes, by_hand)
    assert repr(result).startswith("Taylor test passed: the remainder falls as h^2.0")
    assert repr(result).count("\n") == len(result.steps) + 1
    assert '<table class="rx-table rx-taylor"><caption>Taylor test passed' in result._repr_html_()


@pytest.mark.usefixtures("x64")
def test_the_remainders_are_those_of_the_definition():
    x, d = jnp.array([0.3, 0.7]), np.array([0.6, 0.8])
    result = rx.taylor_test(sine, x, d)
    for h, remainder in zip(result.steps[:3], result.remainders, strict=False):
        by_hand = np.sin(x + h * d).sum() - np.sin(x).sum() - h * (np.cos(x) @ d)
        assert math.isclose(remainder, abs(by_hand), rel_tol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("factor", [1.0, 1.01, 0.999])
@pytest.mark.parametrize(
    ("fun", "x"),
    [
        (lorenz(1000), jnp.array([1.0, 1.0, 20.0])),
        (logistic(25), jnp.array(0.3)),
        (lambda x: jnp.sin(1e6 * x), jnp.array(0.3)),
        (lambda x: jnp.exp(1e4 * x).sum(), jnp.zeros(2)),
        (lambda x: x + 1e-9 * jnp.sin(1e9 * x), jnp.array(0.0)),
        (lambda x: jnp.where(x > 1e-5, x, 5 * x).sum(), jnp.zeros(2)),
    ],
    ids=["lorenz", "logistic", "wave", "exponential", "ripple", "kink nearby"],
)
def test_shrinks_the_steps_until_the_function_is_smooth(fun, x, factor):
    result = rx.taylor_test(off_by(factor, fun), jnp.asarray(x, float))
    assert result.passed == (factor == 1), result
    assert result.outcome in ("passed", "exact", "wrong"), result


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("steps", [2500, 3500, 6000])
def test_says_that_it_cannot_tell_where_no_step_is_short_enough(steps):
    for factor in (1.0, 1.01, 0.0):
        result = rx.taylor_test(off_by(factor, lorenz(steps)), jnp.array([1.0, 1.0, 20.0]))
        assert result.outcome in ("not smooth", "rounding"), result
        assert not result.passed and "undecided" in result.verdict and not result.steps
        assert "wrong" not in repr(result)


def test_a_chaotic_function_in_single_precision():
    for factor, steps in itertools.product((1.0, 1.01), (10, 100, 1000, 3000)):
        result = singly(off_by(factor, lorenz(steps)), jnp.array([1.0, 1.0, 20.0]))
        assert result.outcome != ("wrong" if factor == 1 else "passed"), result


@functools.cache
def packed_tube(steps):
    """The catalyst's tube of the chapter on dynamic optimisation (V13)."""

    def change(c, u):
        a, b = c
        mixing = u * (a - 10.0 * b)
        return -mixing, mixing - (1 - u) * b

    def loss(u):
        feed = jnp.array(1.0), jnp.array(0.0)
        (a, b), _ = jax.lax.scan(reactors.rk4(change, 1 / steps), feed, u)
        return a + b - 1

    return loss


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("steps", [400, 3200, 12800])
def test_rounding_that_accumulates_and_hides_behind_a_cancellation(steps):
    half, wave = jnp.full(steps, 0.5), np.cos(np.arange(steps))
    assert rx.taylor_test(packed_tube(steps), half, direction=wave).passed
    wrong = rx.taylor_test(off_by(1.01, packed_tube(steps)), half, direction=wave)
    assert wrong.outcome == "wrong", wrong


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e8])
@pytest.mark.parametrize(
    "shift", [lambda y: y, lambda y: 1e6 + y, lambda y: hidden(y, 1e6)], ids=["0", "1e6", "hidden"]
)
@pytest.mark.parametrize("factor", [1.0, 1.01, 0.99])
def test_scales_and_constants(scale, shift, factor):
    def fun(x):
        return shift(jnp.sin(x / scale).sum())

    result = rx.taylor_test(off_by(factor, fun), scale * jnp.arange(1.0, 5.0))
    assert result.outcome == ("passed" if factor == 1 else "wrong"), result


@pytest.mark.usefixtures("x64")
def test_a_function_that_is_smooth_over_no_step_and_has_no_noise():
    def fun(x):  # |fun| <= |x|, and it turns ever faster towards zero
        return jnp.where(x == 0, 0.0, x * jnp.sin(1 / jnp.where(x == 0, 1.0, x))).sum()

    result = rx.taylor_test(fun, jnp.zeros(2))
    assert result.outcome == "not smooth" and math.isinf(result.uncertainty)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("large", [1e3, 1e8])
@pytest.mark.parametrize("fun", [jnp.sum, sine, lambda x: jnp.exp(x).sum() - 2])
def test_steps_too_short_for_a_hidden_cancellation_to_show_them(fun, large):
    for factor, outcomes in ((1.0, ("passed", "exact")), (1.01, ("wrong",))):
        result = rx.taylor_test(off_by(factor, lambda x: hidden(fun(x), large)), jnp.zeros(2))
        assert result.outcome in (*outcomes, "rounding", "not smooth"), result
        assert large > 1e3 or result.outcome in outcomes, result


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("noise", [1e-10, 1e-3])
@pytest.mark.parametrize("factor", [1.0, 1.01, 3.0])
def test_a_function_with_noise(noise, factor):
    @jax.custom_jvp
    def rough(x):
        return noise * jnp.sin(1e17 * x)

    rough.defjvp(lambda x, t: (rough(x[0]), 0 * t[0]))
    result = rx.taylor_test(off_by(factor, lambda x: sine(x) + rough(x).sum()), jnp.arange(4.0))
    allowed = {(1e-10, 1.0): ("passed", "exact"), (1e-10, 1.01): ("wrong",)}
    allowed |= {(1e-10, 3.0): ("wrong",), (1e-3, 3.0): ("wrong", "rounding", "not smooth")}
    assert result.outcome in allowed.get((noise, factor), ("rounding", "not smooth")), result
    assert result.outcome != "wrong" or factor != 1


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "fun", [lambda x: abs(x).sum(), lambda x: jnp.maximum(x, -x).max()], ids=["abs", "max"]
)
def test_a_kink_at_the_point_is_no_wrong_gradient(fun):
    result = rx.taylor_test(fun, jnp.zeros(3))
    assert result.outcome == "not smooth"
    assert result.verdict.endswith("its slopes on the two sides of x differ, as at a kink")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("fun", "slope"),
    [
        (lambda x: (x**2).sum(), 2),
        (lambda x: (x**3).sum(), 3),
        (lambda x: (x**4).sum() - 5, 4),
        (lambda x: 1 - jnp.cos(x).sum(), 2),
        (lambda x: ((jnp.exp(x) - 1) ** 2).sum(), 2),
    ],
)
def test_a_stationary_point(fun, slope):
    result = rx.taylor_test(fun, jnp.zeros(3))
    assert result.outcome == "passed" and abs(result.slopes[-1] - slope) < 0.1
    tilted = rx.taylor_test(off_by(0.0, lambda x: fun(x) + 1e-3 * x.sum()), jnp.zeros(3))
    assert tilted.outcome == "wrong"


@pytest.mark.usefixtures("x64")
def test_pytrees_with_fixed_leaves_and_complex_ones():
    def fun(tree):
        z = jnp.sin(tree["z"]) * tree["k"].astype(jnp.complex128)
        return jnp.abs(z).sum() + (tree["w"][0] ** 3).sum() + jax.random.uniform(tree["key"])

    x = {
        "z": jnp.array([0.3 + 0.2j, 1.0 - 1j]),
        "k": jnp.array(3),
        "w": (jnp.ones(2), None, jnp.zeros((0, 3))),
        "key": jax.random.key(1),
    }
    assert rx.taylor_test(fun, x).outcome == "passed"
    # conj(g) where JAX's convention is g: wrong
    conjugated = jax.custom_vjp(fun)
    conjugated.defvjp(
        lambda x: (fun(x), x),
        lambda x, ct: (
            jax.tree.map(
                lambda g: g if g.dtype == jax.dtypes.float0 else jnp.conj(g),
                jax.grad(fun, allow_int=True)(x),
            ),
        ),
    )
    assert rx.taylor_test(conjugated, x).outcome == "wrong"


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("x", [0.7, np.float32(0.7), [0.7, 0.2], np.array([0.7, 0.2])], ids=repr)
def test_numbers_and_numpy_arrays_will_do(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # single precision
        assert rx.taylor_test(lambda x: sum(map(sine, jax.tree.leaves(x))), x).passed


@pytest.mark.usefixtures("x64")
def test_a_given_direction_is_used_and_normalised():
    def fun(x):
        return off_by(2.0, sine)(x[:1]) + jnp.sin(x[1])

    x = jnp.array([0.4, 0.5])
    assert rx.taylor_test(fun, x, jnp.array([0.0, 7.0])).passed
    assert not rx.taylor_test(fun, x, jnp.array([7.0, 0.0])).passed
    steps = rx.taylor_test(fun, x, jnp.array([0.0, 7.0])).steps
    assert steps == rx.taylor_test(fun, x, jnp.array([0, 1])).steps
    assert math.isclose(rx.taylor_test(sine, x, jnp.array([0.0, 7.0])).claimed, math.cos(0.5))


@pytest.mark.usefixtures("x64")
def test_the_first_step_may_be_given():
    assert rx.taylor_test(sine, jnp.arange(4.0), h0=0.5).steps[0] == 0.5
    assert rx.taylor_test(lorenz(1000), jnp.array([1.0, 1.0, 20.0]), h0=1e-5).steps[0] == 1e-5
    longest = rx.taylor_test(sine, jnp.arange(4.0)).steps[0]
    assert math.isclose(longest, np.finfo(float).eps ** 0.125 * math.sqrt(14))


@pytest.mark.usefixtures("x64")
def test_a_linear_function_is_exact_to_rounding():
    result = rx.taylor_test(lambda x: 3.0 * x.sum(), jnp.arange(4.0))
    assert result.outcome == "exact" and result.exact and result.passed and result.slopes == ()
    assert repr(result) == "Taylor test passed: exact to rounding"
    for factor in (1.1, 1.001, 0.0):
        wrong = rx.taylor_test(off_by(factor, lambda x: 3.0 * x.sum()), jnp.arange(4.0))
        assert wrong.outcome == "wrong" and "h^1.0" in wrong.verdict


@pytest.mark.usefixtures("x64")
def test_a_constant_function():
    assert rx.taylor_test(lambda x: 3.0 + 0 * x.sum(), jnp.ones(2)).outcome == "exact"
    straight = jax.custom_vjp(lambda x: jnp.round(x).sum())  # straight-through: claims slope 1
    straight.defvjp(lambda x: (jnp.round(x).sum(), x), lambda x, ct: (ct * jnp.ones_like(x),))
    assert rx.taylor_test(straight, 0.2 * jnp.ones(3)).outcome == "wrong"


@pytest.mark.usefixtures("x64")
def test_a_function_drowned_in_a_constant_is_not_passed():
    for factor in (1.0, 1.01, -1.0):
        result = rx.taylor_test(off_by(factor, lambda x: 1e18 + sine(x)), jnp.arange(4.0))
        assert result.outcome == "rounding", result
        assert "use double precision, or a longer first step h0" in result.verdict


@pytest.mark.usefixtures("x64")
def test_a_gradient_right_to_the_tolerance_of_a_solver_passes_and_says_so():
    result = rx.taylor_test(off_by(1 + 3e-6, sine), jnp.arange(4.0))
    assert result.outcome == "passed" and "the slope is right to 3e-06 of itself" in result.verdict


@pytest.mark.usefixtures("x64")
def test_names_what_is_not_finite():
    x = {"w": [jnp.ones(2), jnp.array([[1.0, 4.0], [0.0, 1.0]])]}
    result = rx.taylor_test(lambda x: jnp.sqrt(x["w"][1]).sum() + x["w"][0].sum(), x)
    assert result.outcome == "not finite" and not result.passed
    assert result.verdict == "FAILED: the gradient is not finite in leaf x['w'][1][1][0]"
    result = rx.taylor_test(lambda x: jnp.log(x).sum(), -jnp.ones(2))
    assert result.verdict == "FAILED: the value at x is not finite, but nan"
    assert rx.taylor_test(lambda x: 1e308 * jnp.exp(x), 10.0).outcome == "not finite"
    for edge in (0, 4e-16):  # beyond the second, two steps are finite: too few
        result = rx.taylor_test(lambda x, edge=edge: jnp.where(x > edge, jnp.nan, x), 0.0, 1.0)
        assert result.outcome == "not finite"
        assert "at the edge of where it is defined" in result.verdict
    assert "nan" not in repr(result)
    assert "<caption>" in result._repr_html_()


@pytest.mark.usefixtures("x64")
def test_values_that_are_not_finite_far_away_do_not_matter():
    assert rx.taylor_test(lambda x: jnp.log(x).sum(), 1e-5 * jnp.ones(2)).outcome == "passed"
    wrong = rx.taylor_test(off_by(1.01, lambda x: jnp.log(x).sum()), 1e-5 * jnp.ones(2))
    assert wrong.outcome == "wrong"


def test_single_precision():
    x = jnp.arange(1.0, 5.0)
    for scale in (1e-6, 1.0, 1e8):
        fun = functools.partial(lambda x, scale: sine(x / scale), scale=scale)
        assert singly(fun, scale * x).outcome == "passed"
        assert singly(off_by(1.01, fun), scale * x).outcome == "wrong"
        assert singly(off_by(0.95, fun), scale * x).outcome == "wrong"
    steps = singly(sine, x).steps
    assert steps[0] == 2 * steps[1] and math.isclose(steps[0], 0.136 * 30**0.5, rel_tol=0.01)


# Functions by closed form, so that a wrong verdict is the test's and no one else's.
FUNCTIONS = {
    "polynomial": lambda a, x: x + a * x**2 - x**3 / 3,
    "exponential": lambda a, x: jnp.exp(a * x),
    "wave": lambda a, x: jnp.sin(10**a * x),
    "straight": lambda a, x: a * x,
    "rollout": lambda a, x: jax.lax.scan(
        lambda c, _: (c + 0.1 * jnp.sin(a * c) * (1 - c), None), x, length=40
    )[0],
    "chaos": lambda a, x: jax.lax.scan(
        lambda c, _: (3.9 * c * (1 - c), None), 0.5 + 0.3 * jnp.sin(x), length=int(12 * abs(a))
    )[0],
}


PROGRAMS = given(
    name=st.sampled_from(sorted(FUNCTIONS)),
    a=st.floats(-3, 3).filter(lambda a: abs(a) > 0.1),
    at=st.lists(st.floats(-2, 2), min_size=1, max_size=4),
    scale=st.sampled_from([1e-6, 1.0, 1e8]),
    constant=st.sampled_from([0.0, 1.0, -1e5]),
    factor=st.sampled_from([1.0, 1.01, 0.99, 1.5, 0.0, -1.0]),
    single=st.booleans(),
)


def judge(name, a, at, scale, constant, factor, single):
    fun = functools.partial(FUNCTIONS[name], a)
    with jax.enable_x64(not single), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # single precision
        x = scale * jnp.array(at)
        result = rx.taylor_test(off_by(factor, lambda x: constant + fun(x / scale).sum()), x)
    if factor == 1:
        assert result.outcome in ("passed", "exact", "rounding", "not smooth"), result
        return
    # What is 1 % off can be seen unless the slope itself is not known to 1 %.
    right = result.claimed / factor if factor else result.observed
    if abs(right) > 1000 * result.uncertainty:
        assert result.outcome == "wrong", result
    else:
        assert not result.passed or abs(right) <= 2 * result.uncertainty, result


@settings(max_examples=20, deadline=None)
@PROGRAMS
def test_no_false_verdict(**drawn):
    judge(**drawn)


@pytest.mark.nightly
@settings(max_examples=1500, deadline=None)
@PROGRAMS
def test_no_false_verdict_among_many(**drawn):
    judge(**drawn)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "fun", [sine, lorenz(1000), lambda x: (x**2).sum(), lambda x: 3 + 0 * x.sum()]
)
def test_costs_one_gradient_and_few_values_and_two_compilations(fun):
    ran = []

    def noted(x):
        jax.debug.callback(lambda: ran.append(1))
        traced.append(1)
        return fun(x)

    traced = []
    rx.taylor_test(noted, jnp.array([1.0, 1.0, 20.0]))
    jax.effects_barrier()
    assert len(ran) <= 80 and len(traced) <= 4


@pytest.mark.usefixtures("x64")
def test_wrong_uses_get_one_sentence():
    x = jnp.arange(4.0)

    def refused(error, sentence, *arguments, **options):
        with pytest.raises(error, match=rf"^rx\.taylor_test.*{sentence}") as caught:
            rx.taylor_test(*arguments, **options)
        assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)

    refused(TypeError, "needs a function", 3.0, x)
    refused(TypeError, r"must take one argument, x \(missing .*'y'\): bind", lambda x, y: x, x)
    refused(TypeError, r"float64\[4\]: sum it, or take one entry", jnp.sin, x)
    refused(
        TypeError, "complex128.*real part or its modulus", lambda x: jax.lax.complex(x[0], x[1]), x
    )
    refused(TypeError, "int64.*convert it", lambda x: x.astype(int).sum(), x)
    refused(
        TypeError,
        r"a tuple: return the value alone, as does lambda x: fun\(x\)\[0\]",
        lambda x: (x.sum(), x),
        x,
    )
    refused(TypeError, "a NoneType: return the value", lambda x: None, x)
    refused(TypeError, r"no floating-point number .* jnp\.asarray\(x, float\)", sine, jnp.arange(4))
    refused(TypeError, "no floating-point number", sine, jnp.zeros((0, 3)))
    refused(TypeError, "no floating-point number", sine, None)
    refused(TypeError, "is a str", sine, {"w": x, "name": "relu"})
    refused(TypeError, "not jax.ShapeDtypeStruct", sine, jax.ShapeDtypeStruct((3,), float))
    refused(TypeError, "cannot be traced", lambda x: np.sin(x).sum(), x)
    refused(TypeError, "cannot be traced", lambda x: x.sum() if x[0] > 0 else 0.0, x)
    refused(ValueError, "direction must not be zero", jnp.sum, x, jnp.zeros(4))
    refused(TypeError, "must have the structure of x", jnp.sum, x, (jnp.zeros(4),))
    refused(TypeError, r"direction has shape \(3,\), where x has \(4,\)", jnp.sum, x, jnp.ones(3))
    refused(
        TypeError,
        r"direction\['w'\] has shape \(2, 2\), where x\['w'\] has \(4,\)",
        lambda x: x["w"].sum(),
        {"w": x},
        {"w": jnp.ones((2, 2))},
    )
    refused(TypeError, "direction is complex, where x is real", jnp.sum, x, x.astype(complex))
    refused(ValueError, "direction is not finite", jnp.sum, x, x * jnp.nan)
    refused(TypeError, "direction must be an array", jnp.sum, x, "down")
    for h0 in (0, -1.0, float("nan"), float("inf")):
        refused(ValueError, "h0 must be positive and finite", jnp.sum, x, h0=h0)
    for h0 in ("small", True, x, 1j):
        refused(TypeError, "h0 must be a number, the first step", jnp.sum, x, h0=h0)
    with pytest.raises(TypeError, match=r"rx\.taylor_test: x must hold numbers; call it outside"):
        jax.jit(lambda x: rx.taylor_test(jnp.sum, x).claimed)(x)


@pytest.mark.usefixtures("x64")
def test_errors_of_the_function_are_passed_on():
    def fails(x):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        rx.taylor_test(fails, 1.0)


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
