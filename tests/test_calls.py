"""Models and other arguments that are not arrays, as their own libraries would treat them."""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rematax as rx

X = jnp.linspace(0.1, 1.0, 6)


def compare(fun, *args, **kwargs):
    return rx.compare({"it": fun}, *args, **kwargs)["it"]


ALL = pytest.mark.parametrize(
    ("call", "name"),
    [
        (rx.measure, "rx.measure: "),
        (compare, "rx.compare, 'it': "),
        (rx.residuals, "rx.residuals: "),
    ],
)


SIZES = ("temp_bytes", "argument_bytes", "output_bytes", "constant_bytes")


def sizes(cost):
    return [getattr(cost, field) for field in SIZES]


# -- Static parts ---------------------------------------------------------------------------------
class Layer(NamedTuple):
    weights: jax.Array
    activation: object
    name: str
    repeats: int


def layers(layer, x):
    for _ in range(layer.repeats):
        x = layer.activation(layer.weights @ x)
    return jnp.sum(x)


def test_functions_texts_and_counts_in_a_pytree_are_static():
    layer = Layer(jnp.eye(6), jnp.sin, "first", 3)

    def same(weights, x):
        return layers(layer._replace(weights=weights), x)

    assert sizes(rx.measure(layers, layer, X)) == sizes(rx.measure(same, layer.weights, X))
    kept = rx.residuals(layers, layer, X)
    right = rx.residuals(same, layer.weights, X)
    assert kept.total_bytes == right.total_bytes and kept.extra_bytes == right.extra_bytes
    assert {"layer.weights", "x"} == {row.name for row in kept if row.kind == "argument"}


def test_a_static_argument_takes_part():
    def named(x, how):
        return getattr(jnp, how)(x)

    assert [row.made_by for row in rx.residuals(named, X, "sin")] == ["cos"]
    assert rx.measure(named, X, "sin", time=True).output_bytes == X.nbytes
    assert rx.measure(named, X, how="sum").output_bytes == 4


def test_numbers_of_the_arguments_are_traced():
    assert rx.measure(lambda x, k: x * k, X, 2.0).argument_bytes == X.nbytes + 4
    assert rx.measure(lambda p: p["x"] * p["k"], {"x": X, "k": 2.0}).argument_bytes == X.nbytes + 4


def test_results_that_are_no_arrays_are_left_out():
    def step(layer, x):
        return layer._replace(weights=2 * layer.weights), jnp.sum(x)

    layer = Layer(jnp.eye(6), jnp.sin, "first", 3)
    assert rx.measure(step, layer, X).output_bytes >= 36 * 4 + 4
    with pytest.raises(TypeError, match=r"rx\.measure: <lambda> returns a str and no array"):
        rx.measure(lambda layer, x: layer.name, layer, X)


class Opaque:
    def __init__(self, weights):
        self.weights = weights
        self.inner = None


@ALL
def test_objects_with_hidden_arrays_are_refused(call, name):
    outer = Opaque(3)
    outer.inner = Opaque(X)
    for model in (Opaque(X), outer, Opaque([{"deep": X}])):
        with pytest.raises(
            TypeError, match=rf"{name}argument 1\[0\] is a Opaque, whose arrays JAX"
        ):
            call(lambda x, m: x, X, [model])
    call(lambda x, m: jnp.sin(x) * m.weights, X, Opaque(3.0))  # which has none


def test_the_remedy_for_hidden_arrays_works():
    @functools.partial(jax.tree_util.register_dataclass, data_fields=["weights"], meta_fields=[])
    @dataclasses.dataclass
    class Seen:
        weights: jax.Array

    assert rx.measure(lambda x, m: x * m.weights, X, Seen(X)).argument_bytes == 2 * X.nbytes
    cost = rx.measure(functools.partial(lambda m, x: x * m.weights, Opaque(X)), X)
    assert (cost.argument_bytes, cost.constant_bytes) == (X.nbytes, X.nbytes)


# -- Keyword arguments ----------------------------------------------------------------------------
def test_keyword_arguments_are_arguments():
    def loss(x, *, weights, power=2):
        return (jnp.sin(weights * x) ** power).sum()

    weights = jnp.arange(6.0)
    cost = rx.measure(jax.grad(loss), X, weights=weights)
    assert cost.argument_bytes == 2 * X.nbytes
    assert compare(jax.grad(loss), X, weights=weights).argument_bytes == 2 * X.nbytes
    assert rx.measure(jax.jit(loss), X, weights=weights, time=True).argument_bytes == 2 * X.nbytes
    kept = rx.residuals(loss, X, weights=weights)
    assert {row.name for row in kept if row.kind == "argument"} == {"x", "weights"}
    named = rx.residuals(lambda p: jnp.sin(p["a"] * p["b"]), p={"a": X, "b": X + 1})
    assert {row.name for row in named if row.kind == "argument"} == {"p['a']", "p['b']"}


def test_an_argument_called_time_can_be_bound():
    def fun(x, time):
        return x * time

    for call in (rx.measure, compare):
        with pytest.raises(TypeError, match=r"time says whether .* and is not 0.5; bind"):
            call(fun, X, time=0.5)
        assert call(functools.partial(fun, time=0.5), X).output_bytes == X.nbytes


# -- equinox --------------------------------------------------------------------------------------
@pytest.fixture
def mlp():
    eqx = pytest.importorskip("equinox")
    return eqx, eqx.nn.MLP(6, 6, 8, 2, key=jax.random.key(0))


def squares(model, x):
    return (model(x) ** 2).sum()


def test_equinox_models_are_measured(mlp):
    eqx, model = mlp
    arrays, static = eqx.partition(model, eqx.is_array)

    def by_hand(arrays, x):
        return jax.grad(lambda a: squares(eqx.combine(a, static), x))(arrays)

    right = rx.measure(by_hand, arrays, X)
    near = {field: pytest.approx(getattr(right, field), abs=64) for field in SIZES}
    grad = eqx.filter_grad(squares)
    for fun in (grad, eqx.filter_jit(grad)):  # V09
        for cost in (
            rx.measure(fun, model, X),
            rx.measure(fun, model, x=X),
            compare(fun, model, X),
            rx.measure(fun, eqx.filter_eval_shape(lambda: model), X),
        ):
            assert {field: getattr(cost, field) for field in SIZES} == near and not cost.notes
        assert rx.measure(fun, model, X, time=True).seconds > 0
    both = rx.measure(eqx.filter_value_and_grad(squares), model, X)
    assert both.output_bytes == pytest.approx(right.output_bytes + 4, abs=64)
    train = eqx.filter_jit(lambda m, x: eqx.apply_updates(m, grad(m, x)))  # returns a model
    assert rx.measure(train, model, X, time=True).output_bytes == near["output_bytes"]


def test_equinox_donation_is_seen_and_arguments_stay(mlp):
    eqx, model = mlp
    train = eqx.filter_jit(
        lambda m, x: eqx.apply_updates(m, eqx.filter_grad(squares)(m, x)),
        donate="all-except-first",
    )
    swapped = eqx.filter_jit(lambda x, m: train.__wrapped__(m, x), donate="all-except-first")
    cost = rx.measure(swapped, X, model, time=True)
    assert cost.alias_bytes == sum(x.nbytes for x in jax.tree.leaves(model) if eqx.is_array(x))
    assert not any(x.is_deleted() for x in jax.tree.leaves(model) if eqx.is_array(x))


def test_equinox_models_have_residuals(mlp):
    eqx, model = mlp
    arrays, static = eqx.partition(model, eqx.is_array)
    right = rx.residuals(lambda a, x: squares(eqx.combine(a, static), x), arrays, X)
    for fun in (squares, eqx.filter_jit(squares)):
        kept = rx.residuals(fun, model, X)
        assert (kept.total_bytes, kept.extra_bytes) == (right.total_bytes, right.extra_bytes)
        assert "model.layers[0].weight" in {row.name for row in kept}
        assert not kept.notes
    assert "the gradient's own" in rx.residuals(eqx.filter_grad(squares), model, X).notes[0]


def test_what_is_wrong_with_a_function_of_a_model_is_said(mlp):
    eqx, model = mlp

    def chooses(model, x):
        return model(x) if x.sum() > 0 else x

    for fun in (chooses, eqx.filter_jit(chooses)):
        for call in (rx.measure, rx.residuals):
            with pytest.raises(TypeError, match=r"chooses cannot be traced .a Python if or while"):
                call(fun, model, X)


def test_a_model_under_jit_gets_a_remedy_that_works(mlp):
    eqx, model = mlp
    arrays_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
    with pytest.raises(TypeError, match=r"argument 0\.\w+.*pass the function without jax.jit, or"):
        rx.measure(jax.jit(squares), model, X)
    for fun in (squares, eqx.filter_jit(squares)):
        assert rx.measure(fun, model, X).argument_bytes == X.nbytes + arrays_bytes


def test_a_model_returned_gets_a_remedy_that_works(mlp):
    eqx, model = mlp

    def make(scale):
        return jax.tree.map(lambda leaf: leaf * scale if eqx.is_array(leaf) else leaf, model)

    with pytest.raises(TypeError, match=r"it returns a \w+.: return arrays only .of a model: eqx"):
        rx.measure(make, 2.0)
    assert rx.measure(lambda s: eqx.filter(make(s), eqx.is_array), 2.0).output_bytes > 0


# -- flax -----------------------------------------------------------------------------------------
@pytest.fixture
def net():
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(6, 6, rngs=rngs)
            self.norm = nnx.BatchNorm(6, rngs=rngs)
            self.tied = self.first
            self.activation = jnp.tanh
            self.name = "net"

        def __call__(self, x):
            return self.tied(self.activation(self.norm(self.first(x))))

    return nnx, Net(nnx.Rngs(0))


def test_nnx_models_are_measured(net):
    nnx, model = net
    x = jnp.ones((5, 6))
    before = jax.tree.map(jnp.copy, nnx.state(model))
    grad = nnx.grad(squares)
    own = nnx.jit(grad).lower(model, x).lowered.compile().memory_analysis()
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model)))
    for fun in (grad, nnx.jit(grad)):  # V10
        for cost in (rx.measure(fun, model, x), rx.measure(fun, model, x, time=True)):
            assert cost.temp_bytes == pytest.approx(own.temp_size_in_bytes, abs=256)
            assert cost.argument_bytes == state + x.nbytes  # what is shared counts once
    assert rx.measure(nnx.jit(squares), model, x).output_bytes >= 4
    assert 4 < rx.measure(squares, model, x).output_bytes < state  # the value, and statistics

    def shares(model, x):
        assert model.tied is model.first
        return squares(model, x)

    assert rx.measure(nnx.jit(shares), model, x, time=True).seconds > 0
    assert rx.measure(shares, model, x, time=True).seconds > 0
    # Measuring changes nothing, though running the model does.
    assert jax.tree.all(jax.tree.map(jnp.array_equal, before, nnx.state(model)))


def test_what_an_nnx_function_changes_is_a_result(net):
    nnx, model = net
    optax = pytest.importorskip("optax")
    optimiser = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def train(model, optimiser, x):
        optimiser.update(model, nnx.grad(squares)(model, x))

    args = model, optimiser, jnp.ones((5, 6))
    plain, jitted = rx.measure(train, *args), rx.measure(nnx.jit(train), *args)
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert min(plain.output_bytes, jitted.output_bytes) >= weights
    assert plain.temp_bytes == pytest.approx(jitted.temp_bytes, abs=256)


def test_nnx_models_have_residuals(net):
    nnx, model = net
    graph, state = nnx.split(model)
    x = jnp.ones((5, 6))
    right = rx.residuals(lambda s, x: squares(nnx.merge(graph, s), x), state, x)
    for fun in (squares, nnx.jit(squares)):
        kept = rx.residuals(fun, model, x)
        assert kept.extra_bytes == right.extra_bytes
        assert "model['first']['kernel'].value" in {row.name for row in kept}


# -- What cannot be traced, and remedies that work ------------------------------------------------
TABLE = np.arange(3.0, dtype=np.float32)
i = functools.partial(jnp.asarray, dtype=jnp.int32)  # an index from an array

REMEDIES = {
    "if": (
        lambda x: x if x.sum() > 0 else -x,
        lambda x: jnp.where(x.sum() > 0, x, -x),
        r"a Python if.*use jnp\.where",
    ),
    "while": (
        lambda x: _halved(x),
        lambda x: jax.lax.while_loop(lambda x: x[0] > 1, lambda x: x / 2, jax.lax.stop_gradient(x)),
        r"jax\.lax\.while_loop to repeat",
    ),
    "and": (
        lambda x: jnp.where(x[0] > 0 and x[1] > 0, x, -x),
        lambda x: jnp.where((x[0] > 0) & (x[1] > 0), x, -x),
        r"& and \| to combine",
    ),
    "np.sin": (lambda x: np.sin(x), lambda x: jnp.sin(x), r"NumPy was .*use jnp instead of np"),
    "table": (
        lambda x: x * TABLE[i(x[0])],
        lambda x: x * jnp.asarray(TABLE)[i(x[0])],
        r"and jnp\.asarray\(table\)\[i\] for a NumPy table\[i\]",
    ),
    "list": (
        lambda x: x * [1.0, 2.0][i(x[0])],
        lambda x: x * jnp.asarray([1.0, 2.0])[i(x[0])],
        r"needs a whole number, .*index jnp\.asarray\(list\)",
    ),
    "range": (
        lambda x: sum(x for _ in range(i(x[0]) + 1)),
        lambda x: jax.lax.fori_loop(0, i(x[0]) + 1, lambda _, c: c + c, jax.lax.stop_gradient(x)),
        r"use jax\.lax\.fori_loop for a range",
    ),
    "mask": (
        lambda x: x[x > 0].sum(),
        lambda x: jnp.where(x > 0, x, 0.0).sum(),
        r"a mask that .*use jnp\.where\(mask, x, 0\)",
    ),
    "math": (
        lambda x: x * math.sin(x[0]),
        lambda x: x * jnp.sin(x[0]),
        r"use jnp instead of math, float\(\) and int\(\)",
    ),
    "unique": (
        lambda x: jnp.unique(x).sum(),
        lambda x: jnp.unique(x, size=6).sum(),
        r"give jnp\.nonzero and jnp\.unique a size",
    ),
    "shape": (
        lambda x, n=2: x.sum() * jnp.zeros(i(x[0]) + n),
        functools.partial(lambda x, n: x.sum() * jnp.zeros(n), n=2),
        r"bind shapes and numbers of steps with functools\.partial",
    ),
}


def _halved(x):
    while x[0] > 1:
        x = x / 2
    return x


@ALL
@pytest.mark.parametrize("case", REMEDIES)
def test_what_needs_a_value_is_told_what_works(call, name, case):
    wrong, right, said = REMEDIES[case]
    with pytest.raises(TypeError) as error:
        call(wrong, X)
    start = rf"{name}<lambda> cannot be traced \(.*, at line \d+ of test_calls\.py\): .*"
    assert error.match(start) and error.match(said)
    # V12: jnp.where was the remedy for all of them.
    assert ("jnp.where" in str(error.value)) == (case in ("if", "while", "and", "mask"))
    call(right, X)


@ALL
def test_calls_inside_of_a_transformation_are_refused(call, name):
    def inside(x):
        call(jnp.sin, x)
        return x.sum()

    for transformed in (jax.jit(inside), jax.grad(inside), jax.vmap(inside)):
        with pytest.raises(TypeError, match=rf"{name}argument 0 is being traced.*call it outside"):
            transformed(X)

    def abstract(x):
        call(jnp.sin, jax.ShapeDtypeStruct(x.shape, x.dtype))
        return x

    jax.jit(abstract)(X)


@ALL
def test_arguments_that_the_function_does_not_take(call, name):
    for args, kwargs, why in (
        ((), {}, "missing a required argument: 'x'"),
        ((X, True), {}, "too many positional arguments"),
        ((X,), {"memory": "1 MB"}, "got an unexpected keyword argument 'memory'"),
    ):
        said = rf"{name}<lambda> cannot be called like this \({why}\): its arguments follow the"
        with pytest.raises(TypeError, match=said):
            call(lambda x: jnp.sin(x), *args, **kwargs)

    @functools.wraps(lambda x, n: x)
    def fewer(x):  # says that it takes more than it does
        return 2 * x

    call(fewer, X)


@ALL
def test_arrays_that_were_given_away(call, name):
    x = jnp.ones(6)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    with pytest.raises(TypeError, match=rf"{name}argument 0 was donated to another call"):
        call(jnp.sin, x)


async def waits(x):
    return x


def yields(x):
    yield x


@ALL
def test_functions_that_jax_cannot_trace(call, name):
    with pytest.raises(TypeError, match=f"{name}waits is an async function, which JAX cannot"):
        call(waits, X)
    with pytest.raises(TypeError, match=f"{name}yields is a generator, which JAX cannot trace"):
        call(yields, X)
    with pytest.raises(TypeError, match=rf"{name}sin is a function of NumPy.* pass jnp\.sin"):
        call(np.sin, X)
