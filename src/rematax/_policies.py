"""Names that policies of ``jax.checkpoint`` ask for, beside those that values have.

A policy that asks for a name which no value has saves nothing, and JAX does not say so. What a
policy asks for can be read of those that :mod:`jax.checkpoint_policies` makes; of one that a person
wrote it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import jax

from ._jaxprs import equations, name_in, parameters, sub_jaxprs
from ._tracing import OURS

_MODULE = jax.checkpoint_policies.save_from_both_policies.__module__


def notes_on_names(program: Any, pullback: Any, saved: set[str]) -> list[str]:
    """Say what is wrong with the names that policies ask for.

    Args:
        program: The function's traced program.
        pullback: The program that runs it and its pullback.
        saved: Names of the values that reverse mode keeps.
    """
    asked: dict[Any, None] = {}
    makers: dict[str, list[Any]] = {}
    unused: set[str] = set()
    for eqn, names in _checkpoints(program):
        asked |= dict.fromkeys(sorted(names, key=str))
        for name, maker, is_used in _named(parameters(eqn)["jaxpr"]):
            if is_used:
                makers.setdefault(name, []).append(maker)
            else:
                unused.add(name)
    # With jax_remat3 nothing is marked as computed again, and so this is not said.
    again = {
        name
        for eqn, names in _checkpoints(pullback)
        for name in saved.intersection(names)
        if any(
            _is_same(maker, each)
            for maker in makers.get(name, ())
            for each in equations(parameters(eqn)["jaxpr"])
        )
    }
    notes = (_note(name, makers, unused, again) for name in asked)
    return list(filter(None, notes))


def _note(name: Any, makers: dict[str, list[Any]], unused: set[str], again: set[str]) -> str:
    if not isinstance(name, str):
        return (
            f"{name!r} is a {type(name).__name__}, and no name: give the policy each name by "
            "itself, as in save_only_these_names(*names)."
        )
    if name in again:
        return (
            f"{name!r} is saved, and computed again all the same, since the value is also used "
            "without its name: go on with what checkpoint_name returns. (The derivative of an "
            "exp or tanh uses its result so: there a name cannot help.)"
        )
    if name in makers:
        return ""
    if name in unused:
        return (
            f"{name!r} is the name of a value that is not used: go on with what checkpoint_name "
            "returns."
        )
    there = ", ".join(map(repr, sorted({*makers, *unused})))
    return (
        f"{name!r} is asked for by a policy, but no value inside jax.checkpoint has that name "
        f"({f'there is {there}' if there else 'none has a name'})."
    )


def _checkpoints(closed: Any) -> Iterator[tuple[Any, set[Any]]]:
    """Yield equations of ``jax.checkpoint``, with the names that their policies ask for."""
    for eqn in equations(closed):
        names = _asked_for(parameters(eqn).get("policy"))
        if names:
            yield eqn, names


def _asked_for(policy: Any) -> set[Any]:
    """Read the names of a policy of JAX's own."""
    if isinstance(policy, FunctionType) and policy.__module__ == _MODULE:
        parts = [cell.cell_contents for cell in policy.__closure__ or ()]
    elif type(policy).__module__ == _MODULE:  # since JAX 0.10
        parts = list(vars(policy).values())
    else:
        return set()
    sets = [part for part in parts if isinstance(part, set | frozenset)]
    policies: list[Callable[..., Any]] = [part for part in parts if callable(part)]
    return set().union(*sets, *map(_asked_for, policies))


def _named(closed: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield names, the equations that make what they name, and whether the named value is used."""
    jaxpr = getattr(closed, "jaxpr", closed)
    makers = {id(out): eqn for eqn in jaxpr.eqns for out in eqn.outvars}
    used = {id(v) for eqn in jaxpr.eqns for v in eqn.invars} | set(map(id, jaxpr.outvars))
    for eqn in jaxpr.eqns:
        if name := name_in(eqn):
            yield name, makers.get(id(eqn.invars[0])), id(eqn.outvars[0]) in used
        for inner in sub_jaxprs(eqn):
            yield from _named(inner)


def _is_same(maker: Any, eqn: Any) -> bool:
    """Tell whether an equation computes again what another did: the same, from the same place.

    A derivative comes from the same place too. Most are not among what is marked as computed again,
    but the power in that of a power is.
    """
    return (
        maker is not None
        and "rematted" in str(eqn.source_info.name_stack)
        and maker.primitive is eqn.primitive
        and maker.primitive.name != "pow"
        and maker.params == eqn.params
        and _place(maker) == _place(eqn)
    )


def _place(eqn: Any) -> list[tuple[Any, int]]:
    """List the calls, to the instruction, from which an equation comes.

    Of JAX's own only those count that a person's code made; the others are ways to trace that.
    """
    calls = list(zip(*eqn.source_info.traceback.raw_frames(), strict=True))
    own = [not code.co_filename.startswith(OURS) for code, _ in calls]
    inner = own.index(True) if any(own) else len(own)
    return calls[:inner] + [call for call, is_own in zip(calls, own, strict=True) if is_own]
