"""A person's call of a function, as a function of its arrays alone.

Models are pytrees that hold more than arrays: activation functions, texts, sizes. JAX's own
transformations take arrays only, so each library filters: what is an array is an argument, and the
rest is *static*, part of the program. The same is done here, for any pytree:

- arrays, abstract arrays and numbers are arguments;
- functions, texts and whatever else holds no array are static, and so are whole numbers among the
  attributes of an object, which are sizes and counts;
- a module of flax.nnx is changed by running it, and may share parts. It is taken apart by flax
  itself, and what a call changes in it is a result.

No such library is imported: one that an argument comes from is there already.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._tracing import check_arguments, is_array, is_number, name_of

_DEEP = 4  # how far objects within objects are looked through for arrays


@dataclass(frozen=True)
class Call:
    """A function with its arguments.

    Attributes:
        fun: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        arrays: Leaves of the arguments that are arrays, abstract arrays or numbers.
        names: How each of these is written, such as ``params['w']``.
        plain: Whether there are no others.
        pure: The call as a function of ``arrays``. If it is not plain, its result is a list of
            arrays: those of the function's own, and what it changed among its arguments.
    """

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arrays: list[Any]
    names: list[str]
    plain: bool
    pure: Callable[..., Any]

    @property
    def is_abstract(self) -> bool:
        """Whether an array is not there, but for its shape and dtype."""
        return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in self.arrays)

    def copied(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copy the arguments, for a function that changes them or gives their memory away."""
        given = self.args, self.kwargs
        nnx = _nnx_of(given)
        return nnx.clone(given) if nnx else jax.tree.map(_copied, given)


def call_of(
    caller: str, fun: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> Call:
    """Take a call apart.

    Args:
        caller: Name of the public function, for messages.
        fun: What should be a function.
        args: Its positional arguments: pytrees.
        kwargs: Its keyword arguments.

    Raises:
        TypeError: ``fun`` is not callable, an argument is being traced, or is an object whose
            arrays JAX does not see.
    """
    check_function(caller, fun)
    given = args, dict(kwargs or {})
    _check_signature(caller, fun, *given)
    nnx = _nnx_of(given)
    if nnx:
        rest, tree = nnx.split(given)
    else:
        rest, tree = None, given
    found, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = [leaf for _, leaf in found]
    dynamic = [_is_dynamic(path, leaf) for path, leaf in found]
    for (path, leaf), takes_part in zip(found, dynamic, strict=True):
        _check_leaf(caller, path, leaf, takes_part)
    static = [None if d else leaf for leaf, d in zip(leaves, dynamic, strict=True)]
    plain = all(dynamic) and not nnx
    if leaves and not any(dynamic):
        check_arguments(caller, fun, args)

    def pure(*arrays: Any) -> Any:
        each = iter(arrays)
        full = [next(each) if d else leaf for leaf, d in zip(static, dynamic, strict=True)]
        tree = jax.tree.unflatten(structure, full)
        args, kwargs = nnx.merge(rest, tree) if nnx else tree
        out = fun(*args, **kwargs)
        if plain:
            return out
        after = jax.tree.leaves(nnx.split((args, kwargs))[1]) if nnx else ()
        before = set(map(id, full))
        changed = [jax.lax.stop_gradient(leaf) for leaf in after if id(leaf) not in before]
        return [*_arrays_of(caller, fun, out), *changed]

    pure.__name__ = str(getattr(fun, "__name__", "call"))
    parameters = _parameters(fun)
    return Call(
        fun=fun,
        args=args,
        kwargs=given[1],
        arrays=[leaf for leaf, d in zip(leaves, dynamic, strict=True) if d],
        names=[
            _written(path, parameters) for (path, _), d in zip(found, dynamic, strict=True) if d
        ],
        plain=plain,
        pure=pure,
    )


def axis_of_each(in_axes: Any, trees: Any) -> list[Any]:
    """Give the mapped axis of each leaf, as :func:`jax.vmap` reads a prefix of the trees.

    Raises:
        ValueError: It is no prefix of the trees.
    """
    axes: list[Any] = []

    def over(axis: Any, tree: Any) -> None:
        axes.extend([axis] * len(jax.tree.leaves(tree)))

    jax.tree.map(over, in_axes, trees, is_leaf=lambda axis: axis is None)
    return axes


def check_function(caller: str, fun: Any) -> None:
    """Refuse what cannot be called.

    Raises:
        TypeError: ``fun`` is not callable.
    """
    if not callable(fun):
        raise TypeError(
            f"{caller}: needs a function first, not {fun!r:.60}: pass the function itself, not the "
            "result of calling it, and its arguments after it."
        )
    if isinstance(fun, jax.stages.Compiled):
        raise TypeError(
            f"{caller}: needs the function, not what was compiled of it: pass what jax.jit returns."
        )
    if isinstance(fun, np.ufunc):
        raise TypeError(
            f"{caller}: {fun.__name__} is a function of NumPy, which JAX cannot trace: pass "
            f"jnp.{fun.__name__}."
        )
    if inspect.iscoroutinefunction(fun) or inspect.isgeneratorfunction(fun):
        kind = "a generator" if inspect.isgeneratorfunction(fun) else "an async function"
        raise TypeError(
            f"{caller}: {name_of(fun)} is {kind}, which JAX cannot trace: pass a function that "
            "returns arrays."
        )


def _check_signature(caller: str, fun: Any, args: tuple, kwargs: dict) -> None:
    """Refuse arguments that the function does not take."""
    try:
        signature = inspect.signature(fun, follow_wrapped=False)
    except (TypeError, ValueError):  # it does not tell
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        options = ", as time=True does" if caller != "rx.residuals" else ""
        raise TypeError(
            f"{caller}: {name_of(fun)} cannot be called like this ({error}): its arguments follow "
            f"the function, and options go by name{options}."
        ) from None


def _is_dynamic(path: tuple[Any, ...], leaf: Any) -> bool:
    """Tell whether a leaf is an argument of the program, not a part of it."""
    if is_array(leaf):
        return getattr(leaf.dtype, "kind", None) not in ("O", "U", "S")
    in_object = any(isinstance(key, jax.tree_util.GetAttrKey) for key in path)
    return is_number(leaf) and not (in_object and isinstance(leaf, int))


def _check_leaf(caller: str, path: tuple[Any, ...], leaf: Any, is_dynamic: bool) -> None:
    where = _written(path, ())
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(
            f"{caller}: {where} is being traced, by a jax.jit, jax.grad or jax.vmap around this "
            "call: call it outside of that, or pass jax.ShapeDtypeStruct(x.shape, x.dtype)."
        )
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise TypeError(
            f"{caller}: {where} was donated to another call, and its memory is gone: make the "
            "array anew, or pass a copy next time."
        )
    if not is_dynamic and _hides_arrays(leaf, _DEEP):
        raise TypeError(
            f"{caller}: {where} is a {type(leaf).__name__}, whose arrays JAX does not see: make it "
            "a pytree (jax.tree_util.register_dataclass, or nnx.split), or bind it to the function "
            "by functools.partial, which makes its arrays constants."
        )


def _hides_arrays(leaf: Any, depth: int) -> bool:
    """Tell whether an object that is a leaf to JAX has arrays among its attributes."""
    if isinstance(leaf, FunctionType | ModuleType | type) or hasattr(leaf, "lower"):
        return False
    inside = jax.tree.leaves(dict(getattr(leaf, "__dict__", {})))
    return any(is_array(x) or (depth > 0 and _hides_arrays(x, depth - 1)) for x in inside)


def _arrays_of(caller: str, fun: Callable[..., Any], out: Any) -> list[Any]:
    """Give what of a result is an array."""
    leaves = jax.tree.leaves(out)
    arrays = [leaf for leaf in leaves if is_array(leaf) or is_number(leaf)]
    if leaves and not arrays:
        raise TypeError(
            f"{caller}: {name_of(fun)} returns a {type(leaves[0]).__name__} and no array: pass a "
            "function that returns arrays."
        )
    return arrays


def _nnx_of(tree: Any) -> Any:
    """Give flax.nnx, if one of its modules is in a tree."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return None
    kind = nnx.Module, nnx.Optimizer, nnx.Variable
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kind))
    return nnx if any(isinstance(leaf, kind) for leaf in leaves) else None


def _copied(leaf: Any) -> Any:
    return jax.block_until_ready(jnp.copy(leaf)) if is_array(leaf) else leaf


def _parameters(fun: Callable[..., Any]) -> list[str]:
    """List the names of a function's positional parameters."""
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _written(path: tuple[Any, ...], parameters: list[str] | tuple[str, ...]) -> str:
    """Write where a leaf of (args, kwargs) is: ``params['w']``, or by number without names."""
    in_kwargs, which = (key.key if hasattr(key, "key") else key.idx for key in path[:2])
    if in_kwargs:
        name = str(which)
    else:
        name = parameters[which] if which < len(parameters) else f"argument {which}"
    return name + jax.tree_util.keystr(path[2:])
