"""The rest of lax.scan's contract: what JAX's own suites ask of it beyond values and gradients.

Effects and checks, mutable arrays, custom rules in the step, linear loops and solvers, programs
compiled, exported and cached, several threads and devices. Where JAX itself asks, its behaviour is
what is expected; only where a replay cannot keep a promise, a refusal is.
"""

import collections
import contextlib
import copy
import functools
import gc
import importlib.util
import os
import pathlib
import pickle
import subprocess
import sys
import threading

import jax
import jax.experimental.key_reuse
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify

import rematax as rx
from scan_helpers import (
    REMAT3,
    Counted,
    agree,
    assert_trees_close,
    sine,
    temp_bytes,
    with_schedule,
)

# With jax_remat3, which is off by default, JAX's own jax.checkpoint hides effects from programs,
# has no transpose and no rule for checkify; so then have the schedules that are made of it.
ENGINES = [rx.Binomial(3)] if REMAT3 else [rx.EveryStep(), rx.Nested(2), rx.Binomial(3)]
every_engine = pytest.mark.parametrize("schedule", ENGINES, ids=repr)
XS = jnp.linspace(0.1, 1.0, 7)
ONE = np.float32(1.0)


def total(scan, step=sine, xs=XS):
    """Make a scalar function of the first carry."""

    def fun(c):
        c, ys = scan(step, c, xs)
        return c.sum() + sum(y.sum() for y in jax.tree.leaves(ys))

    return fun


def derivatives(fun, x):
    """Take a value, a gradient, a tangent, and a second derivative."""
    gradient = jax.grad(fun)
    return fun(x), gradient(x), jax.jvp(fun, (x,), (x,)), jax.jvp(gradient, (x,), (x,))


# Effects


def noting(seen, **how):
    """Make a step that calls back with its carry."""

    def step(c, x):
        jax.debug.callback(lambda c: seen.append(float(c)), c, **how)
        return jnp.sin(c) * x, c

    return step


def io_noting(seen, ordered):
    """Make a step with a callback that has an effect on the world."""

    def step(c, x):
        jax.experimental.io_callback(lambda c: seen.append(float(c)), None, c, ordered=ordered)
        return jnp.sin(c) * x, c

    return step


def effects_of(fun, *args):
    """Name the kinds of effects of a traced function."""
    return sorted({type(effect).__name__ for effect in jax.make_jaxpr(fun)(*args).effects})


STEPS_WITH_EFFECTS = {
    "debug": noting([]),
    "ordered debug": noting([], ordered=True),
    "io": io_noting([], ordered=False),
    "ordered io": io_noting([], ordered=True),
}


@every_engine
@pytest.mark.parametrize("kind", STEPS_WITH_EFFECTS)
def test_effects_of_the_step_are_effects_of_the_program(schedule, kind):
    step = STEPS_WITH_EFFECTS[kind]
    theirs = effects_of(total(lax.scan, step), 1.0)
    assert len(theirs) == 1
    assert effects_of(total(with_schedule(schedule), step), 1.0) == theirs
    assert effects_of(jax.jit(total(with_schedule(schedule), step)), 1.0) == theirs


@every_engine
@pytest.mark.parametrize("mode", ["grad", "jvp", "vmap of grad", "pullback"])
def test_effects_are_those_of_the_derivative_too(schedule, mode):
    f = total(with_schedule(schedule), noting([]))
    fun = {
        "grad": jax.grad(f),
        "jvp": lambda c: jax.jvp(f, (c,), (c,)),
        "vmap of grad": lambda c: jax.vmap(jax.grad(f))(jnp.stack([c, c])),
        "pullback": lambda c: jax.vjp(f, 1.0)[1](c),
    }[mode]
    assert effects_of(fun, jnp.float32(1.0)) == ["DebugEffect"]


@every_engine
def test_effects_of_steps_whose_results_are_not_used_stay(schedule):
    seen = []
    scan = with_schedule(schedule)

    @jax.jit
    def run(c):
        scan(noting(seen), c, XS)
        return c

    run(1.0)
    jax.effects_barrier()
    assert len(seen) == 7


@every_engine
def test_a_pullback_whose_result_is_not_used_keeps_its_callbacks(schedule):
    """As that of a checkpointed function does: replayed or not, a debug print is printed."""

    def calls(use):
        seen = []
        f = total(with_schedule(schedule), noting(seen))

        @jax.jit
        def run(c):
            (gradient,) = jax.vjp(f, c)[1](ONE)
            return gradient if use else c

        run(jnp.float32(1.0))
        jax.effects_barrier()
        return len(seen)

    assert calls(use=False) == calls(use=True) >= 14


@every_engine
def test_ordered_effects_come_in_order_and_once(schedule):
    for make in (lambda seen: io_noting(seen, True), lambda seen: noting(seen, ordered=True)):
        ours, theirs = [], []
        jax.jit(total(with_schedule(schedule), make(ours)))(1.0)
        jax.jit(total(lax.scan, make(theirs)))(1.0)
        jax.effects_barrier()
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@every_engine
def test_ordered_effects_are_kept_or_refused_where_steps_are_replayed(schedule):
    """The loop itself prints in order; only replays may print once more."""
    ours, theirs = [], []
    jax.value_and_grad(total(lax.scan, noting(theirs, ordered=True)))(1.0)
    with contextlib.suppress(NotImplementedError):
        jax.value_and_grad(total(with_schedule(schedule), noting(ours, ordered=True)))(1.0)
        jax.effects_barrier()
        np.testing.assert_allclose(ours[:7], theirs, rtol=1e-6)


@every_engine
def test_no_tracer_leaks(schedule):
    f = total(with_schedule(schedule))
    with jax.checking_leaks():
        derivatives(f, jnp.float32(1.0))
        jax.jit(jax.grad(f))(1.0)
        jax.vmap(jax.grad(f))(jnp.ones(2))
        jax.hessian(f)(1.0)
        jax.make_jaxpr(jax.grad(f))(1.0)


class Private(Exception):
    pass


@every_engine
@pytest.mark.parametrize("mode", ["value", "grad", "jit", "vmap", "jvp", "grad of jit"])
def test_an_error_of_the_step_is_passed_on_as_it_is(schedule, mode):
    mine = Private("mine")

    def step(c, x):
        raise mine

    f = total(with_schedule(schedule), step)
    run = {
        "value": f,
        "grad": jax.grad(f),
        "jit": jax.jit(f),
        "vmap": lambda c: jax.vmap(f)(jnp.stack([c])),
        "jvp": lambda c: jax.jvp(f, (c,), (c,)),
        "grad of jit": jax.grad(jax.jit(f)),
    }[mode]
    with pytest.raises(Private) as info:
        run(jnp.float32(1.0))
    assert info.value is mine and info.value.__cause__ is None


@every_engine
def test_an_error_met_while_differentiating_the_step_is_passed_on(schedule):
    mine = Private("mine")

    @jax.custom_jvp
    def bad(x):
        return x

    @bad.defjvp
    def rule(primals, tangents):
        raise mine

    f = total(with_schedule(schedule), lambda c, x: (bad(c) * x, None))
    assert f(1.0).shape == ()
    with pytest.raises(Private) as info:
        jax.grad(f)(1.0)
    assert info.value is mine


# Checks


def message(checked):
    """Run what checkify returns, and give the first line of the error, None for none."""
    text = checked()[0].get()
    return text and text.splitlines()[0]


def positive(c, x):
    """A step that has to stay above zero."""
    checkify.check(c > 0.0, "went below zero at {x}", x=x)
    return c - x, jnp.sin(c)


def root(c, x):
    """A step that gives no number once the carry is below zero."""
    return c - x, jnp.sqrt(c)


def lookup(c, i):
    """A step that looks beyond the end of a table, in a while."""
    return c + 1, jnp.arange(4.0)[c] + i


CHECKS = {
    "check": (positive, checkify.user_checks, 1.0, 9.0),
    "nan": (root, checkify.nan_checks, 1.0, 9.0),
    "float": (root, checkify.float_checks, 1.0, 9.0),
    "all": (positive, checkify.all_checks, 1.0, 9.0),
}


@every_engine
@pytest.mark.parametrize("kind", CHECKS)
@pytest.mark.parametrize("mode", ["value", "jit", "vmap", "grad", "jit of grad", "grad of jit"])
def test_errors_found_by_checkify(schedule, kind, mode):
    step, errors, bad, good = CHECKS[kind]

    def run(scan, c):
        f = total(scan, step)
        fun = {
            "value": f,
            "jit": jax.jit(f),
            "vmap": lambda c: jax.vmap(f)(jnp.stack([jnp.float32(good), c])),
            "grad": jax.grad(f),
            "jit of grad": jax.jit(jax.grad(f)),
            "grad of jit": jax.grad(jax.jit(f)),
        }[mode]
        return lambda: checkify.checkify(fun, errors=errors)(jnp.float32(c))

    theirs, ours = message(run(lax.scan, bad)), message(run(with_schedule(schedule), bad))
    if theirs is None:  # JAX loses checks, but no NaN, where it differentiates a program
        assert "grad" in mode and kind in ("check", "all")
        assert ours is None or ours == message(
            lambda: checkify.checkify(total(lax.scan, step))(bad)
        )
    else:
        assert ours == theirs
    assert message(run(with_schedule(schedule), good)) is None
    assert_trees_close(run(with_schedule(schedule), good)()[1], run(lax.scan, good)()[1])


@every_engine
def test_checkify_finds_an_index_out_of_bounds(schedule):
    def run(scan, c):
        return lambda: checkify.checkify(
            lambda c: scan(lookup, c, XS[:3]), errors=checkify.index_checks
        )(jnp.int32(c))

    assert message(run(with_schedule(schedule), 3)) == message(run(lax.scan, 3)) is not None
    assert message(run(with_schedule(schedule), 1)) is None


@every_engine
@pytest.mark.parametrize("bad", [True, False])
def test_gradient_of_a_checked_function(schedule, bad):
    def program(scan):
        def loss(c):
            error, value = checkify.checkify(total(scan, positive))(c)
            return value, error.get() is None if not bad else jnp.any(error_flags(error))

        return jax.grad(loss, has_aux=True)(jnp.float32(1.0 if bad else 9.0))

    agree(program, schedule)


def error_flags(error):
    """Give the flags of an error inside a traced function."""
    return jnp.stack([jnp.any(flag) for flag in jax.tree.leaves(error) if flag.dtype == bool])


@every_engine
def test_errors_as_ys_are_raised_after_the_loop(schedule):
    def fun(scan, xs):
        def step(c, x):
            error, out = checkify.checkify(lambda c, x: positive(c, x))(c, x)
            return out[0], (out[1], error)

        _, (ys, errors) = scan(step, jnp.float32(1.0), xs)
        checkify.check_error(errors)
        return ys.sum()

    def run(scan):
        return lambda: checkify.checkify(functools.partial(fun, scan))(XS)

    assert message(run(with_schedule(schedule))) == message(run(lax.scan)) is not None


# Random keys


def spends_twice(key, _):
    return key, jax.random.normal(key)


def spends_once(key, _):
    key, sub = jax.random.split(key)
    return key, jax.random.normal(sub)


@every_engine
def test_the_key_reuse_checker_looks_inside(schedule):
    scan = with_schedule(schedule)
    key = jax.random.key(0)
    with jax.debug_key_reuse(True):
        for bad in (
            lambda key: scan(spends_twice, key, length=5),
            lambda key: scan(lambda c, _: (c, jax.random.normal(key)), None, length=5),
        ):
            with pytest.raises(jax.errors.KeyReuseError):
                jax.jit(bad)(key)
        keys = jax.random.split(jax.random.clone(key), 5)
        jax.jit(lambda key: scan(spends_once, key, length=5))(jax.random.clone(key))
        jax.jit(lambda keys: scan(lambda c, k: (c, jax.random.normal(k)), None, keys))(keys)


@every_engine
def test_a_replayed_key_is_no_reused_key(schedule):
    if isinstance(schedule, rx.Nested):
        pytest.skip(
            "JAX's checker has a false alarm for a key carried by nested checkpointed scans"
        )

    def loss(step, c, key):
        def walk(carry, x):
            c, key = carry
            key, noise = step(key, None)
            return (jnp.sin(c) * x + noise, key), None

        return with_schedule(schedule)(walk, (c, key), XS)[0][0]

    with jax.debug_key_reuse(True):
        gradient = jax.jit(jax.grad(functools.partial(loss, spends_once)))
        gradient(1.0, jax.random.key(0))


# Mutable arrays


def written_by(step_of):
    """Make a program that lets a step write to an array, and reads it afterwards."""

    def program(scan, jit):
        ref = jax.new_ref(jnp.zeros(3))
        run = lambda c: scan(step_of(ref), c, XS)  # noqa: E731
        out = (jax.jit(run) if jit else run)(jnp.float32(1.0))
        return out, ref[...]

    return program


def accumulating(ref):
    def step(c, x):
        ref[...] = ref[...] + c
        return jnp.sin(c) * x, ref[0]

    return step


def reading(ref):
    """Make a step that reads only."""

    def step(c, x):
        return jnp.sin(c) * x + ref[1], ref[...]

    return step


@every_engine
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("step_of", [accumulating, reading])
def test_mutable_arrays_read_and_written(schedule, jit, step_of):
    agree(lambda scan: written_by(step_of)(scan, jit), schedule)


@every_engine
def test_a_mutable_array_made_around_the_loop(schedule):
    def program(scan):
        @jax.jit
        def run(c):
            ref = jax.new_ref(jnp.zeros(3))
            out = scan(accumulating(ref), c, XS)
            return out, jax.freeze(ref)

        return run(1.0), jax.vmap(run)(jnp.ones(2))

    agree(program, schedule)


@every_engine
def test_derivatives_where_a_mutable_array_is_read(schedule):
    def program(scan):
        ref = jax.new_ref(jnp.arange(3.0))
        f = total(scan, reading(ref))
        return jax.grad(f)(1.0), jax.jit(jax.grad(f))(1.0), jax.jvp(f, (1.0,), (1.0,))

    agree(program, schedule)


@every_engine
def test_derivatives_by_the_content_of_a_mutable_array(schedule):
    """The array is made from what is differentiated, and only read by the step."""

    def program(scan):
        def loss(w):
            ref = jax.new_ref(w)
            return total(scan, lambda c, x: (jnp.sin(c) * x + (ref[...] ** 2).sum(), c))(1.0)

        w = jnp.arange(3.0)
        return loss(w), jax.grad(loss)(w), jax.jvp(loss, (w,), (w,))

    agree(program, schedule)


@every_engine
@pytest.mark.parametrize("mode", ["value", "grad", "jvp", "vmap", "jit of grad"])
def test_a_mutable_array_made_in_the_step(schedule, mode):
    def step(c, x):
        ref = jax.new_ref(c)
        ref[...] = jnp.sin(ref[...]) * x
        return ref[...], jax.freeze(ref)

    def program(scan):
        f = total(scan, step)
        return {
            "value": f,
            "grad": jax.grad(f),
            "jvp": lambda c: jax.jvp(f, (c,), (c,)),
            "vmap": lambda c: jax.vmap(f)(jnp.stack([c, c])),
            "jit of grad": jax.jit(jax.grad(f)),
        }[mode](jnp.float32(1.0))

    agree(program, schedule)


@every_engine
@pytest.mark.parametrize("jit", [False, True])
def test_writing_is_refused_under_the_gradient(schedule, jit):
    ref = jax.new_ref(jnp.zeros(3))
    gradient = jax.grad(total(with_schedule(schedule), accumulating(ref)))
    with pytest.raises(NotImplementedError, match=r"^rx\.scan: .*mutat"):
        (jax.jit(gradient) if jit else gradient)(1.0)
    assert not ref[...].any()


@every_engine
def test_writing_where_the_content_is_differentiated(schedule):
    """Nothing but the array varies: no step is run again, and the derivative is lax.scan's."""

    def program(scan):
        def end(x):
            ref = jax.new_ref(x)

            def step(_, x):
                ref[...] = jnp.sin(ref[...]) * x
                return None, None

            scan(step, None, XS)
            return jax.freeze(ref)

        return jax.grad(end)(1.0)

    agree(program, schedule)


@every_engine
def test_mutable_arrays_are_refused_as_carry_and_as_xs(schedule):
    scan = with_schedule(schedule)
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as of_carry:
        scan(lambda ref, x: (ref, ref[...]), jax.new_ref(jnp.zeros(3)), XS)
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as of_xs:
        scan(lambda c, ref: (c, ref[...]), 1.0, jax.new_ref(jnp.zeros(3)))
    for error in of_carry, of_xs:
        assert str(error.value).startswith("rx.scan: ") and "\n" not in str(error.value)


@every_engine
def test_a_step_returns_no_mutable_array(schedule):
    with pytest.raises(ValueError, match="ref"):
        with_schedule(schedule)(lambda c, x: (jax.new_ref(c), x), 0.0, XS)


@every_engine
@pytest.mark.skipif(
    not hasattr(jax.vjp(jnp.sin, 1.0)[1], "with_refs"), reason="JAX without vjp.with_refs"
)
def test_a_pullback_adds_to_mutable_arrays(schedule):
    if isinstance(schedule, rx.EveryStep | rx.Nested) and jax.__version_info__ < (0, 9):
        pytest.skip("JAX 0.8 cannot do that through jax.jit of a checkpointed scan")
    if isinstance(schedule, rx.Nested):
        pytest.skip("JAX cannot do that through a cut of an array, which 7 steps need")

    def program(scan):
        def loss(w, c, xs):
            c, ys = scan(lambda c, x: (jnp.sin(w * c) + x, c * x), c, xs)
            return c.sum() + ys.sum()

        args = jnp.arange(3.0), jnp.ones(3), jnp.ones((7, 3))
        sums = [jax.new_ref(jnp.ones_like(a)) for a in args]
        for _ in range(2):
            jax.vjp(loss, *args)[1].with_refs(*sums)(ONE)
        return [total[...] for total in sums]

    agree(program, schedule)


# Custom rules in the step


@jax.custom_jvp
def thrice(x):
    """Three times x, whose derivative says two, so that one sees that the rule was used."""
    assert jnp.ndim(x) == 0  # also under vmap
    return 3.0 * x


@thrice.defjvp
def _thrice_jvp(primals, tangents):
    # A NumPy array here becomes a constant of the rule alone.
    return thrice(*primals), tangents[0] * jnp.prod(jnp.asarray(np.full(3, 2.0 ** (1 / 3), "f4")))


TABLE = jnp.arange(1.0, 4.0)


@jax.custom_vjp
def scaled(x):
    """A closed-over array in the function and in its rule."""
    assert jnp.ndim(x) == 0
    return x * TABLE.sum()


def _scaled_fwd(x):
    return scaled(x), jnp.cos(x)


def _scaled_bwd(cos, ct):
    return (2.0 * cos * ct * TABLE[1],)


scaled.defvjp(_scaled_fwd, _scaled_bwd)


@every_engine
@pytest.mark.parametrize("rule", [thrice, scaled])
@pytest.mark.parametrize("mode", ["grad", "grad of jit", "vmap", "grad of vmap", "vmap of grad"])
def test_custom_rules_are_used_in_every_order_of_transformations(schedule, rule, mode):
    def program(scan):
        f = total(scan, lambda c, x: (jnp.sin(rule(c)) * x, c))
        cs = jnp.array([0.3, 0.5])
        batch = lambda cs: jax.vmap(jax.jit(f))(cs).sum()  # noqa: E731
        return {
            "grad": lambda: jax.jit(jax.grad(f))(0.3),
            "grad of jit": lambda: jax.grad(jax.jit(f))(0.3),
            "vmap": lambda: jax.vmap(f)(cs),
            "grad of vmap": lambda: jax.grad(batch)(cs),
            "vmap of grad": lambda: jax.jit(jax.vmap(jax.grad(f)))(cs),
        }[mode]()

    agree(program, schedule)


@every_engine
def test_second_derivatives_by_a_custom_rule(schedule):
    log = jax.custom_jvp(jnp.log1p)
    log.defjvp(lambda primals, tangents: (log(*primals), tangents[0] / (1.0 + primals[0])))

    def program(scan):
        f = total(scan, lambda c, x: (log(c) * (1.0 + x), None))
        return jax.grad(jax.grad(f))(0.3), jax.jit(jax.grad(jax.jit(jax.grad(f))))(0.3)

    agree(program, schedule)


@every_engine
def test_rules_that_see_what_varies(schedule):
    """What varies is found step by step: the second entry of the carry varies later."""

    @jax.custom_vjp
    def add(x, y):
        return x + y

    def forward(x, y):
        return x.value + y.value, None

    add.defvjp(forward, lambda _, ct: (ct, ct), symbolic_zeros=True)

    @jax.custom_jvp
    def first(x, y):
        return x * y

    @functools.partial(first.defjvp, symbolic_zeros=True)
    def rule(primals, tangents):
        (x, y), (dx, _) = primals, tangents
        if isinstance(dx, jax.custom_derivatives.SymbolicZero):
            return x * y, jnp.zeros_like(x)
        return x * y, dx * y

    def program(scan):
        def end(fun):
            def loss(x):
                (out, _), _ = scan(lambda c, _: ((fun(*c), c[0]), None), (x, 1.0), length=4)
                return out

            return loss

        return jax.grad(end(add))(0.7), jax.grad(end(first))(0.7)

    agree(program, schedule)


@every_engine
def test_rules_with_integers(schedule):
    @jax.custom_jvp
    def both(x, k):
        return jnp.sin(x) * k.astype(x.dtype), k

    @both.defjvp
    def rule(primals, tangents):
        x, k = primals
        return both(x, k), (2.0 * tangents[0], np.zeros((), jax.dtypes.float0))

    pair = jax.custom_vjp(lambda c: c)
    pair.defvjp(lambda c: (c, None), lambda _, ct: ((2.0 * ct[0], ct[1]),))

    def program(scan):
        def end(x, k):
            return scan(lambda c, _: (both(*pair(c)), None), (x, k), length=3)[0]

        tangents = 1.0, np.zeros((), jax.dtypes.float0)
        loss = lambda x, k: end(x, k)[0]  # noqa: E731
        forward = lambda x, k: scan(lambda c, _: (both(*c), None), (x, k), length=3)[0]  # noqa: E731
        return (
            jax.grad(loss, (0, 1), allow_int=True)(jnp.float32(0.3), jnp.int32(2)),
            jax.jvp(forward, (0.3, 2), tangents),
        )

    agree(program, schedule)


@every_engine
def test_a_closed_over_factor_of_a_custom_rule_that_is_not_mapped(schedule):
    @jax.custom_vjp
    def times(x, factor):
        return x * factor

    times.defvjp(
        lambda x, factor: (x * factor, (x, factor)),
        lambda residuals, ct: (ct * residuals[1], (residuals[0] * ct).sum()),
    )

    def program(scan):
        def run(x, factor):
            return scan(lambda x, _: (times(x, factor), None), x, jnp.arange(3))[0]

        out, pullback = jax.vjp(jax.vmap(run, (0, None)), jnp.ones((3, 2)), 0.9)
        return out, pullback(2.0 * out)

    agree(program, schedule)


@every_engine
def test_a_step_that_takes_vmapped_gradients_of_a_custom_rule(schedule):
    norm = jax.custom_vjp(lambda x: x.sum())
    norm.defvjp(lambda x: (x.sum(), jnp.cos(x)), lambda cos, ct: (ct * cos,))

    def step(x, _):
        gradient = jax.grad(lambda x: jax.vmap(norm)(x).sum())(x)
        return x, gradient

    agree(lambda scan: scan(step, jnp.ones((10, 3)), jnp.arange(4)), schedule)


@every_engine
def test_a_rule_of_the_wrong_shape_is_refused_in_jaxs_words(schedule):
    forward_rule = jax.custom_vjp(jnp.sin)
    forward_rule.defvjp(lambda x: (jnp.zeros(3), None), lambda _, ct: (ct,))
    tangent_rule = jax.custom_jvp(jnp.sin)
    tangent_rule.defjvp(lambda primals, tangents: (jnp.zeros(3), tangents[0]))
    for rule in forward_rule, tangent_rule:
        f = total(with_schedule(schedule), lambda c, _, rule=rule: (rule(c), None))
        with pytest.raises(TypeError) as ours:
            jax.grad(f)(1.0)
        with pytest.raises(TypeError) as theirs:
            jax.grad(total(lax.scan, lambda c, _, rule=rule: (rule(c), None)))(1.0)
        assert str(ours.value) == str(theirs.value)


@every_engine
def test_static_arguments_of_a_custom_rule(schedule):
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def apply(fun, x):
        return fun(x)

    apply.defvjp(lambda fun, x: (fun(x), x), lambda fun, x, ct: (3.0 * ct * x,))
    agree(
        lambda scan: jax.grad(total(scan, lambda c, x: (apply(jnp.sin, c) * x, c)))(0.3), schedule
    )


# Forms of the arguments, and other control flow in the step

Point = collections.namedtuple("Point", ["x", "y"])


@every_engine
def test_jitted_steps_and_a_jitted_scan(schedule):
    def program(scan):
        jitted = jax.jit(scan, static_argnums=0)
        return [
            derivatives(total(outer, step), jnp.float32(0.3))
            for outer, step in [(scan, jax.jit(sine)), (jitted, sine), (jitted, jax.jit(sine))]
        ]

    agree(program, schedule)


@every_engine
def test_partials_bound_methods_and_named_tuples_as_steps_and_carries(schedule):
    class Model:
        rate = 0.5

        def step(self, point, x):
            return Point(jnp.sin(point.y) * x * self.rate, point.x), point

    def scaled_step(rate, point, x):
        return Point(rate * jnp.cos(point.y), point.x * x), None

    def program(scan):
        def loss(x):
            end, ys = scan(Model().step, Point(x, 1.0), XS)
            again, _ = scan(functools.partial(scaled_step, x), end, XS)
            return again.x + ys.y.sum()

        return jax.value_and_grad(loss)(0.7)

    agree(program, schedule)


@every_engine
def test_trees_mapped_along_different_axes(schedule):
    def step(c, a):
        scale = jnp.cos(a[0]) * (c[1] * a[1]).sum()
        return (c[0] * jnp.sin(scale), c[1] * jnp.cos(a[0])), scale

    xs = jnp.linspace(0.0, 1.0, 6).reshape(3, 2), jnp.linspace(0.0, 1.0, 24).reshape(3, 4, 2)
    c = jnp.linspace(0.1, 1.0, 4).reshape(2, 2), jnp.array([0.5, 0.7])

    def program(scan):
        def loss(c, xs):
            (a, b), ys = scan(step, c, xs)
            return a.sum() + b + ys.sum()

        axes = (0, (1, 2))
        return (
            jax.vmap(lambda c, xs: scan(step, c, xs), axes)(c, xs),
            jax.vmap(jax.grad(loss, (0, 1)), axes)(c, xs),
        )

    agree(program, schedule)


def unmapped(scan, a, b):
    """A carry that is mapped, one that is handed on as it is, and one that never meets a."""

    def step(carry, x):
        return (jnp.sin(carry[0]) * x, carry[1], carry[2] * x), (x, carry[2])

    return scan(step, (a, b, b), XS)


@every_engine
def test_vmap_leaves_unmapped_what_is(schedule):
    out_axes = (0, None, None), (None, None)

    def program(scan):
        run = functools.partial(unmapped, scan)
        mapped = jax.vmap(run, (0, None), out_axes)
        both = lambda a, b: (run(a, b)[0][1], unmapped(scan, b, b))  # noqa: E731
        a = jnp.arange(3.0)
        return (
            mapped(a, 2.0),
            jax.jit(mapped)(a, 2.0),
            jax.vmap(both, (0, None), None)(a, 2.0),
            jax.vmap(jax.jit(run), (0, None), out_axes)(a, 2.0),
        )

    agree(program, schedule)


@every_engine
def test_vmap_leaves_unmapped_what_is_under_derivatives(schedule):
    def program(scan):
        def tangents(a, b):
            return jax.jvp(functools.partial(unmapped, scan), (a, b), (a, b))

        def gradient(a, b):
            def loss(a, b):
                (a, kept, alone), ys = unmapped(scan, a, b)
                return a, (kept, alone, ys)

            return jax.grad(loss, 0, has_aux=True)(a, b)

        def elsewhere(a, b):  # the loop has nothing to do with a
            return a, jax.grad(total(scan))(b)

        out_axes = (0, None, None), (None, None)
        a = jnp.arange(3.0)
        return (
            jax.vmap(tangents, (0, None), (out_axes, out_axes))(a, 2.0),
            jax.vmap(gradient, (0, None), (0, None))(a, 2.0),
            jax.vmap(elsewhere, (0, None), (0, None))(a, 2.0),
        )

    agree(program, schedule)


@every_engine
def test_an_unmapped_loop_in_a_mapped_branch(schedule):
    def program(scan):
        def run(x, y):
            def branch(_, y):
                return scan(lambda y, _: (y, None), y, length=3)[0]

            return lax.cond(x < 0, branch, branch, x, y)

        return jax.vmap(run, (0, None), None)(jnp.arange(3.0), 3.0)

    agree(program, schedule)


@every_engine
def test_one_step_under_axes_of_several_sizes(schedule):
    def step(c, _):
        return c + lax.psum(1, "i"), None

    def run():
        return with_schedule(schedule)(step, 0, length=2)[0]

    for size in 2, 3:
        assert jax.vmap(run, axis_name="i", axis_size=size, out_axes=None)() == 2 * size


@every_engine
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_collectives_over_a_pmapped_axis(schedule):
    def program(scan):
        f = total(scan, lambda c, x: (jnp.sin(c) + lax.psum(x * c, "i"), c))
        cs = jnp.ones((jax.device_count(), 4))
        return jax.pmap(f, axis_name="i")(cs), jax.pmap(jax.grad(f), axis_name="i")(cs)

    agree(program, schedule)


@every_engine
def test_a_while_loop_in_the_step_has_forward_mode_only(schedule):
    def step(c, x):
        return lax.fori_loop(0, (3 * x).astype(int), lambda _, c: jnp.sin(c), c), None

    with pytest.raises(ValueError) as theirs:
        jax.grad(total(lax.scan, step))(1.0)
    with pytest.raises(ValueError) as ours:
        jax.grad(total(with_schedule(schedule), step))(1.0)
    assert str(ours.value) == str(theirs.value)
    agree(lambda scan: jax.linearize(total(scan, step), 1.0)[1](2.0), schedule)


@every_engine
def test_branches_and_platforms_in_the_step(schedule):
    def step(c, x):
        on, c = c
        c = lax.cond(on, lambda c: jnp.sin(c) * x, lambda c: c, c)
        c = lax.platform_dependent(c, cpu=jnp.cos, default=jnp.sin)
        return (lax.switch((3 * x).astype(int), [lambda: True, lambda: False, lambda: on]), c), c

    def program(scan):
        def end(c):
            (_, c), ys = scan(step, (True, c), XS)
            return c + ys.sum()

        return derivatives(end, jnp.float32(0.3)), jax.vmap(jax.grad(end))(jnp.arange(3.0))

    agree(program, schedule)


@every_engine
def test_carries_that_are_overwritten_by_constants(schedule):
    def program(scan):
        return (
            jax.grad(lambda x: sum(scan(lambda c, _: ((0.0, 0.0), ()), (x, 0.0), (), 5)[0]))(1.0),
            jax.grad(
                jax.jit(lambda x: scan(lambda c, _: ((2.0 * c[0], 0.0), None), (x, 0.0), XS)[0][0])
            )(0.0),
        )

    agree(program, schedule)


@every_engine
@pytest.mark.parametrize("seed", range(4))
def test_what_is_handed_on_unchanged_in_any_order(schedule, seed):
    """Carries and xs that the step only passes on or moves around, among ones that it changes."""
    random = np.random.default_rng(seed)
    places, ys_order = random.permutation(6), random.permutation(5)
    weights = [np.asarray(random.normal(size=3), "f4") for _ in range(2)]

    def step(carry, x):
        kept, moved, changed = carry[:2], carry[2:4], carry[4:]
        factor = sum(w.sum() for w in weights)
        changed = [jnp.sin(c) * factor * x[0] for c in changed]
        carry = [*kept, *moved[::-1], *changed] if seed % 2 else [*kept, *changed, *moved]
        ys = [x[0], x[1], jnp.cos(x[1]) * kept[0], changed[0], np.float32(0.0)]
        return carry, [ys[i] for i in ys_order]

    init = [np.asarray(random.normal(), "f4") for _ in range(6)]
    xs = [np.asarray(random.normal(size=7), "f4") for _ in range(2)]

    def program(scan):
        def shuffled(carry, x):
            out, ys = step([carry[i] for i in np.argsort(places)], x)
            return [out[i] for i in places], ys

        out, pullback = jax.vjp(lambda c, xs: scan(shuffled, c, xs), init, xs)
        return out, pullback(out)

    agree(program, schedule)


@every_engine
def test_disable_jit_in_both_directions_and_for_no_steps(schedule):
    def program(scan):
        with jax.disable_jit():
            return [
                jax.value_and_grad(lambda c, r=r: scan(sine, c, XS, reverse=r)[1].sum())(0.7)
                for r in (False, True)
            ]

    agree(program, schedule)
    with jax.disable_jit(), pytest.raises(ValueError, match="zero-length scan"):
        with_schedule(schedule)(sine, 1.0, XS[:0])


@every_engine
def test_a_traced_unroll_is_refused_as_by_lax_scan(schedule):
    for value in 3, True:
        with pytest.raises(jax.errors.ConcretizationTypeError, match="unroll"):
            jax.jit(lambda n: with_schedule(schedule)(sine, 1.0, XS, unroll=n))(value)


@pytest.mark.parametrize("schedule", [rx.EveryStep(), rx.Binomial(3)], ids=repr)
def test_unroll_true_leaves_no_loop(schedule):
    def text(unroll):
        run = jax.jit(lambda c: with_schedule(schedule)(sine, c, XS, unroll=unroll))
        return run.lower(1.0).as_text("hlo")

    assert "while(" in text(1) and "while(" in text(2) and "while(" not in text(True)
    assert len(text(1)) < len(text(2))


@every_engine
def test_closed_over_arrays_are_not_stacked(schedule):
    weights, n = jnp.full((100, 100), 0.01), 200

    def loss(w):
        return total(with_schedule(schedule), lambda c, x: (jnp.sin(w @ c), None), n)(jnp.ones(100))

    def total(scan, step, n):
        return lambda c: scan(step, c, None, n)[0].sum()

    assert temp_bytes(jax.grad(loss), weights) < 20 * weights.nbytes < n * weights.nbytes


# Linear loops and solvers


def linear(scan):
    """Make a linear map by a loop."""

    def fun(c, xs):
        return scan(lambda c, x: (0.5 * c[::-1] + x, c.sum() - x[0]), c, xs)

    return fun


untransposable = pytest.mark.skipif(
    jax.__version_info__ < (0, 10), reason="JAX 0.8 fails to transpose lax.scan itself here"
)


@untransposable
@every_engine
@pytest.mark.parametrize("jit", [False, True])
def test_transposes_of_linear_loops(schedule, jit):
    args = jnp.arange(2.0), jnp.linspace(0.0, 1.0, 14).reshape(7, 2)

    def program(scan):
        fun = linear(scan)
        out = fun(*args)
        transposed = jax.linear_transpose(fun, *args)
        back = (jax.jit(transposed) if jit else transposed)(out)
        again = jax.linear_transpose(lambda ct: transposed(ct), out)(back)
        constant = jax.linear_transpose(lambda c: fun(c, jnp.zeros_like(args[1]))[0], args[0])
        return back, again, constant(out[0]), jax.vmap(transposed)(jax.tree.map(twice, out))

    agree(program, schedule)


def twice(a):
    return jnp.stack([a, 2.0 * a])


def laplace(scan, rate):
    """Make a symmetric positive map, row by row."""

    def apply(v):
        padded = jnp.pad(v, 1)
        rows = jnp.arange(v.size)

        def row(_, i):
            window = lax.dynamic_slice(padded, (i,), (3,))
            return None, (2.0 + rate) * window[1] - window[0] - window[2]

        return scan(row, None, rows)[1]

    return apply


@every_engine
@pytest.mark.parametrize(
    "kind", ["cg", "symmetric", pytest.param("transposed", marks=untransposable)]
)
def test_solvers_around_the_loop(schedule, kind):
    b = jnp.linspace(1.0, 2.0, 5)

    def cg(apply, b):
        return jax.scipy.sparse.linalg.cg(apply, b, tol=1e-7)[0]

    def program(scan):
        def solve(rate, b):
            apply = laplace(scan, rate)
            if kind == "cg":
                return cg(apply, b)
            if kind == "symmetric":
                return lax.custom_linear_solve(apply, b, cg, symmetric=True)
            return lax.custom_linear_solve(apply, b, cg, transpose_solve=cg)

        loss = lambda rate, b: (solve(rate, b) ** 2).sum()  # noqa: E731
        return (
            loss(0.5, b),
            jax.grad(loss, (0, 1))(0.5, b),
            jax.jvp(loss, (0.5, b), (1.0, b)),
            jax.vmap(jax.grad(loss), (0, None))(jnp.array([0.5, 0.7]), b),
        )

    agree(program, schedule, rtol=1e-4, atol=1e-4)


@every_engine
def test_solvers_in_the_step(schedule):
    def program(scan):
        def step(c, x):
            matrix = jnp.eye(2) * (2.0 + x) + jnp.outer(jnp.sin(c), c) * 0.1
            root = lax.custom_root(
                lambda y: y**3 + y - c,
                jnp.zeros_like(c),
                lambda f, y: lax.fori_loop(0, 20, lambda _, y: y - f(y) / (3 * y**2 + 1), y),
                lambda g, y: y / g(jnp.ones_like(y)),
            )
            return jnp.linalg.solve(matrix, c) + 0.1 * root, root.sum()

        f = total(scan, step)
        return f(jnp.ones(2)), jax.grad(f)(jnp.ones(2)), jax.jvp(f, (jnp.ones(2),), (jnp.ones(2),))

    agree(program, schedule, rtol=1e-4)


# Compiled, exported and cached programs


@every_engine
def test_gradients_compiled_ahead_of_time(schedule):
    def program(scan):
        gradient = jax.jit(jax.value_and_grad(total(scan)))
        traced = gradient.trace(jax.ShapeDtypeStruct((3,), jnp.float32))
        lowered = gradient.lower(jax.ShapeDtypeStruct((3,), jnp.float32))
        c = jnp.arange(3.0)
        return traced.lower().compile()(c), lowered.compile()(c)

    xs = jnp.ones((7, 3))
    agree(
        lambda scan: program(lambda step, c, _: scan(lambda c, x: (jnp.sin(c) * x, c), c, xs)),
        schedule,
    )


@every_engine
def test_gradients_exported(schedule):
    with_flatbuffers = importlib.util.find_spec("flatbuffers") is not None

    def program(scan):
        fun = total(scan)
        c = jnp.float32(0.7)
        gradient = jax.export.export(jax.jit(jax.grad(fun)))(c)
        value = jax.export.export(jax.jit(fun))(c)
        out = [gradient.call(c)]
        if with_flatbuffers:
            again = jax.export.deserialize(gradient.serialize())
            later = jax.export.deserialize(value.serialize(vjp_order=2))
            out += [again.call(c), jax.grad(later.call)(c), jax.grad(jax.grad(later.call))(c)]
        return out

    agree(program, schedule)


@every_engine
def test_gradients_exported_for_any_size(schedule):
    """The size of the carry is a symbol, as a batch's is; the number of steps is not."""

    def program(scan):
        f = total(scan, lambda c, x: (jnp.sin(c) * x + c.sum(), c))
        (size,) = jax.export.symbolic_shape("size")
        exported = jax.export.export(jax.jit(jax.grad(f)))(
            jax.ShapeDtypeStruct((size,), jnp.float32)
        )
        return exported.call(jnp.arange(2.0)), exported.call(jnp.arange(5.0))

    agree(program, schedule)


@every_engine
@pytest.mark.parametrize("mode", ["value", "grad", "jvp", "vmap of grad"])
def test_named_scopes_reach_the_compiled_program(schedule, mode):
    def step(c, x):
        with jax.named_scope("reaction"):
            return jnp.sin(c) * x, c

    def run(c):
        with jax.named_scope("reactor"):
            return total(with_schedule(schedule), step)(c)

    fun = {
        "value": run,
        "grad": jax.grad(run),
        "jvp": lambda c: jax.jvp(run, (c,), (c,)),
        "vmap of grad": lambda c: jax.vmap(jax.grad(run))(jnp.stack([c, c])),
    }[mode]
    lines = jax.jit(fun).lower(jnp.float32(1.0)).compile().as_text().splitlines()
    names = [line.split('op_name="')[1].split('"')[0] for line in lines if 'op_name="' in line]
    assert any("reactor" in name and "reaction" in name for name in names)
    if "grad" in mode:  # the replay and the pullback of the step, or the two as one
        cosines = [name for name in names if name.endswith("/cos")]
        assert cosines and all("reaction" in name for name in cosines)


def live_executables():
    gc.collect()
    return len(jax.devices()[0].client.live_executables())


@every_engine
def test_a_repeated_call_without_jit_compiles_nothing(schedule):
    f = total(with_schedule(schedule))
    for _ in range(2):
        f(0.7).block_until_ready()
    before = live_executables()
    f(0.7).block_until_ready()
    assert live_executables() == before


@every_engine
@pytest.mark.parametrize("mode", ["grad", "jvp", "vmap"])
def test_a_repeated_derivative_without_jit_compiles_no_more_than_lax_scan(schedule, mode):
    def third(scan):
        f = total(scan)
        fun = {
            "grad": jax.grad(f),
            "jvp": lambda c: jax.jvp(f, (c,), (c,)),
            "vmap": lambda c: jax.vmap(f)(jnp.stack([c, c])),
        }[mode]
        c = jnp.float32(0.7)
        jax.block_until_ready([fun(c) for _ in range(2)])
        before = live_executables()
        jax.block_until_ready(fun(c))
        return live_executables() - before

    assert third(with_schedule(schedule)) <= third(lax.scan)


@every_engine
@pytest.mark.parametrize("mode", ["value", "grad"])
def test_fresh_steps_without_jit_leave_no_more_than_with_lax_scan(schedule, mode):
    def left(scan):
        before = live_executables()
        for _ in range(50):
            f = total(scan, lambda c, x: (jnp.sin(c) * x, c))
            (f if mode == "value" else jax.grad(f))(0.7).block_until_ready()
        return live_executables() - before

    assert left(with_schedule(schedule)) <= left(lax.scan) + 5


@every_engine
def test_a_jitted_gradient_is_traced_once(schedule):
    counted = Counted(sine)
    gradient = jax.jit(jax.grad(total(with_schedule(schedule), counted)))
    gradient(jnp.float32(0.7))
    traces = counted.traces
    gradient(jnp.float32(0.9))
    assert counted.traces == traces


CACHED = """
import jax, jax.numpy as jnp, rematax as rx
for schedule in rx.EveryStep(), rx.Nested(2), rx.Binomial(3):
    def loss(c):
        c, ys = rx.scan(lambda c, x: (jnp.sin(c) * x, c), c, jnp.arange(7.0), schedule=schedule)
        return c + ys.sum()
    print(jax.jit(jax.value_and_grad(loss))(0.7))
"""


def test_the_persistent_compilation_cache_is_used_by_the_next_process(tmp_path):
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def run():
        done = subprocess.run(
            [sys.executable, "-c", CACHED], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, {path.name for path in tmp_path.iterdir() if "atime" not in path.name}

    first, second = run(), run()
    assert first == second and len(first[1]) >= 3


# Threads and processes


@every_engine
@pytest.mark.parametrize("jit", [False, True])
def test_four_threads(schedule, jit):
    """The same function, differentiated for the first time by all of them at once."""
    f = total(with_schedule(schedule))
    gradient = jax.jit(jax.grad(f)) if jit else jax.grad(f)
    start, results = threading.Barrier(4), [None] * 4

    def work(i):
        start.wait()
        try:
            results[i] = jax.device_get((f(0.7), gradient(0.7)))
        except Exception as error:
            results[i] = error

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    expected = total(lax.scan)(0.7), jax.grad(total(lax.scan))(0.7)
    for result in results:
        assert_trees_close(result, jax.device_get(expected))


@pytest.mark.parametrize(
    "schedule",
    [rx.StoreAll(), *ENGINES, rx.Binomial(), rx.Nested(radices=(3, 3), tapes=True)],
    ids=repr,
)
def test_schedules_can_be_pickled_copied_and_be_static_arguments(schedule):
    @functools.partial(jax.jit, static_argnames="schedule")
    def gradient(c, schedule):
        traced.append(schedule)
        return jax.grad(total(with_schedule(schedule)))(c)

    traced = []
    copies = [pickle.loads(pickle.dumps(schedule)), copy.deepcopy(schedule), copy.copy(schedule)]
    values = [gradient(0.7, s) for s in (schedule, *copies)]
    assert all(s == schedule and hash(s) == hash(schedule) for s in copies)
    assert len(set(map(float, values))) == 1 and len(traced) == 1


# Several devices

PROGRAM = pathlib.Path(__file__).with_name("contract_program.py")
KINDS = [
    "types",
    "refusals",
    "sharded_steps",
    "unroll",
    "auto_axes",
    "reduced",
    "microbatches",
    "spmd_axis_name",
    "keys",
    "axis_index",
    "varying",
    "varying_refusals",
    "replication",
    "custom_vjp",
]


@pytest.fixture(scope="module")
def on_four_devices():
    """Run all kinds in one process, and give what each schedule printed."""
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, PROGRAM, ",".join(KINDS)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)


@pytest.mark.parametrize("kind", KINDS)
@every_engine
def test_on_four_devices(on_four_devices, kind, schedule):
    verdict = on_four_devices[f"{kind} {schedule!r}"]
    if verdict.startswith("lacking"):
        pytest.skip(verdict)
    assert verdict == "ok"
