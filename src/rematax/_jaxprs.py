"""Read traced programs (jaxprs): their equations, where values come from, what they close over."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ._tracing import is_array


def is_literal(atom: Any) -> bool:
    """Tell whether an atom of a jaxpr is a value written into it, not a variable."""
    return hasattr(atom, "val")


def parameters(eqn: Any) -> Mapping[str, Any]:
    """Return what an equation's operation is told; with jax_remat3, some hold it in an object."""
    return getattr(eqn.params.get("_prim"), "params", eqn.params)


def sub_jaxprs(eqn: Any) -> Iterator[Any]:
    """Yield the jaxprs among an equation's parameters, closed ones as they are."""
    for value in parameters(eqn).values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(getattr(item, "jaxpr", item), "eqns"):
                yield item


def equations(closed: Any) -> Iterator[Any]:
    """Yield the equations of a program, at any depth; those of a loop's body once."""
    for eqn in getattr(closed, "jaxpr", closed).eqns:
        yield eqn
        for inner in sub_jaxprs(eqn):
            yield from equations(inner)


def scan_sizes(eqn: Any) -> tuple[int, ...]:
    """Return the numbers of leaves of consts, carry and x in an equation of ``jax.lax.scan``."""
    params = eqn.params
    if "ft_in" in params:  # JAX 0.12
        return tuple(sum(1 for _ in part) for part in params["ft_in"].unpack())
    rest = len(eqn.invars) - params["num_consts"] - params["num_carry"]
    return params["num_consts"], params["num_carry"], rest


# -- Where a value comes from ---------------------------------------------------------------------
# What JAX puts around a value on its way out, without making a new one.
_WRAPPERS = {"reduce_precision", "copy", "optimization_barrier"}


class Origin(NamedTuple):
    """Where a value of a program comes from.

    Attributes:
        name: The name that it was given by ``checkpoint_name``.
        made_by: The primitive that made it; ``"snapshot"`` for the states that the loop of
            :func:`rematax.scan` keeps, ``"carry"`` for those that a plain one stacks; ``None`` for
            what the program is given.
        length: Number of loop steps, or of snapshots, that are stacked in it.
    """

    name: str | None
    made_by: str | None
    length: int = 1


def origin_of(var: Any, jaxpr: Any) -> Origin:
    """Find where a value comes from, into loops and other programs within the program."""
    makers = {id(out): eqn for eqn in jaxpr.eqns for out in eqn.outvars}
    eqn = makers.get(id(var))
    name = _given_name(var, jaxpr)
    while eqn is not None and (eqn.primitive.name in _WRAPPERS or name_in(eqn)):
        var = eqn.invars[eqn.outvars.index(var)]
        name = name or name_in(eqn) or _given_name(var, jaxpr)
        eqn = makers.get(id(var))
    if eqn is None:
        return Origin(name, None)
    index = eqn.outvars.index(var)
    if index >= len(eqn.outvars) - _snapshots(eqn):
        return Origin(name, "snapshot", var.aval.shape[0])
    inside = []
    for closed in sub_jaxprs(eqn):
        inner = getattr(closed, "jaxpr", closed)
        if len(inner.outvars) != len(eqn.outvars) or is_literal(inner.outvars[index]):
            continue
        inner_name, made_by, length = origin_of(inner.outvars[index], inner)
        if eqn.primitive.name == "scan" and inner.outvars[index].aval.shape != var.aval.shape:
            length *= eqn.params["length"]  # stacked, not carried
            consts, carry, _ = scan_sizes(eqn)
            if any(inner.outvars[index] is v for v in inner.invars[consts : consts + carry]):
                made_by = "carry"
        inside.append(Origin(name or inner_name, made_by or eqn.primitive.name, length))
    # Of the branches of a cond, the one that names the value tells most.
    inside.sort(key=lambda found: found.name is None)
    return inside[0] if inside else Origin(name, eqn.primitive.name)


def _snapshots(eqn: Any) -> int:
    """Return how many of the last outputs of an equation are snapshots of :func:`rematax.scan`."""
    if eqn.primitive.name != "checkpointed_loop":
        return 0
    return sum(getattr(eqn.params["map"], "kept", ()))


def _given_name(var: Any, jaxpr: Any) -> str | None:
    """Return the name that an equation gives to a copy of the value."""
    return next((n for eqn in jaxpr.eqns if (n := name_in(eqn)) and eqn.invars[0] is var), None)


def name_in(eqn: Any) -> str | None:
    """Return the name that ``checkpoint_name`` gives in an equation; most give none."""
    if eqn.primitive.name == "name":
        return eqn.params["name"]
    inner = eqn.params.get("_prim")  # with jax_remat3
    return inner.name if type(inner).__name__ == "CheckpointName" else None


# -- Whether it is a derivative -------------------------------------------------------------------
# JAX writes the transformation that an equation comes from on the stack of its names.
def is_differentiated(closed: Any) -> bool:
    """Tell whether anything in a program comes from forward or reverse mode."""
    return any(_is_of("jvp", eqn) or _is_of("transpose", eqn) for eqn in equations(closed))


def is_gradient(closed: Any) -> bool:
    """Tell whether a program is that of ``jax.grad`` or ``jax.value_and_grad``.

    Its results are pulled back and have the types of arguments, but for one real number.
    """
    jaxpr = getattr(closed, "jaxpr", closed)
    arguments = {(v.aval.shape, v.aval.dtype) for v in jaxpr.invars}
    pulled = [_is_pulled_back(var, jaxpr) for var in jaxpr.outvars]
    rest = [var.aval for var, back in zip(jaxpr.outvars, pulled, strict=True) if not back]
    back = [var.aval for var, back in zip(jaxpr.outvars, pulled, strict=True) if back]
    return (
        bool(back)
        and all((aval.shape, aval.dtype) in arguments for aval in back)
        and (not rest or (len(rest) == 1 and is_real_number(rest[0])))
    )


def is_real_number(aval: Any) -> bool:
    """Tell whether a type is that of one real floating-point number, as a loss is."""
    return aval.shape == () and bool(jnp.issubdtype(aval.dtype, jnp.floating))


def _is_pulled_back(var: Any, jaxpr: Any) -> bool:
    eqn = next((eqn for eqn in jaxpr.eqns if any(out is var for out in eqn.outvars)), None)
    if eqn is None:
        return False
    if _is_of("transpose", eqn):
        return True
    index = eqn.outvars.index(var)
    inner = [getattr(closed, "jaxpr", closed) for closed in sub_jaxprs(eqn)]
    return eqn.primitive.name in ("jit", "pjit") and any(
        _is_pulled_back(each.outvars[index], each) for each in inner
    )


def _is_of(transformation: str, eqn: Any) -> bool:
    stack = getattr(getattr(eqn, "source_info", None), "name_stack", "")
    return f"{transformation}(" in str(stack)


# -- What it closes over --------------------------------------------------------------------------
def hoisted(fun: Callable) -> Callable:
    """Return a function whose jitted parts show the arrays that they close over.

    :func:`jax.make_jaxpr` makes what a function closes over a constant of the program, but what a
    jitted function inside it closes over stays inside. Here such functions are inlined.
    """

    @functools.wraps(fun)
    def inlined(*args):
        program, out = jax.make_jaxpr(fun, return_shape=True)(*args)
        if not any(map(_hides_arrays, program.jaxpr.eqns)):
            return fun(*args)
        leaves = _run_inlined(program, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(out), leaves)

    return inlined


def _hides_arrays(eqn: Any) -> bool:
    return eqn.primitive.name in ("jit", "pjit") and bool(captured_arrays(eqn.params["jaxpr"]))


def _run_inlined(program: Any, args: list[Any]) -> list[Any]:
    jaxpr = program.jaxpr
    values = dict(zip(jaxpr.constvars, program.consts, strict=True))
    values |= dict(zip(jaxpr.invars, args, strict=True))

    def read(atom):
        return atom.val if is_literal(atom) else values[atom]

    for eqn in jaxpr.eqns:
        if _hides_arrays(eqn):
            out = _run_inlined(eqn.params["jaxpr"], [read(atom) for atom in eqn.invars])
        else:
            kept = [var for var in eqn.invars if not is_literal(var)]
            alone = jaxpr.replace(
                constvars=[], invars=kept, outvars=eqn.outvars, eqns=[eqn], effects=eqn.effects
            )
            out = jaxpr_as_fun(ClosedJaxpr(alone, []))(*map(read, kept))
        values |= dict(zip(eqn.outvars, out, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def captured_arrays(closed: Any) -> dict[int, Any]:
    """Return the arrays that a traced program closes over, at any depth, by identity.

    They are constants of a jaxpr or, under some settings of JAX, literals in its equations. What an
    inner program takes from the one around it, while that is traced, is computed and no constant.
    """
    jaxpr = getattr(closed, "jaxpr", closed)
    constants = [c for c in getattr(closed, "consts", ()) if not isinstance(c, jax.core.Tracer)]
    found = {id(c): c for c in constants if is_array(c)}
    for eqn in jaxpr.eqns:
        values = (atom.val for atom in eqn.invars if is_literal(atom))
        found |= {id(v): v for v in values if getattr(v, "shape", ())}
        for inner in sub_jaxprs(eqn):
            found |= captured_arrays(inner)
    return found
