"""Read traced programs (jaxprs): what they contain, and which arrays they close over."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ._tracing import is_array


def is_literal(atom: Any) -> bool:
    """Tell whether an atom of a jaxpr is a value written into it, not a variable."""
    return hasattr(atom, "val")


def sub_jaxprs(eqn: Any) -> Iterator[Any]:
    """Yield the jaxprs among an equation's parameters, closed ones as they are."""
    for value in eqn.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(getattr(item, "jaxpr", item), "eqns"):
                yield item


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
