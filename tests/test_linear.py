"""The linear call answers for every transformation; closures are hoisted whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rematax._linear import NO_COTANGENT, closed, linear_call


def product(a, x, log=None):
    """Compute a @ x, with a transpose of its own that leaves a trace in the log."""

    def transpose(a, ct):
        if log is not None:
            log.append("transpose")
        return [product(a.T, ct[0], log)]

    return linear_call(lambda a, x: [a @ x[0]], transpose, a, [x])[0]


A = jax.random.normal(jax.random.key(0), (3, 2))
X = jnp.array([0.3, -1.2])


def test_value_and_compiled_value():
    np.testing.assert_allclose(product(A, X), A @ X, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(product)(A, X), A @ X, rtol=1e-6)


def test_reverse_mode_runs_the_given_transpose():
    log = []
    gradient = jax.grad(lambda x: (product(A, x, log) ** 2).sum())(X)
    assert log == ["transpose"]
    np.testing.assert_allclose(gradient, 2 * A.T @ A @ X, rtol=1e-5)


def test_forward_mode_in_operand_and_residual():
    _, tangent = jax.jvp(product, (A, X), (2 * A, 3 * X))
    np.testing.assert_allclose(tangent, 5 * A @ X, rtol=1e-5)
    _, tangent = jax.jvp(lambda x: product(A, x), (X,), (3 * X,))
    np.testing.assert_allclose(tangent, 3 * A @ X, rtol=1e-5)


def test_second_derivatives():
    def loss(x):
        return jnp.sin(product(A, x)).sum()

    def plain(x):
        return jnp.sin(A @ x).sum()

    np.testing.assert_allclose(jax.hessian(loss)(X), jax.hessian(plain)(X), rtol=1e-5)
    np.testing.assert_allclose(jax.jacrev(jax.jacrev(loss))(X), jax.hessian(plain)(X), rtol=1e-5)


def test_vmap_over_each_operand():
    xs, many = jnp.stack([X, 2 * X]), jnp.stack([A, -A])
    np.testing.assert_allclose(jax.vmap(product, (None, 0))(A, xs), xs @ A.T, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(product, (0, None))(many, X), many @ X, rtol=1e-5)
    gradient = jax.vmap(jax.grad(lambda x: product(A, x).sum()))(xs)
    np.testing.assert_allclose(gradient, jnp.stack([A.sum(0)] * 2), rtol=1e-5)
    unmapped = jax.vmap(lambda _: product(A, X), out_axes=None, axis_size=2, in_axes=None)
    np.testing.assert_allclose(unmapped(0), A @ X, rtol=1e-5)


def test_a_named_axis_is_known_inside():
    def mean(x):
        return linear_call(
            lambda _, x: [jax.lax.pmean(x[0], "i")],
            lambda _, ct: [jax.lax.pmean(ct[0], "i")],
            (),
            [x],
        )[0]

    out, pullback = jax.vjp(jax.vmap(mean, axis_name="i"), jnp.arange(4.0))
    np.testing.assert_allclose(out, 1.5 * np.ones(4))
    np.testing.assert_allclose(pullback(jnp.arange(4.0))[0], 1.5 * np.ones(4))


def test_zero_cotangents_are_none_and_operands_may_get_none():
    seen = []

    def transpose(_, ct):
        seen.append([c is None for c in ct])
        return [3 * ct[0], NO_COTANGENT]

    def both(x, y):
        return linear_call(lambda _, t: [3 * t[0], t[1]], transpose, (), [x, y])

    gradient = jax.grad(lambda x, y: both(x, y)[0], (0, 1))(1.0, 2.0)
    assert gradient == (3.0, 0.0) and seen == [[False, True]]


def test_linear_transpose():
    transposed = jax.linear_transpose(lambda x: product(A, x), X)
    np.testing.assert_allclose(transposed(jnp.ones(3))[0], A.T @ jnp.ones(3), rtol=1e-5)
    twice = jax.linear_transpose(lambda ct: transposed(ct)[0], jnp.ones(3))
    np.testing.assert_allclose(twice(X)[0], A @ X, rtol=1e-5)


def test_closed_hoists_arrays_and_tracers():
    def loss(w):
        scaled = 2 * w

        def fun(x):
            return {"y": scaled * x + A[0, 0]}

        traced = closed(fun, X)
        assert any(isinstance(c, jax.core.Tracer) for c in traced.consts)
        assert traced.out["y"].shape == (2,) and traced.types[0].shape == (2,)
        assert traced.unrepeatable == ()
        (y,) = traced.call(traced.consts, [X])
        return y.sum()

    assert jax.grad(loss)(0.5) == pytest.approx(2 * float(X.sum()), rel=1e-6)


def test_closed_names_what_cannot_be_repeated():
    def ordered(x):
        jax.debug.print("{}", x, ordered=True)
        return x

    def unordered(x):
        jax.debug.print("{}", x)
        return x

    assert closed(ordered, X).unrepeatable == ("OrderedDebugEffect",)
    assert closed(unordered, X).unrepeatable == ()
