"""Residuals against counts by hand and JAX's own report; counts against what is known to run."""

import contextlib
import functools
import inspect
import io
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals

import rematax as rx
from scan_helpers import OLD_REMAT3, REMAT3

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
    kept = rx.residuals(lambda x: (x * x * x).sum(), X)
    assert sum(row.kind == "argument" for row in kept) == 1

    @jax.custom_vjp
    def f(x):
        return x

    def forward(x):
        y = jnp.sin(x)
        return x, (y, y, x, x)

    f.defvjp(forward, lambda kept, g: (g * kept[0] * kept[1],))
    assert shapes(rx.residuals(f, X)) == {("intermediate", (6,)): 1, ("argument", (6,)): 1}


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


def checkpointed(fun, *names):
    return jax.checkpoint(fun, policy=P.save_only_these_names(*names))


def two_names(x):
    a = checkpoint_name(jnp.sin(x), "a")
    return jnp.sin(checkpoint_name(jnp.sin(a), "b"))


def test_names_asked_for_in_vain_are_said():
    (note,) = rx.residuals(checkpointed(two_names, "a", "c"), X).notes
    assert note.startswith("'c' is asked for by a policy, but no value inside jax.checkpoint has")
    assert note.endswith("(there is 'a', 'b').")
    kept = rx.residuals(checkpointed(jnp.sin, "c"), X)
    assert kept.notes[0].endswith("(none has a name).")
    assert repr(kept).splitlines()[-1] == kept.notes[0]
    assert "<p>&#x27;c&#x27; is asked for" in kept._repr_html_()
    # Where it is looked for: in loops, in other functions, by each of several policies.
    loop = lambda x: scan(checkpointed(two_names, "a", "c"), x, 3)  # noqa: E731
    either = P.save_from_both_policies(P.dots_saveable, P.save_only_these_names("c"))
    offloaded = P.save_and_offload_only_these_names(
        names_which_can_be_saved=["a"],
        names_which_can_be_offloaded=["c"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    for fun in (
        loop,
        jax.jit(loop),
        lambda x: rx.scan(lambda c, _: (checkpointed(two_names, "c")(c), None), x, length=9)[0],
        jax.checkpoint(two_names, policy=P.save_any_names_but_these("c")),
        jax.checkpoint(two_names, policy=either),
        jax.checkpoint(two_names, policy=offloaded),
    ):
        (note,) = rx.residuals(fun, X).notes
        assert note.startswith("'c' is asked for by a policy, but no value")


def test_names_that_are_met_are_not_mentioned():
    for fun in (
        two_names,
        checkpointed(two_names, "a"),
        checkpointed(two_names, "a", "b"),
        jax.checkpoint(two_names),
        jax.checkpoint(two_names, policy=P.save_any_names_but_these("a")),
        jax.checkpoint(two_names, policy=P.everything_saveable),
        jax.checkpoint(two_names, policy=lambda *_, **__: False),
        # One policy for all layers, in one of which the name is not.
        lambda x: checkpointed(two_names, "a")(checkpointed(jnp.sin, "a")(x)),
        lambda x: checkpointed(lambda x: scan(two_names, x, 3), "b")(x),
    ):
        assert rx.residuals(fun, X).notes == ()


@pytest.mark.parametrize(
    "costly",
    [
        lambda x: jnp.outer(x, x) @ x,
        lambda x: x * x * x,
        lambda x: x**2.5,
        lambda x: x**3,
        lambda x: x ** (1.0 + jax.lax.stop_gradient(x)),
        lambda x: x / (1 + x),
        jnp.cumsum,
        jax.nn.gelu,
        jax.nn.softmax,
        lambda x: jnp.where(x > 0.5, x, x * x),
        lambda x: scan(jnp.sin, x, 3),
    ],
)
def test_a_derivative_is_not_taken_for_a_computation_that_is_repeated(costly):
    def f(x):
        return jnp.cos(checkpoint_name(costly(x), "a")) * 2.0

    kept = rx.residuals(checkpointed(f, "a"), X)
    assert "a" in {row.name for row in kept} and kept.notes == ()


def test_what_is_not_saved_is_not_said_to_be():
    def f(a):
        y = jnp.sin(a)
        return jnp.cos(y) + checkpoint_name(y, "a")  # a sum does not need it

    kept = rx.residuals(checkpointed(f, "a"), X)
    assert [(row.kind, row.name) for row in kept] == [("argument", "a")] and kept.notes == ()


def test_a_tuple_for_a_name_is_said():
    (note,) = rx.residuals(checkpointed(two_names, ("a", "b")), X).notes
    assert note.startswith(
        "('a', 'b') is a tuple, and no name: give the policy each name by itself"
    )
    assert rx.residuals(checkpointed(two_names, *("a", "b")), X).notes == ()  # the remedy


def test_a_named_value_that_is_not_used_is_said():
    def f(x):
        y = jnp.sin(x)
        checkpoint_name(y, "a")
        return jnp.cos(y) * y

    kept = rx.residuals(checkpointed(f, "a"), X)
    assert kept.extra_bytes == 0
    assert kept.notes == (
        "'a' is the name of a value that is not used: go on with what checkpoint_name returns.",
    )


@pytest.mark.skipif(REMAT3, reason="its mark is not there")
def test_what_is_saved_and_computed_again_is_said():
    def f(x, both):
        y = jnp.sin(x)
        named = checkpoint_name(y, "a")
        return jnp.cos(y if both else named) * named

    kept, good = (rx.residuals(checkpointed(functools.partial(f, both=b), "a"), X) for b in (1, 0))
    assert kept.extra_bytes == good.extra_bytes == X.nbytes and good.notes == ()
    (note,) = kept.notes
    assert note.startswith("'a' is saved, and computed again all the same, since the value is also")
    looped = lambda x: scan(checkpointed(functools.partial(f, both=True), "a"), x, 3)  # noqa: E731
    assert rx.residuals(looped, X).notes == kept.notes
    # The derivative of an exponential uses its result, which has no name yet.
    exp = checkpointed(lambda x: jnp.cos(checkpoint_name(jnp.exp(x), "a")) * 2.0, "a")
    assert rx.residuals(exp, X).notes == kept.notes
    text = jax.jit(jax.value_and_grad(lambda x: exp(x).sum())).lower(X).as_text()
    assert text.count("stablehlo.exponential") == 2
    # The truth: sines in the program of the gradient, one of which is the cosine's derivative.
    for both, right in ((True, 3), (False, 2)):
        fun = checkpointed(functools.partial(f, both=both), "a")
        gradient = jax.jit(jax.value_and_grad(lambda x, fun=fun: fun(x).sum()))
        assert gradient.lower(X).as_text().count("stablehlo.sine") == right


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
    with pytest.raises(TypeError, match=r"static is traced here.*: bind static arguments with"):
        rx.residuals(f, X, 3)
    bound = functools.partial(f, n=3)
    assert rx.residuals(bound, X).total_bytes == X.nbytes


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


@pytest.mark.parametrize("schedule", [None, rx.Binomial(3), rx.EveryStep(), rx.Nested()])
def test_a_while_loop_in_a_step_has_no_reverse_mode(schedule):  # V11
    def step(c, _):
        return jax.lax.while_loop(lambda c: c[0] < 9, lambda c: 2 * c, c), None

    own = lambda x: jax.lax.scan(step, x, length=9)[0].sum()  # noqa: E731
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(own)(X)
    for fun in (lambda x: rx.scan(step, x, length=9, schedule=schedule)[0].sum(), own):
        with pytest.raises(ValueError) as error:
            rx.residuals(fun, X)
        for part in ("rx.residuals: <lambda> cannot be differentiated in reverse mode (Reverse-mo",
                     "Use a scan or a fori_loop with static bounds, or",
                     "jax.lax.custom_root or jax.custom_vjp"):  # fmt: skip
            assert part in str(error.value)


def test_the_remedies_for_a_while_loop_work():
    def newton(f, c):  # c**2 = x, for ever
        return jax.lax.while_loop(lambda c: jnp.abs(f(c)).max() > 1e-6, lambda c: c - f(c) / 2, c)

    def tangent_solve(g, y):
        return y / g(jnp.ones_like(y))

    def step(x, _):
        return jax.lax.custom_root(lambda c: c - jnp.cos(x), x, newton, tangent_solve), None

    for scanned in (jax.lax.scan, rx.scan):
        kept = rx.residuals(lambda x, s=scanned: s(step, x, length=9)[0].sum(), X)
        assert kept.total_bytes > 0
    kept = rx.residuals(lambda x: jax.lax.fori_loop(0, 9, lambda _, c: jnp.sin(c), x).sum(), X)
    assert kept.total_bytes == 9 * X.nbytes


def test_snapshots_are_called_that():
    def loss(x, **options):
        return rx.scan(lambda c, _: (jnp.sin(c) * jnp.cos(c), None), x, length=99, **options)[0]

    for wrap in (lambda f: f, jax.jit):
        kept = rx.residuals(wrap(lambda x: loss(x, schedule=rx.Binomial(5))), X)
        (row,) = (row for row in kept if row.kind == "intermediate")
        assert row.made_by == "snapshot" and row.shape == (6, *X.shape)
        assert (row.length, row.step_bytes) == (6, X.nbytes)
        assert "6 × 24 B" in repr(kept) and "dynamic_update_slice" not in repr(kept)
    batch = rx.residuals(jax.vmap(lambda x: loss(x, schedule=rx.Binomial(5))), X)
    assert [(row.made_by, row.length) for row in batch if row.kind != "argument"] == [
        ("snapshot", 6)
    ]
    states = {rx.EveryStep(): 99, rx.Nested(radices=(9, 11)): 9}
    for schedule, length in states.items():
        (row,) = rx.residuals(lambda x, s=schedule: loss(x, schedule=s), X)
        assert (row.made_by, row.length) == ("carry", length)
    tape = rx.residuals(lambda x: loss(x, schedule=rx.StoreAll()), X)
    assert {row.made_by for row in tape} <= {"sin", "cos", "neg", "mul"}


@pytest.mark.parametrize(
    "gradient",
    [
        jax.grad,
        jax.value_and_grad,
        lambda f: jax.jit(jax.grad(f)),
        lambda f: jax.grad(jax.jit(f)),
        lambda f: lambda x: jax.grad(lambda y: f(y) * 2.0)(x),
        lambda f: jax.grad(lambda x, p: f(x) + f(p), argnums=(0, 1)),
    ],
)
def test_a_gradient_in_the_place_of_its_function_is_said(gradient):
    for loss in (
        lambda x: jnp.sin(x).sum(),
        lambda x: scan(jnp.sin, x, 9).sum(),
        lambda x: rx.scan(lambda c, _: (jnp.sin(c), None), x, length=99)[0].sum(),
        jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum()),
    ):
        args = (X, X) if "p: f(x)" in _source(gradient) else (X,)
        notes = rx.residuals(gradient(loss), *args).notes
        assert notes == (
            "This is the gradient's own program; for what the gradient keeps, pass the function "
            "before jax.grad.",
        )


def _source(fun):
    return inspect.getsource(fun) if fun.__name__ == "<lambda>" else ""


def test_ordinary_functions_are_not_called_gradients():
    def potential(q):
        return (q**4).sum()

    def leapfrog(q, p):
        p = p - 0.1 * jax.grad(potential)(q)
        return q + 0.1 * p, p

    for fun, *args in (
        (lambda x: jnp.sin(x).sum(), X),
        (jnp.sin, X),
        (lambda x: -jax.grad(potential)(x), X),  # a force
        (leapfrog, X, X),
        (lambda x: (jax.grad(potential)(x), jnp.sin(x)), X),
        (lambda x: jax.grad(lambda k: (k * x[:3]).sum())(jnp.ones(3)), X),
        (lambda x: (jax.grad(potential)(x) ** 2).sum(), X),
        (lambda x: jax.jvp(jnp.sin, (x,), (x,)), X),
        (jax.vmap(jnp.sin), X),
        (lambda x: rx.scan(lambda c, _: (jnp.sin(c), None), x, length=9)[0], X),
    ):
        assert rx.residuals(fun, *args).notes == ()


def test_wrong_arguments_are_refused():
    with pytest.raises(
        TypeError, match=r"rx\.residuals: argument 0 is a str \('abc'\), not an arr"
    ):
        rx.residuals(jnp.sum, "abc")
    with pytest.raises(
        TypeError, match=r"rx\.residuals: <lambda> cannot be traced .it returns a s"
    ):
        rx.residuals(lambda x: "text", X)
    with pytest.raises(TypeError, match=r"rx\.residuals: needs a function first"):
        rx.residuals(jnp.sum(X), X)
    with pytest.raises(
        TypeError, match=r"rx\.residuals: <lambda> cannot be called like this .*'y'"
    ):
        rx.residuals(lambda x, y: x, X)


def test_the_functions_own_errors_show():
    def broken(x):
        return undefined_name  # noqa: F821

    with pytest.raises(NameError, match="undefined_name"):
        rx.residuals(broken, X)


def test_shown_as_a_table():
    kept = rx.residuals(lambda x: scan(jnp.sin, x, 100).sum() + jnp.sin(jnp.sin(x)).sum(), X)
    first, head, *rows = repr(kept).splitlines()
    assert (
        first == "3 residuals, 2.45 kB" and head.split() == "kind shape size from how many".split()
    )
    assert (
        "100 × 24 B" in repr(kept)
        and " 1 × " not in repr(kept)
        and "× 2" in repr(kept)
        and len(rows) == 2
    )
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
    assert Model.step.calls == Model().step.calls == 1
    Model().step.reset()
    assert Model.step.calls == 0 and "counted: 0 calls" in repr(Model().step)
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


async def waits(x):
    return x


def yields(x):
    yield x


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (3, "needs a function first, not 3"),
        (waits, "waits is an async function"),
        (yields, "yields is a generator"),
        (classmethod(waits), "write @rx.counted below @classmethod"),
        (staticmethod(waits), "write @rx.counted below @staticmethod"),
        (property(waits), "write @rx.counted below @property"),
        (Counter, "not the class Counter: count the method"),
    ],
)
def test_counted_refuses(wrong, said):
    with pytest.raises(TypeError, match=rf"rx\.counted: .*{said}"):
        rx.counted(wrong)


def test_counted_needs_an_array_in_each_call():
    with pytest.raises(TypeError, match=r"rx\.counted: <lambda> was called without an array"):
        rx.counted(lambda: 1)()


def test_counted_below_other_decorators():
    class Model:
        @staticmethod
        @rx.counted
        def static(x):
            return 2 * x

        @classmethod
        @rx.counted
        def of_class(cls, x):
            return 3 * x

    counts(Model.static, X)
    counts(Model.of_class, X)
    assert Model.static.calls == 1
    assert Model.__dict__["of_class"].__func__.calls == 1
