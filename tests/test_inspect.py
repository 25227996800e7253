"""Residuals against counts by hand and JAX's own report; counts against what is known to run."""

import contextlib
import functools
import io
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals

import rematax as rx
from scan_helpers import OLD_REMAT3

P = jax.checkpoint_policies
X = jnp.linspace(0.1, 1.0, 6)
BIG = jnp.arange(6.0)


def scan(body, x, length):
    return jax.lax.scan(lambda c, _: (body(c), None), x, length=length)[0]


def shapes(kept):
    return Counter((row.kind, row.shape) for row in kept)


def test_one_cosine_for_each_sine():
    kept = rx.residuals(lambda x: jnp.sin(jnp.sin(jnp.sin(x))).sum(), X)
    assert shapes(kept) == {("intermediate", (6,)): 3}
    assert {row.made_by for row in kept} == {"cos"}
    assert kept.total_bytes == kept.extra_bytes == 3 * X.nbytes


def test_arguments_cost_nothing_extra():
    w = {"w": jnp.ones((4, 6)), "b": jnp.ones(4)}
    kept = rx.residuals(lambda params, x: jnp.sin(params["w"] @ x + params["b"]).sum(), w, X)
    names = {row.name for row in kept if row.kind == "argument"}
    assert names == {"params['w']", "x"}
    assert kept.extra_bytes == 4 * 4
    assert kept.total_bytes == 4 * 4 + w["w"].nbytes + X.nbytes


@pytest.mark.parametrize("array", [jnp.ones((4, 6)), np.ones((4, 6), np.float32)])
def test_closed_over_arrays_are_constants(array):
    kept = rx.residuals(lambda x: jnp.sin(jnp.asarray(array) @ x).sum(), X)
    assert shapes(kept) == {("constant", (4, 6)): 1, ("intermediate", (4,)): 1}
    assert kept.extra_bytes == array.nbytes + 16


def test_a_value_used_twice_counts_once():
    kept = rx.residuals(lambda x: (jnp.exp(x) * jnp.exp(x)).sum() + jnp.exp(x).sum(), X)
    assert len(kept) == len(set(map(id, kept)))
    kept = rx.residuals(lambda x: (x * x * x).sum(), X)
    assert sum(row.kind == "argument" for row in kept) == 1


def test_a_linear_function_keeps_nothing():
    kept = rx.residuals(lambda x: (3 * x + 1).sum(), X)
    assert len(kept) == 0 and kept.total_bytes == 0
    assert repr(kept) == "0 residuals, 0 B"
    assert "0 residuals" in kept._repr_html_()


def test_checkpoint_keeps_its_input():
    again = jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum())
    kept = rx.residuals(lambda x: again(x), X)
    assert [(row.kind, row.name) for row in kept] == [("argument", "x")]


@pytest.mark.parametrize("length", [1, 7])
def test_scans_stack(length):
    (row,) = rx.residuals(lambda x: scan(jnp.sin, x, length).sum(), X)
    assert row.shape == (length, 6) and row.length == length and row.made_by == "cos"
    assert row.step_bytes == X.nbytes and row.bytes == length * X.nbytes


def test_nested_scans_stack_twice():
    (row,) = rx.residuals(lambda x: scan(lambda c: scan(jnp.sin, c, 3), x, 5).sum(), X)
    assert row.shape == (5, 3, 6) and row.length == 15 and row.step_bytes == X.nbytes


def test_checkpointed_body_keeps_the_carry():
    kept = rx.residuals(
        lambda x: scan(jax.checkpoint(lambda c: jnp.sin(jnp.sin(c))), x, 7).sum(), X
    )
    assert kept.extra_bytes == 7 * X.nbytes


def test_outer_checkpoint_hides_inner_ones():
    """R17: the residuals are those of the outermost level."""

    def halves(x, n):
        if n == 1:
            return jnp.sin(x)
        return jax.checkpoint(lambda x: halves(x, n // 2))(halves(x, n // 2))

    assert len(rx.residuals(lambda x: halves(x, 8), 3.0)) == 4
    assert len(rx.residuals(jax.checkpoint(lambda x: halves(x, 8)), 3.0)) == 1


def test_names_are_found_through_checkpoint_and_scan():
    def body(c):
        return jnp.sin(checkpoint_name(jnp.cos(c), "inner"))

    named = jax.checkpoint(body, policy=P.save_only_these_names("inner"))
    kept = rx.residuals(lambda x: scan(named, x, 7).sum(), X)
    assert "inner" in {row.name for row in kept}
    (row,) = (row for row in kept if row.name == "inner")
    assert row.length == 7

    unheard = jax.checkpoint(body, policy=P.save_only_these_names("iner"))  # R10: a typo
    assert "inner" not in {row.name for row in rx.residuals(lambda x: scan(unheard, x, 7).sum(), X)}


def test_names_are_found_in_nested_scans_branches_and_custom_rules():
    def block(c):
        return scan(lambda c: checkpoint_name(jnp.exp(c), "e"), c, 4)

    (row,) = rx.residuals(lambda x: scan(block, x, 3).sum(), X)
    assert (row.length, row.shape, row.name) == (12, (3, 4, 6), "e")

    def branch(x):
        return jax.lax.cond(x[0] > 0, lambda x: checkpoint_name(jnp.exp(x), "e"), jnp.sin, x)

    assert "e" in {row.name for row in rx.residuals(branch, X)}

    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (f(x), checkpoint_name(jnp.cos(x), "slope")), lambda c, g: (c * g,))
    assert [row.name for row in rx.residuals(f, X)] == ["slope"]


@pytest.mark.parametrize(
    ("policy", "names", "arrays"),
    [
        (None, set(), 0),
        (P.nothing_saveable, set(), 0),
        (P.save_only_these_names("a"), {"a"}, 1),
        (P.save_only_these_names("a", "b"), {"a", "b"}, 2),
        (P.save_only_these_names("A"), set(), 0),  # a typing error saves nothing, silently (R10)
    ],
)
def test_policies_save_what_they_name(policy, names, arrays):
    def f(x):
        a = checkpoint_name(jnp.sin(x), "a")
        return jnp.sin(checkpoint_name(jnp.sin(a), "b"))

    kept = rx.residuals(jax.checkpoint(f, policy=policy), X)
    assert {row.name for row in kept if row.kind != "argument"} == names
    assert kept.extra_bytes == arrays * X.nbytes


def test_five_layers_under_each_policy():
    """Facts, "Policies": 50 float32 values, W made inside the function."""

    def layer(x):
        w = 0.9 * jnp.eye(50) + 0.01 * jnp.ones((50, 50))
        return w.T @ jnp.cos(w @ jnp.sin(x))

    def total(wrap):
        def f(x):
            for _ in range(5):
                x = wrap(layer)(x)
            return x.sum()

        return rx.residuals(f, jnp.ones(50)).total_bytes

    assert total(lambda f: f) == 102_000
    bytes_under = {
        # JAX 0.10 with jax_remat3 saves what has a name (jax issue 33018).
        P.everything_saveable: 1_000 if OLD_REMAT3 else 102_000,
        P.nothing_saveable: 1_000,
        P.dots_saveable: 2_000,
        None: 1_000,
    }
    for policy, right in bytes_under.items():
        assert total(lambda f, p=policy: jax.checkpoint(f, policy=p)) == right


@pytest.mark.skipif(
    not hasattr(jax.config, "jax_use_simplified_jaxpr_constants"), reason="a flag of newer JAX"
)
def test_constants_that_are_literals():
    before = jax.config.jax_use_simplified_jaxpr_constants
    jax.config.update("jax_use_simplified_jaxpr_constants", True)
    try:
        kept = rx.residuals(lambda x: jnp.sin(x * BIG) * BIG, X)
        measured = rx.measure(lambda x: x * BIG, X)
    finally:
        jax.config.update("jax_use_simplified_jaxpr_constants", before)
    assert sorted(row.kind for row in kept) == ["constant", "intermediate"]
    assert measured.constant_bytes == BIG.nbytes


def test_what_is_no_program_is_said_in_one_sentence():
    with pytest.raises(TypeError, match=r"residuals: .* cannot be traced \(it needs the value"):
        rx.residuals(lambda x: x if x[0] > 0 else -x, X)
    with pytest.raises(TypeError, match=r"take and return arrays only"):
        rx.residuals(lambda x: "text", X)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jnp.sin(jnp.cos(x)).sum(),
        jax.jit(lambda x: jnp.tanh(jnp.sin(x) * x).sum()),
        lambda x: jax.nn.softmax(x).sum() * x[0],
        jax.checkpoint(lambda x: jnp.sin(jnp.cos(x)).sum(), policy=P.everything_saveable),
        lambda x: scan(lambda c: jnp.sin(c) * c, x, 4).sum(),
        lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x).sum(),
        jax.vmap(lambda x: jnp.sin(x) ** 2),
    ],
)
def test_agrees_with_jax_report(fun):
    """Bytes equal those that JAX's own report adds up to."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print_saved_residuals(fun, X)
    itemsize = {"f32": 4, "bool": 1, "i32": 4}
    reported = 0
    for line in out.getvalue().splitlines():
        dtype, dims = re.match(r"(\w+)\[([\d,]*)\]", line).groups()
        if dims or ("literal" not in line and "constant" not in line):
            reported += itemsize[dtype] * int(np.prod([int(d) for d in dims.split(",") if d]))
    scalars = 16  # numbers in the program may be reported or not
    assert abs(rx.residuals(fun, X).total_bytes - reported) <= scalars


def test_integer_and_key_arguments():
    key = jax.random.key(0)
    kept = rx.residuals(lambda x, i, k: (x[i] * x * jax.random.normal(k, x.shape)).sum(), X, 2, key)
    assert kept.total_bytes > 0
    assert (
        rx.residuals(lambda x, i: x[i], jax.ShapeDtypeStruct((6,), jnp.float32), 1).extra_bytes < 9
    )


def test_numbers_among_the_results():
    kept = rx.residuals(lambda x: (jnp.sin(x).sum(), {"n": 3, "k": 2.0}), X)
    assert kept.total_bytes == X.nbytes
    assert len(rx.residuals(lambda x: 3.0, X)) == 0


def test_static_arguments_are_said_to_be_that():
    f = jax.jit(lambda x, n: jnp.sin(x) * n, static_argnums=1)
    with pytest.raises((TypeError, ValueError), match="Bind static arguments"):
        rx.residuals(f, X, 3)


def test_custom_rules_are_seen_through():
    @jax.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (x, (jnp.sin(x), x)), lambda r, g: (g * r[0],))
    kept = rx.residuals(lambda x: f(x).sum(), X)
    assert ("intermediate", "sin") in {(row.kind, row.made_by) for row in kept}


def test_what_cannot_be_differentiated_is_said_in_one_sentence():
    loop = lambda x: jax.lax.while_loop(lambda c: c[0] < 9, lambda c: 2 * c, x).sum()  # noqa: E731
    with pytest.raises(
        ValueError, match=r"cannot be differentiated in reverse mode \(Reverse-mode"
    ):
        rx.residuals(loop, X)
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    callback = lambda x: jax.pure_callback(np.sin, shape, x).sum()  # noqa: E731
    with pytest.raises(
        ValueError, match=r"cannot be differentiated .*derivative by jax.custom_vjp"
    ):
        rx.residuals(callback, X)


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match=r"residuals: argument 0 is a str \('abc'\), not an array"):
        rx.residuals(jnp.sum, "abc")
    with pytest.raises(TypeError, match=r"argument 1\['w'\]\[0\] is a str"):
        rx.residuals(lambda x, p: x.sum(), X, {"w": ["no"]})
    with pytest.raises(TypeError, match="needs a function"):
        rx.residuals(jnp.sum(X), X)


def test_the_functions_own_errors_show():
    def broken(x):
        return undefined_name  # noqa: F821

    with pytest.raises(NameError, match="undefined_name"):
        rx.residuals(broken, X)


def test_shown_as_a_table():
    kept = rx.residuals(lambda x: scan(jnp.sin, x, 100).sum() + jnp.sin(jnp.sin(x)).sum(), X)
    first, *rows = repr(kept).splitlines()
    assert first == "3 residuals, 2.45 kB"
    assert "100 × 24 B" in repr(kept) and "× 2" in repr(kept) and len(rows) == 2
    page = kept._repr_html_()
    assert "<caption>3 residuals" in page and 'scope="col"' in page
    assert kept[0] in list(kept) and hash(kept[0]) is not None


def counts(fun, *args):
    jax.block_until_ready(fun(*args))


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f])
def test_counts_of_report_r30(jit):
    step = rx.counted(lambda x: jnp.sin(x) * x)
    again = jax.checkpoint(step)

    def five(body):
        return lambda x: scan(body, x, 5).sum() ** 2

    expected = {
        1: lambda x: step(x).sum(),
        2: jax.value_and_grad(lambda x: again(x).sum() ** 2),
        5: five(step),
        10: jax.value_and_grad(five(again)),
        15: jax.value_and_grad(jax.checkpoint(five(again))),
    }
    for right, fun in expected.items():
        step.reset()
        counts(jit(fun), X)
        assert step.calls == right
    step.reset()
    counts(jit(jax.value_and_grad(five(step))), X)
    assert step.calls == 5


def test_counts_are_not_hoisted_out_of_nested_scans():
    """Facts, "Measuring": a callback without operands counts 6 here."""
    step = rx.counted(lambda c: jnp.sin(c))
    inner = jax.checkpoint(lambda c: scan(step, c, 5))
    counts(jax.jit(jax.value_and_grad(lambda x: scan(inner, x, 6).sum() ** 2)), X)
    assert step.calls == 60
    step.reset()
    inner = jax.checkpoint(lambda c: scan(jax.checkpoint(step), c, 5))
    counts(jax.jit(jax.value_and_grad(lambda x: scan(inner, x, 6).sum() ** 2)), X)
    assert step.calls == 90


def test_counts_each_example_of_vmap():
    step = rx.counted(jnp.sin)
    counts(jax.jit(jax.vmap(lambda x: step(x))), X)
    assert step.calls == 6


@pytest.mark.parametrize(
    "leaf",
    [
        jnp.zeros((0, 3)),
        jnp.ones((), bool),
        jnp.arange(3),
        jnp.ones(2, jnp.bfloat16),
        jnp.ones(2, jnp.complex64),
        jax.random.key(0),
        jax.random.split(jax.random.key(0), 2),
        np.ones(3),
    ],
)
def test_counts_with_any_array(leaf):
    step = rx.counted(lambda tree, flag=None: tree)
    counts(step, {"leaf": leaf, "text": None})
    counts(lambda: step(1.0, flag=leaf))
    assert step.calls == 2


def test_counted_is_a_decorator_that_keeps_the_name():
    @rx.counted
    def named(x):
        """Says something."""
        return x

    assert named.__name__ == "named" and named.__doc__ == "Says something."
    counts(named, 2.0)
    assert named.calls == 1

    class Model:
        @rx.counted
        def step(self, x):
            return 2 * x

    counts(Model().step, X)
    assert Model.step.calls == 1
    power = rx.counted(functools.partial(pow, 2.0))
    counts(lambda: power(3.0))
    assert power.calls == 1
    assert "counted: 1 calls" in repr(named)
    jax.grad(rx.counted(jnp.sin))(1.0)


def test_a_call_that_fails_is_not_counted():
    @rx.counted
    def fails(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fails(X)
    assert fails.calls == 0


def test_counted_refuses():
    with pytest.raises(TypeError, match="counted needs a function"):
        rx.counted(3)
    with pytest.raises(TypeError, match="called without an array"):
        rx.counted(lambda: 1)()
