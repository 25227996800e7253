"""Run by test_plan.py in a process with four devices; prints what a plan gives each of them."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rematax as rx

LENGTH, LIMITS = 200, ("1 MB", "300 kB")


def step(c, _):
    """Diffuse along the axis that is whole, and react."""
    return c + 0.1 * (jnp.roll(c, 1, axis=1) - c) + 0.01 * jnp.sin(c), None


def main():
    """Plan for a field that each device holds a quarter of, and measure what was chosen."""
    assert jax.device_count() == 4
    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        field = jax.device_put(jnp.ones((400, 100)), NamedSharding(mesh, PartitionSpec("i")))

        def needs(snapshots):
            def loss(c):
                c, _ = rx.scan(step, c, length=LENGTH, schedule=rx.Binomial(snapshots))
                return (c**2).sum()

            return rx.measure(jax.grad(loss), field).working_bytes

        for limit in LIMITS:
            found = rx.plan(step, field, length=LENGTH, memory=limit)
            snapshots = found.schedule.snapshots
            print(found.memory_bytes, snapshots, needs(snapshots), needs(snapshots + 2))


if __name__ == "__main__":
    main()
