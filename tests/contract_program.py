"""Run by test_scan_contract.py in a process with four devices; prints a verdict per schedule."""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rematax as rx

SCHEDULES = [rx.EveryStep(), rx.Nested(2), rx.Binomial(3)]
P = PartitionSpec
XS = np.linspace(0.1, 1.0, 7, dtype=np.float32)


def mesh_of(kind, shape=(2, 2), names=("x", "y")):
    """Make a mesh whose axes are all of one kind."""
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names))


def place(array, *spec, **kinds):
    """Put an array on the current mesh."""
    return jax.device_put(jnp.asarray(array, jnp.float32), P(*spec, **kinds))


def described(tree):
    """Give values, types and shardings of all leaves."""
    return [
        (np.asarray(leaf), str(jax.typeof(leaf)), str(leaf.sharding))
        for leaf in jax.tree.leaves(tree)
    ]


def refusal(fun, *args):
    """Give the error of a call, without the places where it happened."""
    try:
        fun(*args)
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("not refused")


def types(scan):
    """The step sees, and the derivatives have, the types of an explicit mesh."""
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        c = place(np.linspace(0, 1, 16).reshape(2, 8), None, "x")
        xs = place(np.linspace(0, 1, 128).reshape(8, 8, 2), None, "x", "y")
        seen = []

        @jax.jit
        def run(c, xs):
            def step(c, x):
                seen.append((str(jax.typeof(c)), str(jax.typeof(x))))
                y = jnp.einsum("ab,bc->ac", c, x, out_sharding=P(None, "y"))
                z = jnp.einsum("ab,bc->ac", jnp.tanh(y), x.T, out_sharding=P(None, "x"))
                return z, y

            return scan(step, c, xs)

        def loss(c, xs):
            c, ys = run(c, xs)
            return (c**2).sum() + (ys**3).sum()

        gradient = jax.grad(loss, (0, 1))
        out = (
            run(c, xs),
            run.lower(c, xs).compile()(c, xs),
            jax.jit(gradient)(c, xs),
            jax.jit(lambda *a: jax.jvp(loss, a, a))(c, xs),
            jax.jit(lambda *a: jax.jvp(gradient, a, a))(c, xs),
        )
        return described(out), [sorted(set(seen))]


def refusals(scan):
    """A carry that changes its sharding is refused in the words of lax.scan."""
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        c = place(np.zeros(4), "x")

        def changing(c, _):
            return jax.reshard(c, P()), None

        return refusal(jax.jit(lambda c: scan(changing, c, length=2)), c)


def sharded_steps(scan):
    """What is sharded along the scanned axis is refused, in one sentence of ours."""
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        c, xs = place(np.zeros(4)), {"a": place(np.zeros((4, 4)), "x", None)}

        def run(c, xs):
            return scan(lambda c, x: (c + x["a"].sum(), c), c, xs)

        refused = refusal(run, c, xs), refusal(jax.jit(run), c, xs)
    for kind, text in refused if scan is not lax.scan else ():
        words = text.split("\n-----")[0]  # what follows is JAX's, on its tracebacks
        assert "\n" not in words and "'x'" in words and "jax.reshard" in words, words
        assert words.startswith("rx.scan: xs['a'] is sharded along its leading axis"), words
        assert kind == "ValueError"
    return [kind for kind, _ in refused]


def unroll(scan):
    """Unrolled in an explicit mesh."""
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        c, xs = place(np.ones(8), "y"), place(np.ones((8, 8)), None, "y")
        step = lambda c, x: (jnp.sin(c) + x, x * c)  # noqa: E731
        run = jax.jit(lambda c, xs: scan(step, c, xs, unroll=2))
        loss = lambda *a: sum((leaf**2).sum() for leaf in run(*a))  # noqa: E731
        return described((run(c, xs), jax.jit(jax.grad(loss, (0, 1)))(c, xs)))


def auto_axes(scan):
    """A step that leaves the explicit mesh for a moment."""
    if not hasattr(jax.sharding, "auto_axes"):
        return "lacking: jax.sharding.auto_axes"
    with jax.set_mesh(mesh_of(AxisType.Explicit)):

        def loss(w, c):
            @partial(jax.sharding.auto_axes, out_sharding=P())
            def model(c):
                return jnp.sin(w * c)

            return scan(lambda c, _: (model(c), None), c, length=4)[0]

        return described(jax.jit(jax.value_and_grad(loss, (0, 1)))(*np.float32([0.9, 0.7])))


def reduced(scan):
    """Gradients by replicated parameters stay partial sums on each device."""
    try:
        spec = P(reduced={"x"})
    except TypeError:
        return "lacking: PartitionSpec(reduced=...)"
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        layers = jax.device_put(jnp.full((3, 4, 4), 0.3), spec)
        batch = place(np.linspace(0, 1, 16).reshape(4, 4), "x", None)
        seen = []

        def loss(layers, batch):
            out, _ = scan(lambda h, w: (jnp.tanh(h @ w), None), batch, layers)
            return (out**2).sum()

        def closed(layers, batch):
            out, _ = scan(lambda h, _: (jnp.tanh(h @ layers[0]), None), batch, length=5)
            return (out**2).sum()

        @partial(jax.jit, static_argnums=0)
        def gradient(loss, layers, batch):
            gradient = jax.grad(loss)(layers, batch)
            seen.append(str(jax.typeof(gradient)))
            return jax.reshard(gradient, P())

        return described([gradient(f, layers, batch) for f in (loss, closed)]), [seen]


def microbatches(scan):
    """Sums of partial gradients carried by an outer loop, and a mapped loss."""
    try:
        kinds = P(reduced={"x"}), P(unreduced={"x"})
    except TypeError:
        return "lacking: PartitionSpec(reduced=...)"
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        layers = jax.device_put(jnp.full((3, 4, 4), 0.3), kinds[0])
        batches = place(np.linspace(0, 1, 48).reshape(3, 4, 4), None, "x", None)

        def loss(layers, batch):
            out, _ = scan(lambda h, w: (jnp.tanh(h @ w), None), batch, layers)
            return (out**2).sum()

        @jax.jit
        def summed(layers, batches):
            def step(total, batch):
                return total + jax.grad(loss)(layers, batch), None

            zero = jax.reshard(jnp.zeros_like(layers), kinds[1])
            return jax.reshard(scan(step, zero, batches)[0], P())

        mapped = jax.jit(jax.vmap(jax.value_and_grad(loss), (None, 0)))
        value, gradient = mapped(layers, batches)
        return described([summed(layers, batches), value]), [str(jax.typeof(gradient))]


def spmd_axis_name(scan):
    """A constraint on the sharding in the step, under vmap over a named axis of the mesh."""
    mesh = mesh_of(AxisType.Auto)
    x = jnp.arange(64.0).reshape(4, 4, 4)

    def step(c, _):
        return lax.with_sharding_constraint(jnp.sin(c), NamedSharding(mesh, P("x", None))), None

    def run(c):
        return scan(step, c, length=3)[0]

    mapped = jax.jit(jax.vmap(run, spmd_axis_name="y"))
    gradient = jax.jit(jax.grad(lambda x: (jax.vmap(run, spmd_axis_name="y")(x) ** 2).sum()))
    return described((mapped(x), gradient(x)))


def keys(scan):
    """Random keys as a sharded carry."""
    mesh = mesh_of(AxisType.Auto)

    @jax.jit
    def run(xs):
        def step(keys, x):
            return jax.vmap(jax.random.fold_in)(keys, x), jax.vmap(jax.random.normal)(keys)

        start = jnp.broadcast_to(jax.random.key(0), xs.shape[1:])
        keys, ys = scan(step, start, xs)
        return jax.random.key_data(keys), ys

    xs = jax.device_put(np.arange(28).reshape(7, 4), NamedSharding(mesh, P(None, "x")))
    return [np.asarray(leaf) for leaf in jax.tree.leaves((run(xs), run(np.asarray(xs))))]


def mapped_over(mesh, in_specs, out_specs):
    """Decorate with shard_map."""
    return partial(jax.shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def axis_index(scan):
    """The place of a device, asked for by the step, also under checkpoint and gradient."""
    mesh = mesh_of(AxisType.Auto, (4,), ("x",))

    @mapped_over(mesh, P("x"), P("x"))
    def run(c):
        def step(c, x):
            return jnp.sin(c) * (1.0 + lax.axis_index("x").astype(c.dtype)) * x, lax.axis_index("x")

        c, where = scan(step, c, lax.pcast(XS, "x", to="varying"))
        return c + where.sum().astype(c.dtype)

    loss = lambda c: (run(c) ** 2).sum()  # noqa: E731
    c = jnp.linspace(0, 1, 8)
    return described(
        (
            jax.jit(run)(c),
            jax.jit(jax.grad(loss))(c),
            jax.jit(jax.grad(lambda c: (jax.checkpoint(run)(c) ** 2).sum()))(c),
        )
    )


def varying(scan):
    """Carries that are moved around and vary over different axes of the mesh."""
    if not hasattr(lax, "pcast"):
        return "lacking: lax.pcast"
    mesh = mesh_of(AxisType.Auto)
    specs = P(), P("x"), P(("x", "y"))

    @mapped_over(mesh, specs, P(("x", "y")))
    def run(a, b, c):
        a, b, c = a.sum(), b.sum(), c.sum()

        def step(carry, x):
            first, *rest = carry
            return (*rest, jnp.sin(first) * x + lax.pcast(lax.psum(first, "x"), "x", to="varying")
                    ), None  # fmt: skip

        a = lax.pcast(a, ("x", "y"), to="varying")
        b = lax.pcast(b, "y", to="varying")
        out, _ = scan(step, (a, b, c), XS)
        return jnp.stack(out)

    args = (jnp.linspace(0, 1, 4),) * 3
    loss = lambda *a: (run(*a) ** 2).sum()  # noqa: E731
    return described((jax.jit(run)(*args), jax.jit(jax.grad(loss, (0, 1, 2)))(*args)))


def varying_refusals(scan):
    """Carries that come to vary are refused, with the advice of lax.scan."""
    mesh = mesh_of(AxisType.Auto)
    x = jnp.arange(8.0)

    def over(specs, order):
        def run(*carry):
            return scan(lambda c, _: (tuple(c[i] for i in order), ()), carry, (), 2)[0]

        return mapped_over(mesh, specs, P(("x", "y")))(run)

    return [
        refusal(over((P("x"), P()), (1, 0)), x, x),
        refusal(over((P("x"), P(), P(("x", "y"))), (2, 0, 1)), x, x, x),
    ]


def replication(scan):
    """What a loop returns is known to be the same on all devices, or known not to be."""
    mesh = mesh_of(AxisType.Auto)
    specs = P(), P("x"), P(("x", "y"))

    def run(*carry):
        carry = [leaf.sum() for leaf in carry]
        out, _ = scan(lambda c, _: (c, None), carry, length=3)
        return [leaf[None] for leaf in out]

    args = (jnp.arange(4.0),) * 3
    kept = mapped_over(mesh, specs, list(specs))(run)
    wrong = mapped_over(mesh, specs, [P(), P(), P(("x", "y"))])(run)
    return described((kept(*args), jax.jit(kept)(*args))), [refusal(wrong, *args)[0]]


def custom_vjp(scan):
    """A custom rule in the step, in shard_map."""
    mesh = mesh_of(AxisType.Auto, (4,), ("x",))
    double = jax.custom_vjp(lambda x: 2.0 * x)
    double.defvjp(lambda x: (2.0 * x, None), lambda _, ct: (3.0 * ct,))

    @mapped_over(mesh, P("x"), P("x"))
    def run(c):
        return scan(lambda c, _: (double(c), None), c, length=3)[0] * c

    c = jnp.arange(4.0)
    loss = lambda c: run(c).sum()  # noqa: E731
    return described((run(c), jax.value_and_grad(loss)(c), jax.jit(jax.grad(loss))(c)))


def same(ours, theirs):
    """Compare two results: arrays nearly, all else exactly; say where they differ."""
    if isinstance(theirs, np.ndarray):
        if not np.allclose(ours, theirs, rtol=1e-4, atol=1e-5):
            return f"{ours} is not {theirs}"
        return None
    if isinstance(theirs, (list, tuple)):
        if len(ours) != len(theirs):
            return f"{ours} is not {theirs}"
        return next(filter(None, map(same, ours, theirs)), None)
    return None if ours == theirs else f"{ours!r} is not {theirs!r}"


def verdict(kind, schedule, theirs):
    """Compare a schedule with lax.scan."""
    try:
        difference = same(kind(partial(rx.scan, schedule=schedule)), theirs)
    except Exception as error:
        difference = f"{type(error).__name__}: {error}"
    return " ".join((difference or "ok").split())


def expected(kind):
    """Run a kind with lax.scan; a text says what this JAX lacks."""
    try:
        return kind(lax.scan)
    except Exception as error:
        text = f"lacking: lax.scan gives {type(error).__name__}: {error}"
        return " ".join(text.split())[:200]


if __name__ == "__main__":
    assert jax.device_count() == 4
    for name in sys.argv[1].split(","):
        kind = globals()[name]
        theirs = expected(kind)
        for schedule in SCHEDULES:
            lacking = isinstance(theirs, str)
            result = theirs if lacking else verdict(kind, schedule, theirs)
            print(f"{name} {schedule!r}: {result}", flush=True)
