"""The names of JAX's that the engine stands on: a new version breaks them here first."""

import importlib
import inspect

import jax
import jax.numpy as jnp
import pytest

from rematax import _jax

NAMES = [
    "jax.extend.core:ClosedJaxpr",
    "jax.extend.core:Literal",
    "jax.extend.core:Primitive",
    "jax.extend.core:jaxpr_as_fun",
    "jax.interpreters.ad:Zero",
    "jax.interpreters.ad:add_jaxvals",
    "jax.interpreters.ad:instantiate_zeros",
    "jax.interpreters.ad:is_undefined_primal",
    "jax.interpreters.ad:primitive_jvps",
    "jax.interpreters.ad:primitive_transposes",
    "jax.interpreters.batching:broadcast",
    "jax.interpreters.batching:fancy_primitive_batchers",
    "jax.interpreters.mlir:lower_fun",
    "jax.interpreters.mlir:register_lowering",
    "jax.interpreters.partial_eval:custom_partial_eval_rules",
    "jax.interpreters.partial_eval:dce_jaxpr",
    "jax.interpreters.partial_eval:dce_rules",
    "jax.interpreters.partial_eval:partial_eval_jaxpr_custom_rules",
    # What has no public name.
    "jax._src.checkify:checkify_jaxpr",
    "jax._src.checkify:error_checks",
    "jax._src.core:gensym",
    "jax._src.interpreters.ad:jvp_jaxpr",
    "jax._src.interpreters.batching:batch_jaxpr",
    "jax._src.interpreters.batching:moveaxis",
    "jax._src.interpreters.partial_eval:SaveableType",
    "jax._src.interpreters.partial_eval:ensure_enum",
    "jax._src.interpreters.partial_eval:partial_eval_jaxpr_nounits",
    "jax._src.state.discharge:discharge_state",
    "jax._src.traceback_util:register_exclusion",
    "jax.experimental.key_reuse._core:KeyReuseSignature",
    "jax.experimental.key_reuse._core:dynamic_key_reuse_signature",
    "jax.experimental.key_reuse._core:jaxpr_type_signature",
    "jax.experimental.key_reuse._core:key_reuse_signatures",
]


@pytest.mark.parametrize("name", NAMES)
def test_jax_has_the_name(name):
    module, attribute = name.split(":")
    assert hasattr(importlib.import_module(module), attribute)


def test_all_names_are_listed():
    """What the module takes from JAX, by its imports and by its use of modules."""
    source = inspect.getsource(_jax)
    assert source.count("jax._src") == sum(
        line.startswith("from jax._src") for line in source.splitlines()
    )
    for module, short in (("jax.interpreters.ad", "ad"), ("jax._src.checkify", "checkify")):
        used = {part.split("(")[0].split("[")[0] for part in source.split(f" {short}.")[1:]}
        used = {
            "".join(c for c in name.split()[0] if c.isidentifier() or c == "_") for name in used
        }
        assert {f"{module}:{name}" for name in used} <= set(NAMES)


def sine(c, x):
    """One step."""
    return jnp.sin(c) * x, c


def test_a_scan_is_captured():
    call = _jax.captured(sine, 1.0, jnp.arange(4.0))
    assert call.sizes == (0, 1, 1) and call.length == 4 and not call.reverse
    out = call.finish(lambda consts, carry, xs: [carry[0] * 2, xs[0]])
    assert float(out[0]) == 2.0 and out[1].shape == (4,)
    again = _jax.captured(sine, 1.0, jnp.arange(4.0))
    assert again.program is call.program  # traced once
    other = _jax.captured(sine, 1.0, jnp.arange(5.0))
    assert other.program is call.program  # of the same types


def test_what_is_closed_over_is_explicit():
    table = jnp.arange(3.0)

    def outer(w):
        call = _jax.captured(lambda c, _: (c * w + table, None), jnp.ones(3), None, 2)
        assert call.sizes == (2, 1, 0)
        return call.finish(lambda consts, carry, xs: call.plain(consts, carry, xs))[0].sum()

    assert jnp.isfinite(jax.jit(jax.grad(outer))(0.5))


def test_programs_are_doubled_batched_and_pruned():
    program = _jax.traced(lambda a, b, c: [a * b, c], map(jax.typeof, (1.0, 2.0, 3.0)))
    doubled, varies = _jax.double(program, (True, False, False), (False, False))
    assert varies == (True, False)
    assert list(map(float, doubled(1.0, 2.0, 3.0, 10.0))) == [2.0, 3.0, 20.0]
    pruned, needed = _jax.prune(program, (False, True), (False, False, False))
    assert needed == (False, False, True) and float(pruned(3.0)[0]) == 3.0
    swapped = _jax.rearrange(program, [2, 1, 0], [1, 0])
    assert list(map(float, swapped(3.0, 2.0, 1.0))) == [3.0, 2.0]


def test_programs_die_with_their_function():
    import gc
    import weakref

    def fresh():
        def step(c, x):
            return jnp.cos(c) * x, c

        return weakref.ref(_jax.captured(step, 1.0, jnp.arange(4.0)).program)

    programs = [fresh() for _ in range(3)]
    jax.clear_caches()  # JAX's own caches may hold a trace for a while
    gc.collect()
    assert all(program() is None for program in programs)
