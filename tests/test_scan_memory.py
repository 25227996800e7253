"""The promise is what runs: evaluations counted, bytes measured, programs compared."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import rematax as rx
from scan_helpers import OLD_REMAT3, Counted, temp_bytes, with_schedule

COUNTED = [
    (rx.StoreAll(), 37),
    (rx.EveryStep(), 37),
    (rx.Nested(1), 11),
    (rx.Nested(2), 36),
    (rx.Nested(2), 37),
    (rx.Nested(3), 37),
    (rx.Nested(2, tapes=True), 37),
    (rx.Nested(radices=(4, 10)), 7),
    (rx.Nested(2), 1),
    *[(rx.Binomial(s), n) for s, n in ((1, 9), (4, 37), (7, 100), (100, 37), (2, 20), (5, 1))],
    *[(rx.Binomial(), n) for n in (1, 2, 3, 50)],
]


@pytest.mark.parametrize(("schedule", "n"), COUNTED, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_evaluations_are_as_promised(schedule, n, reverse):
    counted = Counted(lambda c, x: (jnp.sin(c) * x, c.sum()))

    def loss(c, xs):
        c, ys = rx.scan(counted, c, xs, reverse=reverse, schedule=schedule)
        return (c**2).sum() + (ys**2).sum()

    gradient = jax.jit(jax.value_and_grad(loss, (0, 1)))
    xs = jnp.linspace(0.5, 1.0, n)
    jax.block_until_ready(gradient(jnp.ones(3), xs))
    calls = counted.calls()
    if OLD_REMAT3 and calls == schedule.evaluations(n) - 1:
        pytest.xfail("JAX 0.10 with jax_remat3 runs a block of one step once less")
    assert calls == schedule.evaluations(n)
    traces = counted.traces
    jax.block_until_ready(gradient(jnp.ones(3), xs))  # traces nothing, and runs as often
    assert counted.traces == traces <= 2 and counted.calls() == schedule.evaluations(n)


def wide(carry, _):
    """A step whose tape is many states."""
    for _ in range(4):
        carry = jnp.sin(carry) * jnp.cos(0.3 * carry) + 0.1 * jnp.tanh(carry)
    return carry, None


def gradient_of(n, schedule, step=wide):
    return jax.value_and_grad(
        lambda c: (rx.scan(step, c, None, n, schedule=schedule)[0] ** 2).sum()
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("s", [3, 10, 40])
def test_bytes_of_binomial_are_s_states_and_do_not_grow(s):
    c = jnp.linspace(0.1, 1.0, 4000)
    state = c.nbytes
    _, pullback = jax.eval_shape(lambda c: jax.vjp(lambda c: wide(c, None)[0], c), c)
    tape = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pullback))
    assert tape > 5 * state
    short, long = (temp_bytes(gradient_of(n, rx.Binomial(s)), c) for n in (1000, 2000))
    assert abs(long - short) < 0.01 * state
    assert long <= (s + 8) * state + 1.5 * tape


@pytest.mark.usefixtures("x64")
def test_bytes_of_the_structural_schedules():
    c, n = jnp.linspace(0.1, 1.0, 4000), 400
    state = c.nbytes
    every, nested = (temp_bytes(gradient_of(n, s), c) for s in (rx.EveryStep(), rx.Nested(2)))
    assert n * state < every < (n + 40) * state
    assert nested < (20 + 20 + 40) * state
    assert temp_bytes(gradient_of(n, rx.StoreAll()), c) > 4 * every


def test_store_all_compiles_to_what_lax_scan_does():
    def gradient(scan):
        fun = jax.value_and_grad(lambda c: (scan(wide, c, None, 64)[0] ** 2).sum())
        text = jax.jit(fun).lower(jnp.ones(8)).compile().as_text()
        return re.sub(r"metadata=\{.*?\}|(?s:\n(FileNames|FunctionNames).*?\n\n)", "", text)

    ours, theirs = gradient(with_schedule(rx.StoreAll())), gradient(lax.scan)
    body = re.compile(r"^ENTRY.*|^%.*|^  .*", re.MULTILINE)
    assert body.findall(ours) == body.findall(theirs)
    jaxpr = jax.make_jaxpr(lambda scan: scan(wide, jnp.ones(8), None, 64), static_argnums=0)
    assert str(jaxpr(with_schedule(rx.StoreAll()))) == str(jaxpr(lax.scan))


def without_numbers(program):
    return re.sub(r'dense<.*?>|"0x.*?"|\d+', "", program)


def test_the_program_grows_by_integer_tables_only():
    sizes = set()
    for n in (100, 1000, 10_000):
        lowered = jax.jit(gradient_of(n, rx.Binomial(10))).lower(jnp.ones(3))
        text = lowered.as_text()
        sizes.add(len(without_numbers(text)))
        tables = re.findall(r"stablehlo.constant dense<[^>]*> : tensor<(\d+)xi32>", text)
        assert tables and 4 * sum(map(int, tables)) <= 8 * n
    assert max(sizes) - min(sizes) < 100


@pytest.mark.parametrize("schedule", [None, rx.Binomial(), rx.Nested()], ids=repr)
def test_a_million_steps_compile_as_ten_thousand_do(schedule):
    """The step is traced as often, and the compiler is given as long a program."""

    def lowered(n):
        traces = []

        def step(c, _):
            traces.append(n)
            return jnp.sin(c), None

        def end(c):
            return rx.scan(step, c, None, n, schedule=schedule)[0]

        program = jax.jit(jax.grad(end)).lower(1.0)
        return program, len(traces), len(without_numbers(program.as_text()))

    (_, traces, length), (program, more_traces, longer) = lowered(10**4), lowered(10**6)
    assert traces == more_traces == 1 and abs(longer - length) < 100
    assert program.compile().memory_analysis().temp_size_in_bytes < 100_000
