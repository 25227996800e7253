"""A user's program: what the type checkers are to make of it. Checked and run by test_types.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, assert_type

import jax
import jax.numpy as jnp

import rematax as rx


class State(NamedTuple):
    """A carry with a type of its own."""

    position: jax.Array
    velocity: jax.Array


class Output(NamedTuple):
    """A y with a type of its own."""

    energy: jax.Array


def step(state: State, force: jax.Array) -> tuple[State, Output]:
    """Move a point on a spring."""
    velocity = state.velocity + 0.1 * (force - state.position)
    moved = State(state.position + 0.1 * velocity, velocity)
    return moved, Output(velocity**2 + moved.position**2)


rx.use_backend("cpu")
init = State(jnp.asarray(1.0), jnp.asarray(0.0))
forces = jnp.linspace(0.0, 1.0, 20)

# The types of carry and ys are those of the step.
last, outputs = rx.scan(step, init, forces)
assert_type(last, State)
assert_type(outputs, Output)
last, outputs = rx.scan(step, init, forces, reverse=True, unroll=2, schedule=rx.Binomial(3))


def decay(x: jax.Array, _: None) -> tuple[jax.Array, None]:
    """Take no xs, and give no ys."""
    return 0.9 * jnp.sin(x), None


end, nothing = rx.scan(decay, jnp.asarray(1.0), None, 10)
assert_type(end, jax.Array)
assert_type(nothing, None)
end, path = rx.scan(lambda x, _: (0.9 * x, x), jnp.asarray(1.0), length=10)
assert_type(end, jax.Array)

# Schedules are values of one type.
schedules: list[rx.Schedule | None] = [
    None,
    rx.StoreAll(),
    rx.EveryStep(),
    rx.Nested(2),
    rx.Nested(radices=(4, 5), tapes=True),
    rx.Binomial(),
    rx.Binomial(4),
]
for schedule in schedules:
    last, outputs = rx.scan(step, init, forces, schedule=schedule)
    if schedule is not None:
        assert_type(schedule.evaluations(20), int)
        assert_type(schedule.stored(20), tuple[int, int])


def loss_with(schedule: rx.Schedule) -> Callable[[jax.Array], jax.Array]:
    """Give a loss that is differentiated by a schedule."""

    def loss(forces: jax.Array) -> jax.Array:
        last, outputs = rx.scan(step, init, forces, schedule=schedule)
        return last.position**2 + outputs.energy.sum()

    return loss


# A plan gives a schedule.
planned = rx.plan(step, init, forces, memory="1 MB")
assert_type(planned, rx.Plan)
assert_type(planned.schedule, rx.Schedule)
assert_type(planned.candidates, tuple[rx.Candidate, ...])
assert_type(planned.chosen.measured_bytes, int | None)
loss = loss_with(planned.schedule)

# What is measured.
cost = rx.measure(jax.grad(loss), forces)
assert_type(cost, rx.Cost)
assert_type(cost.seconds, float | None)
comparison = rx.compare(
    {"all": jax.grad(loss_with(rx.StoreAll())), "few": jax.grad(loss)}, forces, time=False
)
assert_type(comparison, rx.Comparison)
assert_type(comparison["few"], rx.Cost)
assert_type(comparison.bytes_ratio("few"), float)

# What is kept: an entry is a residual, a part is several.
kept = rx.residuals(loss, forces)
assert_type(kept, rx.Residuals)
assert_type(kept[0], rx.Residual)
assert_type(kept[1:], tuple[rx.Residual, ...])
assert_type([row.bytes for row in kept], list[int])


# What is counted keeps its signature.
@rx.counted
def counted_step(state: State, force: jax.Array) -> tuple[State, Output]:
    """Count how often it runs."""
    return step(state, force)


last, outputs = rx.scan(counted_step, init, forces)
assert_type(counted_step(init, forces[0]), tuple[State, Output])
assert_type(counted_step.calls, int)
counted_step.reset()


class Model:
    """A model whose method is counted."""

    rate = 0.5

    @rx.counted
    def slope(self, x: jax.Array, *, scale: float = 1.0) -> jax.Array:
        """Give the slope."""
        return -self.rate * scale * x


assert_type(Model().slope(forces, scale=2.0), jax.Array)
assert_type(Model.slope.calls, int)

# What is tested.
tested = rx.taylor_test(loss, forces)
assert_type(tested, rx.TaylorTest)
assert_type(tested.passed, bool)
assert_type(rx.describe_backend().name, str)
