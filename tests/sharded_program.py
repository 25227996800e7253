"""Run by test_scan_sharding.py in a process with several devices; prints what it checked."""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rematax as rx

SPEC, WHOLE = PartitionSpec("i"), PartitionSpec()
SCHEDULES = {"binomial": rx.Binomial(3), "nested": rx.Nested(2)}


def loss(scan, w, c, xs):
    """Give one number per entry of c, by a step with a closed-over and a stacked input."""

    def step(c, x):
        c = jnp.sin(c * w) + x
        return c, (c**2).sum()

    c, ys = scan(step, c, xs)
    return (c**2).sum() + ys.sum()


def close(a, b):
    """Compare trees of numbers."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-5, atol=1e-6)


def derivatives(fun, args):
    """Take a gradient, a tangent and a Hessian-vector product."""
    gradient = jax.grad(fun, (0, 1, 2))
    ones = jax.tree.map(jnp.ones_like, args)
    return (
        jax.jit(gradient)(*args),
        jax.jit(lambda *a: jax.jvp(fun, a, ones))(*args),
        jax.jit(lambda *a: jax.jvp(gradient, a, ones))(*args),
    )


def main(kind, name):
    """Compare sharded with unsharded."""
    assert jax.device_count() == 4
    scan = partial(rx.scan, schedule=SCHEDULES[name])
    args = jnp.float32(0.7), jnp.linspace(0.1, 1.0, 8), jnp.linspace(0.0, 0.5, 7)
    expected = derivatives(partial(loss, lax.scan), args)
    if kind == "shard_map":
        mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))

        @partial(jax.shard_map, mesh=mesh, in_specs=(WHOLE, SPEC, WHOLE), out_specs=WHOLE)
        def fun(w, c, xs):
            return lax.psum(loss(scan, w, c, xs), "i")

        @partial(jax.shard_map, mesh=mesh, in_specs=(WHOLE, SPEC, WHOLE), out_specs=WHOLE)
        def inside(w, c, xs):  # the gradient taken by each device, for itself
            return jax.grad(lambda w: lax.psum(loss(scan, w, c, xs), "i"))(w)

        close(derivatives(fun, args), expected)
        close(jax.jit(inside)(*args), expected[0][0])
    elif kind == "collective":
        mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))

        def run(scan, w, c, xs):
            def step(c, x):
                return jnp.sin(c * w) + x + 0.1 * lax.pcast(
                    lax.pmean(c, "i"), "i", to="varying"
                ), None

            return lax.psum((scan(step, c, xs)[0] ** 2).sum(), "i")

        if not hasattr(lax, "pcast"):
            return

        def mapped(scan):
            return jax.shard_map(
                partial(run, scan), mesh=mesh, in_specs=(WHOLE, SPEC, WHOLE), out_specs=WHOLE
            )

        close(derivatives(mapped(scan), args), derivatives(mapped(lax.scan), args))
    else:
        axis = AxisType.Explicit if kind == "explicit" else AxisType.Auto
        mesh = jax.make_mesh((4,), ("i",), axis_types=(axis,))
        with jax.set_mesh(mesh):
            w, c, xs = args
            placed = (
                jax.device_put(w, NamedSharding(mesh, WHOLE)),
                jax.device_put(c, NamedSharding(mesh, SPEC)),
                jax.device_put(xs, NamedSharding(mesh, WHOLE)),
            )
            actual = derivatives(partial(loss, scan), placed)
            assert actual[0][1].sharding.spec == SPEC
            close(actual, expected)


if __name__ == "__main__":
    for kind in sys.argv[1].split(","):
        for name in SCHEDULES:
            main(kind, name)
            print("ok", kind, name, flush=True)
