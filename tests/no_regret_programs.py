"""Programs with a loop, as users write them: the cross-section that test_no_regret runs.

Each is ``program(scan, x, n)``: ordinary JAX that returns one number, with ``n`` steps of a loop by
``scan``, which is ``jax.lax.scan`` or a stand-in for it. The decorator notes which ``x`` is meant
for ``n`` steps. Steps are close to the identity, so that no derivative dies out or blows up in a
thousand of them.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@dataclass(frozen=True)
class Program:
    """One program: what to run, its x for n steps, and whether runs of its step can be counted."""

    run: Callable
    given: Callable[[int], Any]
    countable: bool

    def with_scan(self, scan, n):
        """Give the function of x alone."""
        return lambda x: self.run(scan, x, n)


PROGRAMS: dict[str, Program] = {}


def program(given, countable=True):
    """Register a program. Under vmap, or where all is recomputed anyway, counts mean nothing."""

    def register(run):
        assert run.__name__ not in PROGRAMS
        PROGRAMS[run.__name__] = Program(run, given, countable)
        return run

    return register


batched = functools.partial(program, countable=False)


# -- What the programs are made of ----------------------------------------------------------------
def state(n=0, size=300):
    """Make a state of some hundred numbers, whatever n."""
    return jnp.linspace(0.1, 1.0, size)


def inputs(n, *shape):
    """Make a row of numbers in (-1, 1) for each of n steps."""
    size = jnp.zeros((n, *shape)).size
    return jnp.sin(3.0 * jnp.arange(float(size))).reshape(n, *shape)


def matrix(rows=16, columns=16):
    """Make a matrix of small numbers."""
    return inputs(rows, columns) / columns


def move(c):
    """Make a step with a tape as wide as the state."""
    return c + 0.01 * jnp.sin(c)


def wide(c):
    """Make a step with a tape that is several times the state."""
    for _ in range(3):
        c = c + 0.01 * jnp.sin(c) * jnp.cos(0.3 * c) * jnp.exp(-c * c)
    return c


def size(c):
    """Measure a state: not linear, so that no first derivative is a constant."""
    return (c**2).sum()


# -- Carries --------------------------------------------------------------------------------------
@program(state)
def live(scan, x, n):
    """A state that all depends on."""
    return size(scan(lambda c, _: (move(c), None), x, length=n)[0])


@program(state)
def live_wide(scan, x, n):
    """A state whose step has a tape of many states."""
    return size(scan(lambda c, _: (wide(c), None), x, length=n)[0])


@program(lambda n: (state(), inputs(n)))
def live_narrow(scan, x, n):
    """One multiplication a step."""
    return size(scan(lambda c, k: (c * (1 + 0.01 * k), None), *x)[0])


@program(state)
def linear(scan, x, n):
    """A step that is linear, so that it has no tape at all."""
    return size(scan(lambda c, _: (0.99 * c + 0.01 * jnp.roll(c, 1), None), x, length=n)[0])


@program(state)
def momentum(scan, x, n):
    """Position and velocity, one after the other."""

    def step(c, _):
        q, v = c
        v = v - 0.1 * jnp.sin(q)
        return (q + 0.1 * v, v), None

    return size(scan(step, (x, jnp.zeros_like(x)), length=n)[0][0])


@program(state)
def accumulated(scan, x, n):
    """A sum that is only added to."""

    def step(c, _):
        x, total = c
        return (move(x), total + x**2), None

    return size(scan(step, (x, jnp.zeros_like(x)), length=n)[0][1])


@program(state)
def accumulated_wide(scan, x, n):
    """A sum that is only added to, beside a step with a wide tape."""

    def step(c, _):
        x, total = c
        return (wide(x), total + jnp.sin(x)), None

    return size(scan(step, (x, jnp.zeros_like(x)), length=n)[0][1])


@program(state)
def accumulated_number(scan, x, n):
    """A loss that is one number in the carry."""

    def step(c, _):
        x, loss = c
        return (move(x), loss + size(x) / n), None

    return scan(step, (x, 0.0), length=n)[0][1] ** 2


@program(state)
def faded(scan, x, n):
    """A running average: linear in itself, but not only added to."""

    def step(c, _):
        x, mean = c
        return (move(x), 0.99 * mean + 0.01 * x**2), None

    return size(scan(step, (x, jnp.zeros_like(x)), length=n)[0][1])


@program(state)
def written(scan, x, n):
    """A trajectory in a buffer that is only written to, by an index."""

    def step(c, i):
        x, path = c
        x = move(x)
        return (x, path.at[i].set(x)), None

    return size(scan(step, (x, jnp.zeros((n, *x.shape))), jnp.arange(n))[0][1])


@program(state)
def written_slice(scan, x, n):
    """The same by dynamic_update_slice, with the index in the carry."""

    def step(c, _):
        x, path, i = c
        path = lax.dynamic_update_slice(path, move(x)[None], (i, 0))
        return (move(x), path, i + 1), None

    return size(scan(step, (x, jnp.zeros((n, *x.shape)), 0), length=n)[0][1])


@program(state)
def written_by_adding(scan, x, n):
    """A histogram of ten rows that is only added to."""

    def step(c, i):
        x, rows = c
        return (move(x), rows.at[i % 10].add(x**2)), None

    return size(scan(step, (x, jnp.zeros((10, *x.shape))), jnp.arange(n))[0][1])


@program(lambda n: state(n, 200))
def ring_buffer(scan, x, n):
    """A delay: the last five states, of which the oldest is read."""

    def step(c, i):
        x, ring = c
        x = x + 0.01 * jnp.sin(ring[i % 5])
        return (x, ring.at[i % 5].set(x)), None

    return size(scan(step, (x, jnp.stack([x] * 5)), jnp.arange(n))[0][0])


@program(lambda n: state(n, 200))
def shifted_history(scan, x, n):
    """A multistep method: the last three slopes move up by one."""

    def step(c, _):
        x, slopes = c
        slopes = jnp.concatenate([slopes[1:], jnp.sin(x)[None]])
        return (x + 0.003 * slopes.sum(0), slopes), None

    return size(scan(step, (x, jnp.zeros((3, *x.shape))), length=n)[0][0])


@program(lambda n: state(n, 200))
def history(scan, x, n):
    """The whole trajectory in a buffer that is written to and read."""

    def step(path, i):
        return path.at[i + 1].set(move(path[i]) + 0.01 * path[i // 2]), None

    start = jnp.zeros((n + 1, *x.shape)).at[0].set(x)
    return size(scan(step, start, jnp.arange(n))[0])


@program(lambda n: (state(), state()))
def passed_on(scan, x, n):
    """Parameters that ride in the carry unchanged."""

    def step(c, _):
        x, k = c
        return (x + 0.01 * jnp.sin(x) * k, k), None

    return size(scan(step, x, length=n)[0][0])


@program(lambda n: (state(), state()))
def passed_by(scan, x, n):
    """A leaf that rides along unchanged and that no step uses."""

    def step(c, _):
        x, k = c
        return (move(x), k), None

    x, k = scan(step, x, length=n)[0]
    return size(x * k)


@program(state)
def passed_on_alone(scan, x, n):
    """A carry that does not change: all goes on in the ys."""
    c, ys = scan(lambda c, i: (c, jnp.sin(c * i).sum()), x, inputs(n))
    return size(c) + size(ys)


@program(lambda n: (state(n, 16), matrix()))
def passed_on_weights(scan, x, n):
    """A matrix that rides in the carry unchanged."""

    def step(c, _):
        h, w = c
        return (h + 0.1 * jnp.tanh(w @ h), w), None

    return size(scan(step, x, length=n)[0][0])


@program(state)
def dead(scan, x, n):
    """A leaf that is computed at each step, and that nobody asks for."""

    def step(c, _):
        x, y = c
        return (move(x), wide(y) + x), None

    return size(scan(step, (x, x), length=n)[0][0])


@program(state)
def swapped(scan, x, n):
    """A pair that changes places at each step."""

    def step(c, _):
        a, b = c
        return (b, move(a)), None

    a, b = scan(step, (x, 0.5 * x), length=n)[0]
    return size(a) + size(a * b)


@program(state)
def rotated(scan, x, n):
    """Three leaves that move up by one, as in a multistep method."""

    def step(c, _):
        a, b, c = c
        return (b, c, c + 0.01 * jnp.sin(a) * b), None

    return size(scan(step, (x, 0.5 * x, 2 * x), length=n)[0][2])


@program(state)
def live_later(scan, x, n):
    """Leaves that reach the result through others only, in some steps' time."""

    def step(c, _):
        a, b, d = c
        return (move(a), b + 0.01 * a, d + 0.01 * jnp.sin(b)), None

    return size(scan(step, (x, x, x), length=n)[0][2])


@program(state)
def linear_then_live(scan, x, n):
    """A sum that is only added to until a step makes use of it."""

    def step(c, i):
        x, total = c
        x = jnp.where(i == n - 1, x * jnp.sin(total), move(x))
        return (x, total + 0.01 * x), None

    return size(scan(step, (x, jnp.zeros_like(x)), jnp.arange(n))[0][0])


@program(state)
def overwritten(scan, x, n):
    """A leaf that each step sets to a constant, after it has used it."""

    def step(c, _):
        x, k = c
        return (x + 0.01 * jnp.sin(x) * k, jnp.full_like(k, 0.5)), None

    x, k = scan(step, (x, 2 * x), length=n)[0]
    return size(x) + size(k)


@program(lambda n: (state(), state()))
def overwritten_by_a_closure(scan, x, n):
    """A leaf that each step sets to what it closes over."""
    x, w = x

    def step(c, _):
        x, k = c
        return (x + 0.01 * jnp.sin(x) * k, w), None

    return size(scan(step, (x, 2 * w), length=n)[0][0])


@program(state)
def counter(scan, x, n):
    """A number of the step in the carry."""

    def step(c, _):
        x, i = c
        return (x + 0.01 * jnp.sin(x) / (1.0 + i), i + 1), None

    return size(scan(step, (x, 0), length=n)[0][0])


@program(state)
def clock(scan, x, n):
    """A time in the carry that depends on nothing but itself."""

    def step(c, _):
        x, t = c
        return (x + 0.01 * jnp.sin(x + t), t + 0.1), None

    x, t = scan(step, (x, 0.0), length=n)[0]
    return size(x) * t


@program(state)
def rising_flag(scan, x, n):
    """A boolean for each number that is set and never taken back."""

    def step(c, _):
        x, hit = c
        hit = hit | (x > 0.7)
        return (jnp.where(hit, 0.999 * x, move(x)), hit), None

    return size(scan(step, (x, jnp.zeros(x.shape, bool)), length=n)[0][0])


@program(lambda n: (state(), 0.1))
def random_key(scan, x, n):
    """Noise from a key that each step splits."""
    x, scale = x

    def step(c, _):
        x, key = c
        key, now = jax.random.split(key)
        return (move(x) + 0.01 * scale * x * jax.random.normal(now, x.shape), key), None

    return size(scan(step, (x, jax.random.key(0)), length=n)[0][0])


@program(state)
def random_key_and_counter(scan, x, n):
    """Noise from a key that is passed on, and the number of the step."""

    def step(c, i):
        x, key = c
        return (x + 0.01 * x * jax.random.uniform(jax.random.fold_in(key, i), x.shape), key), None

    return size(scan(step, (x, jax.random.key(0)), jnp.arange(n))[0][0])


@program(state)
def complex_wave(scan, x, n):
    """A complex state that turns, the faster the larger it is."""

    def step(c, _):
        return c * jnp.exp(lax.complex(0.0, 0.01) * c * c.conj()), None

    return size(scan(step, lax.complex(x, 0.5 * x), length=n)[0].real)


@program(lambda n: {"a": state(n, 200), "b": {"c": state(n, 100), "d": 0.5}})
def mixed_tree(scan, x, n):
    """Nested dicts of all kinds of dtype."""

    def step(c, _):
        z = c["z"] * jnp.exp(lax.complex(0.0, 0.01 * c["b"]["d"]))
        b = {"c": move(c["b"]["c"]) + 0.01 * z.real, "d": c["b"]["d"]}
        return {"a": move(c["a"]) * b["d"] ** 0.01, "b": b, "z": z, "on": ~c["on"]}, None

    init = {**x, "z": lax.complex(x["b"]["c"], 0 * x["b"]["c"]), "on": jnp.array(True)}
    end = scan(step, init, length=n)[0]
    return size(end["a"]) + size(jnp.where(end["on"], 1.0, 2.0) * end["b"]["c"])


@program(state)
def table_walk(scan, x, n):
    """An integer state that picks what a float state gets."""

    def step(c, _):
        y, i = c
        return (move(y) + 0.01 * x[i] * y, (7 * i + 3) % 300), None

    return size(scan(step, (x, 0), length=n)[0][0])


@program(lambda n: inputs(n, 30))
def empty_carry(scan, x, n):
    """No state at all: a map."""
    return size(scan(lambda _, x: (None, jnp.sin(x) * x.sum()), None, x)[1])


# -- Inputs ---------------------------------------------------------------------------------------
@program(lambda n: (state(), inputs(n, 300)))
def with_xs(scan, x, n):
    """A forcing for each step."""
    return size(scan(lambda c, x: (move(c) + 0.01 * x * c, None), *x)[0])


@program(lambda n: (state(), state()))
def with_closure(scan, x, n):
    """A parameter that the step closes over."""
    x, w = x
    return size(scan(lambda c, _: (c + 0.01 * jnp.sin(w * c), None), x, length=n)[0])


@program(lambda n: (state(), state(), inputs(n, 300)))
def with_xs_and_closure(scan, x, n):
    """A forcing for each step and a parameter."""
    x, w, xs = x
    return size(scan(lambda c, x: (c + 0.01 * jnp.sin(w * c + x), None), x, xs)[0])


@program(lambda n: (state(n, 20), inputs(15, 20)))
def with_integer_xs(scan, x, n):
    """Words that are looked up in a table, which is closed over."""
    x, words = x
    return size(scan(lambda c, i: (move(c) + 0.01 * c * words[i], None), x, jnp.arange(n) % 15)[0])


@program(lambda n: (state(), state()))
def with_boolean_xs(scan, x, n):
    """A mask that tells at which steps a forcing acts."""
    x, w = x
    mask = jnp.arange(n) % 3 == 0
    return size(scan(lambda c, on: (move(c) + jnp.where(on, 0.01 * w * c, 0.0), None), x, mask)[0])


@program(lambda n: (state(n, 16), inputs(n, 16, 16) / 16))
def weights_as_xs(scan, x, n):
    """The layers of a network."""
    return size(scan(lambda h, w: (h + 0.1 * jnp.tanh(w @ h), None), *x)[0])


@program(lambda n: (state(n, 16), {"w": inputs(n, 16, 16) / 16, "b": inputs(n, 16)}))
def tree_as_xs(scan, x, n):
    """The layers of a network, in a dict beside a None."""

    def step(h, layer):
        return h + 0.1 * jnp.tanh(layer["w"] @ h + layer["b"]), None

    return size(scan(step, x[0], {**x[1], "none": None})[0])


@program(lambda n: (state(n, 16), matrix()))
def matrix_as_closure(scan, x, n):
    """A recurrent network."""
    h, w = x
    return size(scan(lambda h, _: (h + 0.1 * jnp.tanh(w @ h), None), h, length=n)[0])


@program(lambda n: (state(), state()))
def closure_of_a_closure(scan, x, n):
    """A step that calls a function that closes over a parameter."""
    x, w = x

    def slope(c):
        return jnp.sin(w * c)

    def step(rate, c, _):
        return c + rate * slope(c), None

    return size(scan(functools.partial(step, 0.01 * w.mean()), x, length=n)[0])


@program(lambda n: state(n, 30))
def closure_made_of_x(scan, x, n):
    """A large matrix made of a small x before the loop."""
    w = jnp.sin(jnp.outer(x, x)) / 30
    return size(scan(lambda c, _: (c + 0.1 * jnp.tanh(w @ c), None), x, length=n)[0])


@program(state)
def closure_that_is_constant(scan, x, n):
    """A parameter that nobody differentiates."""
    w = jnp.cos(jnp.arange(300.0))
    return size(scan(lambda c, _: (c + 0.01 * jnp.sin(w * c), None), x, length=n)[0])


@program(lambda n: (state(), inputs(n)))
def xs_of_which_some_are_constant(scan, x, n):
    """Forcings of which one is differentiated, and one is not."""

    def step(c, x):
        return move(c) + 0.01 * jnp.sin(x[0] * c + x[1]), None

    return size(scan(step, x[0], (x[1], jnp.cos(inputs(n, 300))))[0])


# -- vmap -----------------------------------------------------------------------------------------
@program(lambda n: (inputs(20, 16), matrix()))
def vmap_in_the_step(scan, x, n):
    """A batch in the carry, of which the step treats each."""
    h, w = x
    cell = jax.vmap(lambda h: h + 0.1 * jnp.tanh(w @ h))
    return size(scan(lambda h, _: (cell(h), None), h, length=n)[0])


@batched(lambda n: (inputs(20, 16), inputs(n, 16, 16) / 16))
def vmap_with_shared_xs(scan, x, n):
    """One network of n layers for a batch."""
    h, layers = x
    end = jax.vmap(lambda h: scan(lambda h, w: (h + 0.1 * jnp.tanh(w @ h), None), h, layers)[0])
    return size(end(h))


@batched(lambda n: (inputs(20, 16), matrix()))
def vmap_with_shared_closure(scan, x, n):
    """One recurrent network for a batch."""
    h, w = x
    end = jax.vmap(lambda h: scan(lambda h, _: (h + 0.1 * jnp.tanh(w @ h), None), h, length=n)[0])
    return size(end(h))


@batched(lambda n: (inputs(20, 16), matrix()))
def vmap_with_shared_carry(scan, x, n):
    """One recurrent network for a batch, its weights in the carry."""

    def end(h, w):
        def step(c, _):
            h, w = c
            return (h + 0.1 * jnp.tanh(w @ h), w), None

        return scan(step, (h, w), length=n)[0][0]

    return size(jax.vmap(end, (0, None))(*x))


@batched(lambda n: (inputs(6, 5, 16), matrix()))
def vmap_twice(scan, x, n):
    """A batch of batches."""
    h, w = x

    def end(h):
        return scan(lambda h, _: (h + 0.1 * jnp.tanh(w @ h), None), h, length=n)[0]

    return size(jax.vmap(jax.vmap(end))(h))


@batched(lambda n: (state(n, 30), inputs(n, 30, 10)))
def vmap_of_xs(scan, x, n):
    """Many forcings of one state; the batch is the last axis."""
    x, xs = x
    end = jax.vmap(lambda xs: scan(lambda c, x: (move(c) + 0.01 * x * c, None), x, xs)[0], 2)
    return size(end(xs))


@batched(lambda n: (inputs(10, 30), inputs(n, 30)))
def vmap_of_init(scan, x, n):
    """Many states under one forcing."""
    h, xs = x
    end = jax.vmap(lambda h: scan(lambda c, x: (move(c) + 0.01 * x * c, None), h, xs)[0])
    return size(end(h))


@batched(lambda n: (state(n, 30), inputs(10, 30)))
def vmap_of_closure(scan, x, n):
    """Many parameters from one state."""
    x, w = x
    end = jax.vmap(lambda w: scan(lambda c, _: (c + 0.01 * jnp.sin(w * c), None), x, length=n)[0])
    return size(end(w))


@batched(lambda n: (inputs(10, 30), inputs(n, 30)))
def vmap_of_all(scan, x, n):
    """States and parameters in a batch, and forcings that are shared by it."""

    def end(h, w, xs):
        return scan(lambda c, x: (c + 0.01 * jnp.sin(w * c + x), c.sum()), h, xs)

    h, ys = jax.vmap(end, (0, 0, None), (0, 1))(x[0], 2 * x[0], x[1])
    return size(h) + size(ys)


@batched(lambda n: inputs(10, 30))
def vmap_with_a_mean(scan, x, n):
    """States that see the mean of the batch at each step."""

    def step(c, _):
        return c + 0.01 * jnp.sin(c + lax.pmean(c, "batch")), None

    return size(jax.vmap(lambda c: scan(step, c, length=n)[0], axis_name="batch")(x))


@batched(lambda n: (inputs(10, 30), state(n, 30)))
def vmap_leaves_a_constant_alone(scan, x, n):
    """A leaf that is passed on, and so is the same for the whole batch."""

    def end(c, k):
        def step(c, _):
            return (c[0] + 0.01 * jnp.sin(c[0]) * c[1], c[1]), None

        return scan(step, (c, k), length=n)[0]

    c, k = jax.vmap(end, (0, None), (0, None))(*x)
    return size(c) + size(k)


@batched(lambda n: (inputs(10, 30), state(n, 30)))
def vmap_leaves_a_leaf_alone(scan, x, n):
    """A leaf that moves, but that is the same for the whole batch; a clock of one's own."""

    def end(c, k):
        def step(c, _):
            c, k, i = c
            return (c + 0.01 * jnp.sin(c) * k, move(k), i + 1), None

        return scan(step, (c, k, 0), length=n)[0]

    c, k, i = jax.vmap(end, (0, None), (0, None, None))(*x)
    return size(c) + i * size(k)


@batched(lambda n: (inputs(10, 30), matrix(30, 30)))
def vmap_of_gradients(scan, x, n):
    """A gradient for each example of a batch."""

    def loss(w, h):
        return size(scan(lambda h, _: (h + 0.1 * jnp.tanh(w @ h), None), h, length=n)[0])

    return size(jax.vmap(jax.grad(loss, 1), (None, 0))(x[1], x[0]))


@batched(lambda n: (state(n, 100), jnp.array([0.3, 0.5, 0.7])))
def jacfwd_of_parameters(scan, x, n):
    """The derivatives of the end by three parameters, in forward mode."""
    x, p = x

    def end(p):
        def step(c, _):
            return c + 0.01 * (p[0] * jnp.sin(c) + p[1] * jnp.cos(p[2] * c)), None

        return scan(step, x, length=n)[0]

    return size(jax.jacfwd(end)(p))


@batched(lambda n: (state(n, 100), jnp.array([0.3, 0.5, 0.7])))
def jacrev_of_parameters(scan, x, n):
    """The derivatives of three results by the parameters, in reverse mode."""
    x, p = x

    def result(p):
        def step(c, _):
            return c + 0.01 * (p[0] * jnp.sin(c) + p[1] * jnp.cos(p[2] * c)), None

        end = scan(step, x, length=n)[0]
        return jnp.stack([end.sum(), size(end), jnp.sin(end).sum()])

    return size(jax.jacrev(result)(p))


# -- ys -------------------------------------------------------------------------------------------
@program(state)
def all_ys(scan, x, n):
    """The trajectory."""
    c, ys = scan(lambda c, _: (move(c), c), x, length=n)
    return size(c) + size(ys)


@program(state)
def some_ys(scan, x, n):
    """Two outputs of which one is used."""
    _, (ys, _) = scan(lambda c, _: (move(c), (c.sum(), jnp.sin(c))), x, length=n)
    return size(ys)


@program(state)
def no_ys(scan, x, n):
    """Outputs that nobody uses."""
    return size(scan(lambda c, _: (move(c), (c, jnp.sin(c))), x, length=n)[0])


@program(state)
def sampled_ys(scan, x, n):
    """Of the trajectory, two numbers a step, and of those the last."""
    c, ys = scan(lambda c, _: (wide(c), c[:2]), x, length=n)
    return size(c) + size(ys[-1])


@program(state)
def integer_ys(scan, x, n):
    """Counts beside the state."""
    c, ys = scan(lambda c, _: (move(c), (c > 0.5).sum()), x, length=n)
    return size(c) * (1.0 + 1e-3 * ys.mean())


@program(lambda n: (state(), inputs(n, 30)))
def ys_that_are_xs(scan, x, n):
    """Outputs that are inputs and constants."""
    c, (xs, ones) = scan(lambda c, x: (move(c) * (1 + 0.01 * x.mean()), (x, 1.0)), *x)
    return size(c) + size(xs) * ones.sum()


# -- Structure ------------------------------------------------------------------------------------
@program(lambda n: (state(), inputs(n, 300)))
def reverse(scan, x, n):
    """A loop from the last input to the first."""
    return size(scan(lambda c, x: (move(c) + 0.01 * x * c, None), *x, reverse=True)[0])


@program(lambda n: (state(), inputs(n)))
def reverse_with_ys(scan, x, n):
    """A loop from the last input to the first, with an output for each."""
    c, ys = scan(lambda c, x: (wide(c) * (1 + 0.01 * x), c.sum()), *x, reverse=True)
    return size(c) + size(ys[0])


@program(lambda n: (state(), inputs(n)))
def unrolled(scan, x, n):
    """Two steps in one."""
    return size(scan(lambda c, x: (move(c) * (1 + 0.01 * x), None), *x, unroll=2)[0])


@program(state)
def scan_in_scan(scan, x, n):
    """Four small steps in each large one."""

    def step(c, _):
        return scan(lambda c, _: (c + 0.002 * jnp.sin(c), None), c, length=4)[0], None

    return size(scan(step, x, length=n)[0])


@program(lambda n: (state(), state(), inputs(n, 3)))
def scan_in_scan_with_closure(scan, x, n):
    """Three small steps with inputs in each large one, and a parameter that both close over."""
    x, w, xs = x

    def step(c, xs):
        return scan(lambda c, x: (c + 0.01 * jnp.sin(w * c + x), c.sum()), c, xs)

    c, ys = scan(step, x, xs)
    return size(c) + size(ys)


@program(lambda n: (state(), state()))
def two_scans(scan, x, n):
    """One loop after another, with one parameter."""
    x, w = x
    x, _ = scan(lambda c, _: (c + 0.01 * jnp.sin(w * c), None), x, length=n)
    return size(scan(lambda c, _: (c + 0.01 * jnp.cos(w * c), None), x, length=n)[0])


@program(state, countable=False)
def under_checkpoint(scan, x, n):
    """A loop that is run again as a whole."""
    end = jax.checkpoint(lambda x: scan(lambda c, _: (move(c), None), x, length=n)[0])
    return size(end(x))


@program(state)
def checkpoint_in_the_step(scan, x, n):
    """A step with its own jax.checkpoint."""
    return size(scan(lambda c, _: (jax.checkpoint(wide)(c), None), x, length=n)[0])


@program(lambda n: (state(), state()))
def jit_in_the_step(scan, x, n):
    """A step that is jitted."""
    x, w = x
    return size(scan(jax.jit(lambda c, _: (c + 0.01 * jnp.sin(w * c), None)), x, length=n)[0])


@program(state)
def cond_in_the_step(scan, x, n):
    """One of two branches, by the state."""

    def step(c, _):
        return lax.cond(c[0] > 0.2, wide, lambda c: 1.01 * c, c), None

    return size(scan(step, x, length=n)[0])


@program(lambda n: (state(), state()))
def switch_in_the_step(scan, x, n):
    """One of three branches, by an input."""
    x, w = x
    branches = [move, lambda c: c + 0.01 * w * c, lambda c: c]
    return size(scan(lambda c, i: (lax.switch(i % 3, branches, c), None), x, jnp.arange(n))[0])


@jax.custom_jvp
def nudged(c):
    """A function with its own derivative, the true one: lax.scan forgets rules in second order."""
    return c + 0.01 * jnp.sin(c)


@nudged.defjvp
def nudged_jvp(primals, tangents):
    return nudged(*primals), (1 + 0.01 * jnp.cos(primals[0])) * tangents[0]


@program(state)
def custom_jvp_in_the_step(scan, x, n):
    """A derivative that is given."""
    return size(scan(lambda c, _: (nudged(c), None), x, length=n)[0])


@program(state)
def stopped_gradient(scan, x, n):
    """A normalization that counts as a constant."""

    def step(c, _):
        return move(c) / lax.stop_gradient(1 + 0.001 * jnp.sqrt(size(c) / 300)), None

    return size(scan(step, x, length=n)[0])
