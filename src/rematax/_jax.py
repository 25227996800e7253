r"""All that touches JAX's extension points: programs taken apart, and one primitive for the loop.

**Programs.** ``jax.lax.scan`` traces a step and keeps the trace; :func:`captured` reads the step's
program out of it, its closed-over values explicit. So whatever ``jax.lax.scan`` says of a wrong
step is said in its words, and a function is traced once for its types. What is made of a program
is made by JAX's own transformations of programs: :func:`double` (tangents along with values),
:func:`batch` (over a mapped axis), :func:`prune` (dead code left out).

**The primitive.** A loop that recomputes is one equation, ``checkpointed_loop``. Its parameters
are a :class:`Map`, which knows its own derivative, transpose, batched form and so on, and the
program that runs, so that whatever looks at programs (effects, printing, checkify, the key-reuse
checker) can look inside. The rules below translate between JAX and the map, and do nothing else.

Checked on JAX 0.8.2, 0.10.2 and 0.12.0.1, with ``jax_remat3`` off and (where it exists) on;
``tests/test_jax.py`` says which of the names used here is missing, should one be.
"""

from __future__ import annotations

import abc
import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import checkify, traceback_util
from jax._src.core import gensym
from jax._src.interpreters import batching as batching_internal
from jax._src.interpreters import partial_eval as pe_internal
from jax._src.interpreters.ad import jvp_jaxpr
from jax._src.interpreters.batching import batch_jaxpr
from jax._src.state import discharge
from jax.experimental.key_reuse import _core as key_reuse
from jax.extend.core import ClosedJaxpr, Literal, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from ._jaxprs import scan_sizes, sub_jaxprs

_SAVED = pe_internal.SaveableType

PyTree = Any
Leaves = list[Any]
Mask = tuple[bool, ...]
Make = TypeVar("Make", bound=Callable[..., Any])

traceback_util.register_exclusion(__file__)


# -- Programs -------------------------------------------------------------------------------------
class Program:
    """A traced function of a flat list of arrays, which closes over nothing.

    Two are equal only if they are one. Programs and compiled functions made of one are kept beside
    it in ``derived``, and are gone when it is.
    """

    __slots__ = ("__weakref__", "closed", "derived")

    def __init__(self, closed: Any) -> None:
        self.closed = closed
        self.derived: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"Program({len(self.closed.jaxpr.eqns)} equations)"

    def __call__(self, *args: Any) -> list[Any]:
        """Run it, operation by operation."""
        return list(jaxpr_as_fun(self.closed)(*args))

    @property
    def in_types(self) -> list[Any]:
        """Abstract values of the inputs."""
        return list(self.closed.in_avals)

    @property
    def out_types(self) -> list[Any]:
        """Abstract values of the outputs."""
        return list(self.closed.out_avals)


def remembered(make: Make) -> Make:
    """Keep the results of a method beside its owner's program, for as long as that lives."""

    @functools.wraps(make)
    def cached(owner: Any, *args: Any) -> Any:
        derived = owner.program.derived
        key = make, owner, args
        if key not in derived:
            derived[key] = make(owner, *args)
        return derived[key]

    return cast(Make, cached)


def double(
    program: Program, nonzero: Sequence[bool], instantiate: Sequence[bool]
) -> tuple[Program, Mask]:
    """Give the program of values and tangents.

    Args:
        program: The program.
        nonzero: Mask of the inputs that have tangents.
        instantiate: Mask of the outputs whose tangent is written out even where it is zero.

    Returns:
        The program of the inputs followed by the tangents given, that returns the outputs followed
        by their tangents; and the mask of the outputs that have one.
    """
    closed, varies = jvp_jaxpr(program.closed, list(nonzero), list(instantiate))
    return Program(closed), tuple(varies)


def batch(
    program: Program, axis: Any, mapped: Sequence[bool], instantiate: Sequence[bool]
) -> tuple[Program, Mask]:
    """Give the program over a mapped axis, and the mask of its mapped outputs.

    Args:
        program: The program.
        axis: The axis, as a batching rule is told it.
        mapped: Mask of the inputs that have the axis, as their first.
        instantiate: Mask of the outputs that are to have it, whether they depend on it or not.
    """
    closed, out = batch_jaxpr(program.closed, axis, list(mapped), list(instantiate))
    return Program(closed), tuple(out)


def prune(
    program: Program, used: Sequence[bool], instantiate: Sequence[bool]
) -> tuple[Program, Mask]:
    """Give the program of the used outputs alone, and the mask of the inputs that it needs.

    Args:
        program: The program.
        used: Mask of the outputs.
        instantiate: Mask of the inputs that are kept even where they are not needed.
    """
    jaxpr, needed = pe.dce_jaxpr(program.closed.jaxpr, list(used), list(instantiate))
    return Program(ClosedJaxpr(jaxpr, program.closed.consts)), tuple(needed)


def known(program: Program, unknown: Sequence[bool]) -> tuple[Program, Mask]:
    """Give the program of the outputs that do not depend on unknown inputs, and their mask."""
    closed, _, unknown_out, residuals = pe_internal.partial_eval_jaxpr_nounits(
        program.closed, list(unknown), False
    )
    used = [True] * (len(closed.out_avals) - len(residuals)) + [False] * len(residuals)
    found, _ = prune(Program(closed), used, [True] * len(closed.in_avals))
    return found, tuple(not u for u in unknown_out)


def rearrange(program: Program, inputs: Sequence[int], outputs: Sequence[int]) -> Program:
    """Give the program with its inputs and outputs in another order."""
    jaxpr = program.closed.jaxpr
    jaxpr = jaxpr.replace(
        invars=[jaxpr.invars[i] for i in inputs],
        outvars=[jaxpr.outvars[i] for i in outputs],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return Program(ClosedJaxpr(jaxpr, program.closed.consts))


def traced(fun: Callable[..., Any], types: Sequence[Any]) -> Program:
    """Trace a function of a flat list of arrays that closes over constants only."""
    with jax.debug_key_reuse(False):  # checked where the equation stands
        return Program(jax.make_jaxpr(fun)(*types))


def is_one_way(program: Program) -> bool:
    """Tell whether a program of tangents can only be transposed, as that of a custom_vjp."""

    def inside(closed: Any) -> bool:
        eqns = getattr(closed, "jaxpr", closed).eqns
        return any(
            eqn.primitive.name == "custom_lin" or any(map(inside, sub_jaxprs(eqn))) for eqn in eqns
        )

    if "one way" not in program.derived:
        program.derived["one way"] = inside(program.closed)
    return bool(program.derived["one way"])


def stacked(program: Program, fixed: int, free: Sequence[int]) -> list[Any]:
    """Find what a loop would stack: types of the distinct outputs that differ from step to step.

    Args:
        program: The program of a step.
        fixed: Number of its first inputs that are the same in each step.
        free: Inputs that are stacked already.
    """
    jaxpr = program.closed.jaxpr
    varies = set(jaxpr.invars[fixed:])
    for eqn in jaxpr.eqns:
        if any(v in varies for v in eqn.invars if not isinstance(v, Literal)):
            varies.update(eqn.outvars)
    there = {jaxpr.invars[i] for i in free}
    out = dict.fromkeys(v for v in jaxpr.outvars if not isinstance(v, Literal))
    return [v.aval for v in out if v in varies and v not in there]


# -- A scan, as JAX traces it ---------------------------------------------------------------------
class Captured(NamedTuple):
    """A call of ``jax.lax.scan``, traced and not run.

    Attributes:
        program: The step, a program of consts, carry and x that returns carry and y.
        sizes: Numbers of leaves of consts, carry and x.
        length, reverse, unroll: Of the loop.
        effects: Names of what the step does beside computing; see :func:`_effect_name`.
        plain: ``plain(consts, carry, xs)`` runs the scan as ``jax.lax.scan`` does.
        finish: ``finish(run)`` calls ``run(consts, carry, xs)`` in the place of the scan, and
            returns what the scan returns; ``run`` gets and gives flat lists of leaves.
    """

    program: Program
    sizes: tuple[int, ...]
    length: int
    reverse: bool
    unroll: int
    effects: frozenset[str]
    plain: Callable[..., list[Any]]
    finish: Callable[[Callable[..., Any]], PyTree]


UNREPEATABLE = frozenset({"ordered", "writes", "lends"})
"""Effects that must happen once and in order.

Ordered callbacks, writes to mutable arrays, and mutable arrays that the step lends to a function
with a rule of its own, which may write to them.
"""

_programs: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()


def captured(f: Callable[..., Any], init: PyTree, xs: PyTree, *options: Any) -> Captured:
    """Trace ``jax.lax.scan(f, init, xs, *options)``.

    Raises:
        Whatever ``jax.lax.scan`` raises.
    """

    def scan(init: PyTree, xs: PyTree) -> Any:
        return lax.scan(f, init, xs, *options)

    closed, shapes = jax.make_jaxpr(scan, return_shape=True)(init, xs)
    jaxpr = closed.jaxpr
    (loop,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan")
    params, sizes = loop.params, scan_sizes(loop)
    program, effects = _program_of(f, params["jaxpr"])
    if any(is_ref_type(atom.aval) for atom in loop.invars) and "refs" not in effects:
        effects |= {"lends"}

    def finish(run: Callable[..., Any]) -> PyTree:
        values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        leaves = jax.tree.leaves((init, xs))
        values |= dict(zip(jaxpr.invars, leaves, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else values[atom]

        for eqn in jaxpr.eqns:
            args = [read(atom) for atom in eqn.invars]
            if eqn is loop:
                if not effects & UNREPEATABLE:  # the program takes the values instead
                    args = [a[...] if is_ref(a) else a for a in args]
                out = run(*divide(args, sizes))
            else:  # a conversion of Python scalars, or an array of no length
                out = eqn.primitive.bind(*args, **eqn.params)
                out = out if eqn.primitive.multiple_results else [out]
            values |= dict(zip(eqn.outvars, out, strict=True))
        out = [read(atom) for atom in jaxpr.outvars]
        return jax.tree.unflatten(jax.tree.structure(shapes), out)

    def plain(*parts: Any) -> list[Any]:
        return list(loop.primitive.bind(*(leaf for part in parts for leaf in part), **params))

    length, reverse, unroll = params["length"], params["reverse"], params["unroll"]
    return Captured(program, sizes, length, reverse, unroll, effects, plain, finish)


def _program_of(f: Callable[..., Any], closed: Any) -> tuple[Program, frozenset[str]]:
    """Give the step's program, the same for the same trace, without references that are only read.

    It lives as long as the function: who holds the function finds what was compiled.
    """
    try:
        known = _programs.setdefault(f, {})
    except TypeError:  # no weak references to it, or no hash
        known = {}
    if id(closed) not in known:
        effects = frozenset(filter(None, map(_effect_name, closed.effects)))
        program = Program(closed)
        if "refs" in effects and not effects & UNREPEATABLE:
            program = _discharged(program)
        known[id(closed)] = closed, program, effects  # the first keeps its id from being reused
    _, program, effects = known[id(closed)]
    return program, effects


def _effect_name(effect: Any) -> str | None:
    """Name an effect, of the kinds that JAX has no public names for."""
    names = {kind.__name__ for kind in type(effect).__mro__}
    if names & {"WriteEffect", "AccumEffect"}:
        return "writes"
    if names & {"RefEffect", "InternalMutableArrayEffect"}:
        return "refs"
    name = type(effect).__name__
    return "ordered" if name.startswith("Ordered") else None


def _discharged(program: Program) -> Program:
    """Take values instead of references; what is a reference within the step becomes a value."""
    closed, size = program.closed, len(program.out_types)
    discharge_state: Any = discharge.discharge_state  # which takes other things by version
    if jax.__version_info__ < (0, 9):
        closed = ClosedJaxpr(*discharge_state(closed.jaxpr, closed.consts))
    else:
        closed = discharge_state(closed)
    more = len(closed.out_avals) - size
    return prune(Program(closed), [True] * size + [False] * more, [True] * len(closed.in_avals))[0]


def is_ref(x: Any) -> bool:
    """Tell whether a value is a mutable array."""
    return is_ref_type(jax.typeof(x))


def is_ref_type(aval: Any) -> bool:
    """Tell whether an abstract value is that of a mutable array."""
    return hasattr(aval, "inner_aval")


def pick(leaves: Sequence[Any], chosen: Sequence[bool]) -> Leaves:
    """Keep the marked leaves."""
    return [leaf for leaf, take in zip(leaves, chosen, strict=True) if take]


def divide(leaves: Sequence[Any], sizes: Sequence[int]) -> list[list[Any]]:
    """Cut a list into parts of the given sizes, which it has to fill."""
    parts, start = [], 0
    for size in sizes:
        parts.append(list(leaves[start : start + size]))
        start += size
    if start != len(leaves):
        raise AssertionError(f"{len(leaves)} leaves are not {tuple(sizes)}.")
    return parts


# -- The primitive --------------------------------------------------------------------------------
class Split(NamedTuple):
    """A map taken apart for partial evaluation: what needs no tangents, what is linear in them.

    Attributes:
        known: The map of known inputs.
        known_inputs: Which inputs it takes.
        known_outputs: Which outputs its outputs are; None for what is there for ``linear`` alone.
        residuals: Which outputs of ``known`` the map ``linear`` takes.
        linear: The map that is linear in the unknown inputs.
        linear_inputs: Which inputs it takes, before the residuals.
        linear_outputs: Which outputs its outputs are.
    """

    known: Map
    known_inputs: list[int]
    known_outputs: list[int | None]
    residuals: list[int]
    linear: Map
    linear_inputs: list[int]
    linear_outputs: list[int]


class Pruned(NamedTuple):
    """A map of fewer outputs: the map, and masks of the inputs and outputs that it has left."""

    map: Map
    inputs: Mask
    outputs: Mask


class Map(abc.ABC):
    """A function of flat lists of arrays that knows how it is transformed.

    Maps are immutable, and equal ones hash alike. Tangents and cotangents that are zero are None.
    """

    @property
    @abc.abstractmethod
    def program(self) -> Program:
        """The step, beside which is kept what is made of this map."""

    @property
    def once(self) -> Map | None:
        """What of it has not been run before; None if it only repeats."""
        return None

    @abc.abstractmethod
    def evaluate(self, *args: Any) -> Leaves:
        """Compute the outputs, in JAX's own terms."""

    @abc.abstractmethod
    def jvp(self, args: Leaves, tangents: Leaves) -> tuple[Leaves, Leaves]:
        """Give outputs and their tangents."""

    @abc.abstractmethod
    def transpose(self, cotangents: Leaves, args: Leaves, linear: Mask) -> Leaves:
        """Give the cotangents of the inputs marked as linear, whose values are not known."""

    @abc.abstractmethod
    def batched(self, axis: Any, args: Leaves, axes: Leaves) -> tuple[Leaves, Leaves]:
        """Give outputs over a mapped axis, and where each has it; None for nowhere."""

    @abc.abstractmethod
    def split(self, unknown: Mask) -> Split | None:
        """Take the map apart, if it is linear in what is unknown."""

    @abc.abstractmethod
    def pruned(self, used: Mask) -> Pruned:
        """Leave out what the used outputs do not need."""

    @remembered
    def traced(self, types: tuple[Any, ...]) -> Program:
        """Give the program that runs."""
        return traced(lambda *args: self.evaluate(*args), types)

    @remembered
    def compiled(self, jaxpr: Any) -> Callable[..., Leaves]:
        """Give the program as a compiled function."""
        return jax.jit(jaxpr_as_fun(jaxpr))


def apply(map: Map, *args: Any) -> Leaves:
    """Apply a map, so that JAX can transform the application as a whole."""
    return list(_loop_p.bind(*args, **_params(map, (jax.typeof(a) for a in args))))


def _params(map: Map, types: Iterable[Any]) -> dict[str, Any]:
    return {"map": map, "jaxpr": map.traced(tuple(types)).closed}


_loop_p = Primitive("checkpointed_loop")
_loop_p.multiple_results = True


def _impl(*args: Any, map: Map, jaxpr: Any) -> Leaves:
    """Outside jit, run the program as a whole, compiled once for as long as the step lives."""
    with jax.debug_key_reuse(False):  # checked where the equation stands
        return map.compiled(jaxpr)(*args)


def _abstract(*_: Any, map: Map, jaxpr: Any) -> tuple[Leaves, Any]:
    return list(jaxpr.out_avals), jaxpr.effects


def _lower(*args: Any, map: Map, jaxpr: Any) -> Leaves:
    return list(jaxpr_as_fun(jaxpr)(*args))


def _none(tangent: Any) -> Any:
    """Give a tangent, or None for one that is zero."""
    if type(tangent) is ad.Zero or getattr(tangent, "dtype", None) == jax.dtypes.float0:
        return None
    return tangent


def _jvp(primals: Any, tangents: Any, *, map: Map, jaxpr: Any) -> tuple[Leaves, Leaves]:
    out, out_tangents = map.jvp(list(primals), [_none(t) for t in tangents])
    return out, [
        ad.Zero(jax.typeof(x).to_tangent_aval()) if t is None else t
        for x, t in zip(out, out_tangents, strict=True)
    ]


def _transpose(cotangents: Any, *args: Any, map: Map, jaxpr: Any) -> Leaves:
    linear = tuple(ad.is_undefined_primal(a) for a in args)
    given = [_none(ct) for ct in cotangents]
    if all(ct is None for ct in given):
        return [None] * len(args)
    return map.transpose(given, list(args), linear)


def _batch(axis: Any, args: Any, axes: Any, *, map: Map, jaxpr: Any) -> tuple[Leaves, Leaves]:
    if unnamed(axis) and all(a is None for a in axes):
        return apply(map, *args), [None] * len(jaxpr.out_avals)
    return map.batched(axis, list(args), list(axes))


def _partial_eval(trace: Any, *tracers: Any, map: Map, jaxpr: Any) -> Any:
    unknown = tuple(not t.pval.is_known() for t in tracers)
    parts = map.split(unknown) if any(unknown) else None
    if parts is None:
        return trace.default_process_primitive(_loop_p, tracers, {"map": map, "jaxpr": jaxpr})
    values = apply(parts.known, *(tracers[i].pval.get_known() for i in parts.known_inputs))
    known = [trace.new_const(v) for v in values]
    inputs = [*(tracers[i] for i in parts.linear_inputs), *(known[i] for i in parts.residuals)]
    params = _params(parts.linear, (t.aval for t in inputs))
    tangents = trace.default_process_primitive(_loop_p, inputs, params)
    out = dict(zip(parts.known_outputs, known, strict=True))
    out |= dict(zip(parts.linear_outputs, tangents, strict=True))
    return [out[i] for i in range(len(jaxpr.out_avals))]


def _partial_eval_custom(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
    """Take an equation of a program apart, as ``jax.checkpoint`` and its policies ask.

    What may not be saved is left whole for the second part, which computes it once more.
    """
    map, size = eqn.params["map"], len(eqn.outvars)
    types = [atom.aval for atom in eqn.invars]
    saved = isinstance(pe_internal.ensure_enum(saveable(_loop_p, *types, **eqn.params)), _SAVED)
    new = [
        atom
        for atom, done in zip(eqn.invars, instantiated, strict=True)
        if not (isinstance(atom, Literal) or done)
    ]
    if not any(unknown):
        if saved or _has_effects(eqn):
            return eqn, None, [False] * size, [False] * size, []
        return eqn, eqn, [False] * size, [True] * size, new
    parts = map.split(tuple(unknown))
    if parts is None:
        return None, eqn, [True] * size, [True] * size, new
    is_known = [i in parts.known_outputs for i in range(size)]
    unknown_out = [not k for k in is_known]
    invars = [eqn.invars[i] for i in parts.known_inputs]
    if saved:
        make = gensym()
        types = parts.known.traced(tuple(atom.aval for atom in invars)).out_types
        outvars = [
            make(t) if i is None else eqn.outvars[i]
            for i, t in zip(parts.known_outputs, types, strict=True)
        ]
        rest = [outvars[i] for i in parts.residuals]
        known = _equation(eqn, parts.known, invars, outvars)
        invars = [*(eqn.invars[i] for i in parts.linear_inputs), *rest]
        outvars = [eqn.outvars[i] for i in parts.linear_outputs]
        staged = _equation(eqn, parts.linear, invars, outvars)
        return known, staged, unknown_out, unknown_out, [*new, *rest]
    only = parts.known.pruned(tuple(i is not None for i in parts.known_outputs))
    outvars = [eqn.outvars[i] for i in pick(parts.known_outputs, only.outputs)]
    known = _equation(eqn, only.map, pick(invars, only.inputs), outvars)
    return known, eqn, unknown_out, [True] * size, new


def _dce(used: Any, *rest: Any) -> tuple[list[bool], Any]:
    eqn = rest[-1]  # before it, since JAX 0.12, which references are read later
    if not any(used) and not _has_effects(eqn):
        return [False] * len(eqn.invars), None
    map, inputs, outputs = eqn.params["map"].pruned(tuple(used))
    invars, outvars = pick(eqn.invars, inputs), pick(eqn.outvars, outputs)
    return list(inputs), _equation(eqn, map, invars, outvars)


def _has_effects(eqn: Any) -> bool:
    """Tell whether an equation does anything beside computing what may depend on a mapped axis."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in eqn.effects)


def _equation(eqn: Any, map: Map, invars: Leaves, outvars: Leaves) -> Any:
    params = _params(map, (atom.aval for atom in invars))
    return eqn.replace(params=params, invars=invars, outvars=outvars)


def _check(*args: Any, map: Map, jaxpr: Any) -> Any:
    """Let checkify look for errors in the program."""
    first = 0 if jax.__version_info__ < (0, 12) else 1  # since then it is told a context
    *context, error, enabled = args[: first + 2]
    return checkify.checkify_jaxpr(*context, jaxpr, enabled, error, *args[first + 2 :])


@key_reuse.dynamic_key_reuse_signature
def _key_reuse(eqn: Any) -> Any:
    """Let the checker of random keys look into the program; a replay means to use them again."""
    once = eqn.params["map"].once
    if once is None:
        return key_reuse.KeyReuseSignature()
    jaxpr = once.traced(tuple(atom.aval for atom in eqn.invars)).closed
    return key_reuse.jaxpr_type_signature(getattr(jaxpr, "jaxpr", jaxpr))


_loop_p.def_impl(_impl)
# JAX 0.12: for steps with operations that JAX itself takes apart only when it compiles.
_loop_p.to_lojax = _lower  # type: ignore[method-assign]
_loop_p.def_effectful_abstract_eval(_abstract)
mlir.register_lowering(_loop_p, mlir.lower_fun(_lower, multiple_results=True))
ad.primitive_jvps[_loop_p] = _jvp
ad.primitive_transposes[_loop_p] = _transpose
batching.fancy_primitive_batchers[_loop_p] = _batch
pe.custom_partial_eval_rules[_loop_p] = _partial_eval
pe.partial_eval_jaxpr_custom_rules[_loop_p] = _partial_eval_custom
pe.dce_rules[_loop_p] = _dce
checkify.error_checks[_loop_p] = _check
key_reuse.key_reuse_signatures[_loop_p] = _key_reuse


# -- Small things ---------------------------------------------------------------------------------
def rematerialises_late() -> bool:
    """Tell whether ``jax_remat3`` is on, whose ``jax.checkpoint`` is undone by forward mode.

    It acts on reverse mode alone, and so only where no primitive with a forward derivative is
    around it.
    """
    return bool(getattr(jax.config, "jax_remat3", False))


def has_tangent(aval: Any) -> bool:
    """Tell whether an abstract value can carry a derivative."""
    tangent = aval.to_tangent_aval()
    return getattr(tangent, "dtype", None) != jax.dtypes.float0


def zeros(aval: Any) -> Any:
    """Make zeros of a type."""
    return ad.instantiate_zeros(ad.Zero(aval))


def cotangent_type(aval: Any) -> Any:
    """Give the type of the cotangents of an abstract value."""
    return getattr(aval, "to_ct_aval", aval.to_tangent_aval)()


def add(a: Any, b: Any) -> Any:
    """Add two cotangents, of whatever type cotangents are."""
    return ad.add_jaxvals(a, b)


def zero_tangent(x: Any) -> Any:
    """Make a zero tangent of a value."""
    return ad.instantiate_zeros(ad.Zero(jax.typeof(x).to_tangent_aval()))


def unnamed(axis: Any) -> bool:
    """Tell whether a mapped axis has no name, so that nothing but mapped inputs depends on it."""
    return type(axis.name) is object


def over_axis(
    fun: Callable[..., Leaves], axis: Any, axes: Sequence[int | None]
) -> Callable[..., Leaves]:
    """Map a function of a flat list over the axis that a batching rule is told."""
    return jax.vmap(
        fun,
        tuple(axes),
        axis_name=axis.name,
        axis_size=axis.size,
        spmd_axis_name=axis.spmd_name,
    )


def move_axis(x: Any, axis: int | None, to: int, mapped: Any) -> Any:
    """Bring a mapped axis to its place; repeat what does not have it."""
    if axis is None:
        return batching.broadcast(x, mapped.size, to, mapped.explicit_mesh_axis)
    return x if axis == to else batching_internal.moveaxis(x, axis, to)


_PLAIN = (bool, int, float, complex, np.generic, np.ndarray)  # numbers that are not JAX's


def as_array(x: Any) -> Any:
    """Make an array of a Python scalar and of a NumPy array."""
    return jnp.asarray(x) if isinstance(x, _PLAIN) else x
