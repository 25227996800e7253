"""The contract of lax.scan: values and gradients for any trees, dtypes, closures; its refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rematax as rx
from scan_helpers import SCHEDULES, Counted, agree, assert_trees_close, sine, with_schedule

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)
BOTH = [rx.Nested(2), rx.Binomial(3)]
both_engines = pytest.mark.parametrize("schedule", BOTH, ids=repr)
XS = jnp.linspace(0.1, 1.0, 7)


@every_schedule
@pytest.mark.parametrize("length", [0, 1, 2, 11, 24])
@pytest.mark.parametrize("reverse", [False, True])
def test_values_and_gradients_for_every_length(schedule, length, reverse):
    xs = jnp.linspace(0.5, 1.5, length)

    def program(scan):
        def loss(c, xs):
            c, ys = scan(sine, c, xs, reverse=reverse)
            return c + (ys * jnp.arange(length, dtype=ys.dtype)).sum(), (c, ys)

        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(jnp.float32(0.7), xs)

    agree(program, schedule)


@every_schedule
def test_pytrees_with_integer_and_boolean_leaves(schedule):
    def step(carry, x):
        a, (k, flag), nothing = carry["a"], carry["rest"], carry["none"]
        a = jnp.where(flag, jnp.sin(a), a * x["u"][0])
        y = {"sum": a.sum(), "k": k, "flag": ~flag, "none": None}
        return {"a": a, "rest": (k + x["n"], ~flag), "none": nothing}, y

    def program(scan):
        def loss(a, u):
            init = {"a": a, "rest": (jnp.int32(1), jnp.array(True)), "none": None}
            xs = {"u": (u,), "n": jnp.arange(7)}
            carry, ys = scan(step, init, xs)
            return (carry["a"] ** 2).sum() + (ys["sum"] ** 3).sum(), (carry, ys)

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(jnp.ones(2), XS)

    agree(program, schedule)


@every_schedule
@pytest.mark.parametrize("kind", ["typed", "raw"])
def test_random_keys_are_replayed(schedule, kind):
    key = jax.random.key(1) if kind == "typed" else jax.random.PRNGKey(1)

    def step(carry, x):
        c, key = carry
        key, sub = jax.random.split(key)
        c = jnp.sin(c) + x * jax.random.normal(sub, c.shape)
        return (c, key), (c, sub)

    def program(scan):
        def loss(c):
            (c, last), (ys, subs) = scan(step, (c, key), XS)
            return (c**2).sum() + (ys**2).sum(), (last, subs)

        return jax.value_and_grad(loss, has_aux=True)(jnp.ones(2))

    agree(program, schedule)


@every_schedule
def test_random_keys_as_xs(schedule):
    def program(scan):
        def loss(c):
            keys = jax.random.split(jax.random.key(0), 7)
            c, ys = scan(lambda c, k: (jnp.sin(c) + jax.random.normal(k), k), c, keys)
            return c, ys

        return jax.value_and_grad(loss, has_aux=True)(jnp.float32(1.0))

    agree(program, schedule)


@both_engines
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.complex64])
def test_dtypes(schedule, dtype):
    def program(scan):
        def loss(c, xs):
            c, ys = scan(sine, c, xs)
            return (jnp.abs(c).sum() + jnp.abs(ys).sum()).astype(jnp.float32)

        return jax.grad(loss, (0, 1))(jnp.array([0.3, 0.7], dtype), XS.astype(dtype))

    agree(program, schedule, rtol=3e-2 if jnp.finfo(dtype).bits == 16 else 1e-5)


@pytest.mark.usefixtures("x64")
@both_engines
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.complex128])
def test_dtypes_in_double_precision(schedule, dtype):
    def program(scan):
        def loss(c, xs):
            (c, _), ys = scan(
                lambda s, x: ((jnp.sin(s[0]) * x, s[1] + 1), s[0]), (c, jnp.int64(0)), xs
            )
            return (jnp.abs(c) + jnp.abs(ys).sum()).astype(jnp.float64)

        return jax.grad(loss, (0, 1))(jnp.array(0.3, dtype), jnp.linspace(0.1, 1, 7, dtype=dtype))

    agree(program, schedule, rtol=1e-6 if dtype == jnp.float32 else 1e-13, atol=1e-12)


@every_schedule
def test_weak_types_are_those_of_lax_scan(schedule):
    programs = [
        lambda scan: scan(lambda c, x: (c * x, c), 1.0, XS),
        lambda scan: scan(lambda c, _: (c * 2.0, c), 1.0, None, 5),
        lambda scan: scan(lambda c, _: (c + 1, None), 0, length=5),
        lambda scan: scan(lambda c, x: ((c[0] + x, c[1] + 1), None), (0.0, 0), XS),
        lambda scan: scan(lambda c, _: ((c[0] + 1, 2.0), 3), (0.0, 0.0), None, 5),
    ]
    for program in programs:
        ours, theirs = program(with_schedule(schedule)), program(lax.scan)
        assert_trees_close(ours, theirs)
        if isinstance(schedule, rx.Nested):  # stacking blocks makes ys strong
            ours, theirs = ours[0], theirs[0]
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            assert a.weak_type == b.weak_type


@every_schedule
@pytest.mark.parametrize("flag, first", [(False, True), (2, 1), (2.0, 1.0), (np.int32(2), 1)])
def test_steps_may_return_python_scalars(schedule, flag, first):
    """As the steps of diffrax's solvers do, which say whether they are the first."""

    def program(scan):
        def loss(x):
            carry, ys = scan(
                lambda c, _: ((c[0] * jnp.sin(x), flag), (c[1], flag)), (1.0, first), length=5
            )
            return carry[0], (carry, ys)

        value, (carry, ys) = loss(0.3)
        gradient = jax.grad(loss, has_aux=True)(0.3)
        return value, carry, ys, gradient, jax.jacfwd(jax.grad(lambda x: loss(x)[0]))(0.3)

    agree(program, schedule)


@every_schedule
def test_empty_trees(schedule):
    agree(lambda scan: scan(lambda c, x: (c, x), (), None, length=4), schedule)
    agree(lambda scan: scan(lambda c, x: ({}, jnp.sin(x)), {}, XS), schedule)
    agree(
        lambda scan: jax.grad(lambda x: scan(lambda c, x: (c, jnp.sin(x)), None, x)[1].sum())(XS),
        schedule,
    )


@every_schedule
def test_numpy_arrays_and_swapped_carries(schedule):
    init = {"a": np.ones(2, np.float32), "b": np.zeros(2, np.float32)}
    agree(
        lambda scan: scan(
            lambda c, x: ({"b": c["a"] * x, "a": c["b"]}, None), init, np.asarray(XS)
        ),
        schedule,
    )


@every_schedule
def test_closed_over_values_of_every_kind(schedule):
    table = np.arange(3.0, dtype=np.float32)  # a constant

    def program(scan):
        def outer(w, b):
            hidden = jnp.tanh(w)  # a tracer of the gradient, used through two closures

            def step(c, x):
                return jnp.sin(hidden @ c) * b + x + table, (c * b).sum()

            c, ys = scan(step, jnp.ones(3), XS)
            return (c**2).sum() + ys.sum()

        w = jnp.arange(9.0).reshape(3, 3) / 9
        batched = jax.vmap(jax.grad(outer, (0, 1)), (None, 0))(w, jnp.array([0.5, 0.8]))
        return jax.grad(outer, (0, 1))(w, 0.9), batched, jax.jit(jax.grad(outer))(w, 0.9)

    agree(program, schedule)


@both_engines
@pytest.mark.parametrize("unroll", [2, 3, 20, 0, True, False])
def test_unroll(schedule, unroll):
    def program(scan):
        def loss(c):
            c, ys = scan(sine, c, XS, unroll=unroll)
            return c + ys.sum()

        return jax.grad(loss)(jnp.float32(2.0))

    agree(program, schedule)


@both_engines
def test_custom_rules_in_the_step(schedule):
    twice = jax.custom_vjp(jnp.sin)
    twice.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (2 * ct * jnp.cos(x),))

    def program(scan):
        return jax.grad(lambda c: sum_of(scan(lambda c, x: (twice(c) * x, c), c, XS)))(2.0)

    agree(program, schedule)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(
            lambda c: rx.scan(lambda c, x: (twice(c) * x, c), c, XS, schedule=schedule)[0],
            (2.0,),
            (1.0,),
        )


@every_schedule
def test_second_derivatives_of_a_custom_vjp(schedule):
    """Of a pullback that is not the derivative of the value, so that it is seen to be used."""
    if isinstance(schedule, rx.Binomial) and jax.__version_info__ < (0, 10):
        pytest.skip("JAX 0.8 fails to transpose lax.scan itself here")

    sine = jax.custom_vjp(jnp.sin)
    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (2 * ct * x * jnp.cos(x),))

    def program(scan):
        def end(x, w, xs):
            c, ys = scan(lambda c, y: (sine(c * w) + y, c), x, xs)
            return c + (ys**2).sum()

        at = 0.5, 0.7, XS
        gradient = jax.grad(end, (0, 1, 2))
        return (
            gradient(*at),
            jax.jacfwd(gradient, (0, 1))(*at),
            jax.jvp(gradient, at, at),
            jax.grad(gradient_norm(gradient), (0, 1, 2))(*at),
            jax.vmap(jax.grad(gradient_norm(gradient)), (0, None, None))(jnp.arange(2.0), 0.7, XS),
        )

    agree(program, schedule)


def gradient_norm(gradient):
    """Give the sum of the squares of a gradient."""
    return lambda *at: sum((g**2).sum() for g in gradient(*at))


@pytest.mark.parametrize("xs", ["abc", ["abc"], np.array(["a", "b"])], ids=repr)
def test_texts_are_no_xs(xs):
    with pytest.raises(TypeError, match=r"^rx\.scan: xs.* must be an array, not "):
        rx.scan(lambda c, x: (c, None), 1.0, xs)


def sum_of(tree):
    """Add up all leaves."""
    return sum(leaf.sum() for leaf in jax.tree.leaves(tree))


@every_schedule
def test_nested_in_itself_in_lax_scan_and_in_cond(schedule):
    def program(scan):
        def inner(c, x):
            c, ys = scan(lambda c, y: (jnp.sin(c * y), c), c, x * XS)
            return c, ys.sum()

        def choose(c):
            return lax.cond(c > 0, lambda c: sum_of(scan(inner, c, XS)), lambda c: c, c)

        return (
            jax.value_and_grad(lambda c: sum_of(scan(inner, c, XS)))(0.7),
            jax.grad(lambda c: sum_of(lax.scan(inner, c, XS)))(0.7),
            jax.grad(choose)(0.7),
        )

    agree(program, schedule)


@both_engines
def test_the_step_may_itself_differentiate(schedule):
    """Gradient descent on an energy, as a simulation relaxes a structure (jax issue 711)."""

    def program(scan):
        def relaxed(k):
            def energy(x):
                return (k * x**2 + jnp.cos(x)).sum()

            def step(carry, _):
                i, x = carry
                return (i + 1, x - 0.1 * jax.grad(energy)(x)), None

            return scan(step, (0, jnp.array([1.0, 2.0, 3.0])), jnp.zeros((15, 0)))[0][1].sum()

        return jax.grad(relaxed)(0.5), jax.jvp(jax.grad(relaxed), (0.5,), (1.0,))

    agree(program, schedule, rtol=1e-4)


@both_engines
def test_vmap_of_carries_that_come_to_be_batched(schedule):
    def program(scan):
        def run(last):
            def step(c, x):
                return (c[1], c[2], c[3], jnp.float32(0.0)), c[0] * x

            (a, b, c, d), ys = scan(step, (0.1, 1.0, 2.0, last), XS[:2])
            return a * b * c + d + ys.sum()

        lasts = jnp.array([3.0, 4.0, 5.0])
        return jax.vmap(run)(lasts), jax.vmap(jax.grad(run))(lasts)

    agree(program, schedule)


@every_schedule
def test_dead_and_unperturbed_inputs(schedule):
    """Forwarded carries, ignored xs, integer losses' worth of zero cotangents."""

    def program(scan):
        def loss(c, w, xs):
            carry, _ = scan(lambda c, x: ((jnp.sin(c[0]) * c[1], c[1]), x), (c, w), xs)
            return carry[0] * 2.0

        return jax.grad(loss, (0, 1, 2))(0.3, 0.5, XS), jax.grad(loss, 2)(0.3, 0.5, XS)

    agree(program, schedule)


@pytest.mark.parametrize("order", ["grad", "jvp", "hessian", "mixed", "reverse over reverse"])
def test_what_does_not_vary_may_go_through_what_has_no_derivative(order):
    """A clock in the carry, read by a callback and by a while loop, as lax.scan allows."""

    def forcing(t):
        return jax.pure_callback(lambda t: np.sin(t), jax.ShapeDtypeStruct((), t.dtype), t)

    def program(scan):
        def fun(w, c):
            def step(carry, x):
                c, t, late, old = carry
                factor = lax.while_loop(lambda s: s < 3.0, lambda s: s + 1.0, t)
                c_new = jnp.sin(c) * w + 0.1 * forcing(t) + late
                return (c_new, t + x, 0.5 * old, c), (c * factor, t)

            zero = jnp.float32(0.0)
            carry, (y, t) = scan(step, (c, zero, zero, zero), XS)
            return carry[0] + (y**2).sum() + t.sum() * carry[2]

        gradient = jax.grad(fun, (0, 1))
        return {
            "grad": lambda *a: (gradient(*a), jax.grad(fun, 0)(*a)),
            "jvp": lambda *a: jax.jvp(fun, a, a),
            "hessian": jax.hessian(fun, (0, 1)),
            "mixed": jax.jacfwd(jax.grad(fun, 1), 0),
            "reverse over reverse": jax.grad(lambda *a: sum(g**2 for g in gradient(*a)), (0, 1)),
        }[order](jnp.float32(0.7), jnp.float32(0.3))

    agree(program, rx.Binomial(3), rtol=1e-4)


@both_engines
def test_disable_jit_shows_concrete_values(schedule):
    seen = []

    def step(c, x):
        seen.append(float(x))
        return c * x, None

    with jax.disable_jit():
        rx.scan(step, jnp.float32(1.0), XS, schedule=schedule)
    np.testing.assert_allclose(seen, XS, rtol=1e-6)


@both_engines
def test_collectives_over_a_named_vmap_axis(schedule):
    def program(scan):
        def step(c, x):
            return jnp.sin(c) * x + lax.pmean(c, "i") * lax.axis_index("i").astype(c.dtype), c

        def run(c):
            return sum_of(scan(step, c, XS))

        cs = jnp.arange(3.0)
        return (
            jax.grad(lambda cs: jax.vmap(run, axis_name="i")(cs).sum())(cs),
            jax.vmap(jax.grad(run), axis_name="i")(cs),
            jax.vmap(lambda c: jax.jvp(run, (c,), (1.0,)), axis_name="i")(cs),
        )

    agree(program, schedule)


@every_schedule
def test_the_step_is_traced_once_or_twice(schedule):
    for init, most in ((jnp.float32(1.0), 1), (1, 2)):
        counted = Counted(lambda c, x: (jnp.sin(c * x), None))
        rx.scan(counted, init, XS, schedule=schedule)
        assert counted.traces <= most


@both_engines
def test_effects_are_replayed_and_ordered_ones_refused(schedule):
    def step(c, x):
        jax.debug.print("", ordered=True)
        return jnp.sin(c) * x, c

    def loss(c):
        return sum_of(rx.scan(step, c, XS, schedule=schedule))

    loss(1.0)  # undifferentiated, it is as with lax.scan
    if isinstance(schedule, rx.Binomial):
        with pytest.raises(NotImplementedError, match=r"ordered effects.*rx.StoreAll\(\)"):
            jax.grad(loss)(1.0)


@pytest.mark.parametrize("schedule", [rx.EveryStep(), rx.Nested(), rx.Binomial()], ids=repr)
def test_steps_that_write_to_mutable_arrays_are_not_run_again(schedule):
    def program(scan):
        total = jax.new_ref(jnp.float32(0.0))

        def step(c, x):
            total[...] = total[...] + jax.lax.stop_gradient(c)
            return jnp.sin(c) * x, c

        value, gradient = jax.value_and_grad(lambda c: scan(step, c, XS)[0])(jnp.float32(1.0))
        return value, gradient, total[...]

    with pytest.raises(NotImplementedError, match="carry the array instead"):
        program(with_schedule(schedule))
    agree(program, None)  # the default stores everything


def test_io_callbacks_are_refused_by_jax():
    def step(c, x):
        jax.experimental.io_callback(lambda _: None, None, c)
        return jnp.sin(c) * x, None

    jax.jit(lambda: rx.scan(step, jnp.float32(1.0), XS))()
    with pytest.raises(ValueError, match="IO callbacks do not support JVP"):
        jax.grad(lambda c: rx.scan(step, c, XS)[0])(jnp.float32(1.0))


BAD = [
    (lambda **k: rx.scan(sine, 1.0, XS, schedule="binomial"), TypeError, "schedule must be"),
    (lambda **k: rx.scan(sine, 1.0, XS, schedule=5), TypeError, r"rx.Binomial\(...\), not 5"),
    (lambda **k: rx.scan(sine, 1.0, XS, schedule=rx.Binomial), TypeError, r"write rx.Binomial\(\)"),
    (lambda **k: rx.scan(3, 1.0, XS, **k), TypeError, "f must be a function"),
    (lambda **k: rx.scan(sine, 1.0, **k), ValueError, "give length"),
    (lambda **k: rx.scan(sine, 1.0, length=-1, **k), ValueError, "must not be negative, but is -1"),
    (lambda **k: rx.scan(sine, 1.0, length=2.5, **k), TypeError, "must be an integer, not 2.5"),
    (lambda **k: rx.scan(sine, 1.0, XS, 6, **k), ValueError, "length is 6, but .* xs has 7"),
    (
        lambda **k: rx.scan(sine, 1.0, {"a": XS, "b": XS[:3]}, **k),
        ValueError,
        r"xs\['a'\] has 7, xs\['b'\] has 3",
    ),
    (lambda **k: rx.scan(sine, 1.0, {"a": 1.0}, **k), ValueError, r"xs\['a'\] has no leading axis"),
    (lambda **k: rx.scan(sine, 1.0, jnp.int32(7), **k), ValueError, "xs has no leading axis"),
    (lambda **k: rx.scan(sine, 1.0, 10, **k), TypeError, "xs must .* did you mean length=10?"),
    (lambda **k: rx.scan(sine, 1.0, np.int64(3), **k), TypeError, "did you mean length=3?"),
    (lambda **k: rx.scan(sine, 1.0, [0.1, 2], **k), TypeError, r"list .* pass jnp.asarray\(xs\)"),
    (lambda **k: rx.scan(sine, 1.0, [[1], [2]], **k), TypeError, r"pass jnp.asarray\(xs\)"),
    (
        lambda **k: rx.scan(sine, 1.0, {"a": XS, "b": (1.0, np.float32(2.0))}, **k),
        TypeError,
        r"xs\['b'\] is a tuple of numbers.* pass jnp.asarray\(xs\['b'\]\)",
    ),
    (
        lambda **k: rx.scan(lambda c, x: (c, x), {"a": jax.new_ref(XS)}, XS, **k),
        TypeError,
        r"init\['a'\] is a mutable array.* let f close over it",
    ),
    (
        lambda **k: rx.scan(lambda c, x: (c, x[1][...]), 1.0, (XS, jax.new_ref(XS)), **k),
        TypeError,
        r"xs\[1\] is a mutable array.* let f close over it",
    ),
]


@pytest.mark.parametrize("schedule", [None, rx.StoreAll(), rx.EveryStep(), *BOTH], ids=repr)
@pytest.mark.parametrize(("call", "error", "words"), BAD)
def test_refusals_are_one_sentence(call, error, words, schedule):
    with pytest.raises(error, match=words) as info:
        call(schedule=schedule)
    assert "\n" not in str(info.value) and str(info.value).startswith("rx.scan: ")


@every_schedule
def test_lists_of_arrays_and_arrays_of_numbers_are_xs(schedule):
    agree(lambda scan: scan(lambda c, x: (c + x[0], x), 0.5, [XS, (XS, np.arange(7))]), schedule)


symbolic = pytest.mark.parametrize(
    "schedule", [None, rx.StoreAll(), rx.EveryStep(), *BOTH, rx.Nested(radices=(3, 3))], ids=repr
)


def exported(fun):
    """Export a function of a number and of an array of any length, and call it with two lengths."""
    (n,) = jax.export.symbolic_shape("n")
    types = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.float32)
    call = jax.export.export(jax.jit(fun))(*types).call
    return call(jnp.float32(0.3), XS), call(jnp.float32(0.3), XS[:2])


@symbolic
def test_symbolic_lengths_are_run(schedule):
    def program(scan):
        hidden = jnp.arange(3.0)

        def run(c, xs):
            def step(c, x):
                return jnp.sin(c) * x + (hidden * c).sum(), c

            return scan(step, c, xs), scan(step, c, xs, reverse=True)

        return exported(run)

    agree(program, schedule)
    given = exported(lambda c, xs: rx.scan(sine, c, xs, length=xs.shape[0], schedule=schedule))
    assert_trees_close(given, exported(lambda c, xs: lax.scan(sine, c, xs)))


@symbolic
@pytest.mark.parametrize("by", ["carry", "xs", "closure"])
def test_derivatives_of_symbolic_lengths_store_everything_or_are_refused(schedule, by):
    def gradient(scan):
        def loss(c, w, xs):
            return sum_of(scan(lambda c, x: (jnp.sin(c * w) * x, c), c, xs))

        number = {"carry": 0, "closure": 1, "xs": 2}[by]
        return lambda c, xs: jax.grad(loss, number)(c, 0.5 * c, xs)

    if schedule is None or isinstance(schedule, rx.StoreAll):
        agree(lambda scan: exported(gradient(scan)), schedule)
        return
    with pytest.raises(NotImplementedError, match=r"symbol.* fixed length.*rx\.StoreAll") as info:
        exported(gradient(with_schedule(schedule)))
    words = str(info.value).split("\n-----")[0]  # what follows is JAX's, on its tracebacks
    assert "\n" not in words and words.startswith("rx.scan: ")


def test_a_symbol_is_no_length_without_xs():
    with pytest.raises(TypeError, match=r"^rx\.scan: length is the symbol n, .* jnp\.arange\."):
        exported(lambda c, xs: rx.scan(lambda c, _: (c, None), c, length=xs.shape[0]))


STEPS_THAT_CHANGE = [
    lambda c, x: (c, c, x),
    lambda c, x: c,
    lambda c, x: ((c, c), x),
    lambda c, x: (jnp.stack([c, c]), x),
    lambda c, x: (c.astype(jnp.int32), x),
    lambda c, x: (c.astype(jnp.float16), x),
    lambda c, x: (None, x),
]


@every_schedule
@pytest.mark.parametrize("step", STEPS_THAT_CHANGE)
def test_changing_carries_are_refused_in_the_words_of_lax_scan(schedule, step):
    with pytest.raises(TypeError) as theirs:
        lax.scan(step, jnp.float32(1.0), XS)
    with pytest.raises(TypeError) as ours:
        rx.scan(step, jnp.float32(1.0), XS, schedule=schedule)
    assert str(ours.value) == str(theirs.value)


@both_engines
def test_traced_lengths_and_bad_unrolls_are_refused_as_by_lax_scan(schedule):
    with pytest.raises(jax.errors.ConcretizationTypeError, match="length"):
        jax.jit(lambda n: rx.scan(sine, 1.0, length=n, schedule=schedule))(3)
    with pytest.raises(ValueError, match="unroll"):
        rx.scan(sine, 1.0, XS, unroll=-1, schedule=schedule)


def test_radices_that_do_not_cover_are_refused():
    with pytest.raises(ValueError, match="covers 4 steps"):
        rx.scan(sine, 1.0, XS, schedule=rx.Nested(radices=(2, 2)))
