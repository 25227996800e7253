"""Trace a person's function, and say what is wrong with it in words of ours.

JAX's own errors about arguments and tracing come with a stack of JAX's frames and several
paragraphs. What they say of a call of this package fits into a sentence. Errors that the function
itself raises are passed on as they are.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

OURS = (os.path.dirname(jax.__file__), os.path.dirname(__file__))
"""Where code is that no person wrote who calls this package."""

# Kind of error -> what was done, and what works instead; the first that fits.
_NEEDS_A_VALUE: dict[type[Exception], tuple[str, str]] = {
    jax.errors.TracerBoolConversionError: (
        "a Python if or while, or an and between arrays, needs the value of one that is traced",
        "use jnp.where or jax.lax.cond to choose, jax.lax.while_loop to repeat, & and | to combine",
    ),
    jax.errors.TracerArrayConversionError: (
        "NumPy was given an array that is traced",
        "use jnp instead of np, and jnp.asarray(table)[i] for a NumPy table[i]",
    ),
    jax.errors.TracerIntegerConversionError: (
        "an array that is traced stands where Python needs a whole number",
        "index jnp.asarray(list) instead of a list, use jax.lax.fori_loop for a range, or bind the "
        "number with functools.partial",
    ),
    jax.errors.NonConcreteBooleanIndexError: (
        "a mask that is traced selects entries, whose number is not known",
        "use jnp.where(mask, x, 0), which keeps the shape",
    ),
    jax.errors.ConcretizationTypeError: (
        "a Python number or a shape needs the value of an array that is traced",
        "use jnp instead of math, float() and int(), give jnp.nonzero and jnp.unique a size, and "
        "bind shapes and numbers of steps with functools.partial",
    ),
}
_SHAPE = "Shapes must be 1D sequences of concrete values"  # a plain TypeError


def check_arguments(caller: str, fun: Any, args: tuple) -> None:
    """Refuse leaves that are no arrays.

    Args:
        caller: Name of the public function, for the message.
        fun: The function.
        args: Its arguments: pytrees of arrays, numbers or :class:`jax.ShapeDtypeStruct`.

    Raises:
        TypeError: A leaf is something else.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(args):
        if not (is_array(leaf) or is_number(leaf)):
            where = f"argument {path[0].idx}{jax.tree_util.keystr(path[1:])}"
            cure = "bind anything else with functools.partial or a lambda."
            if is_jitted(fun):
                cure = (
                    "what is jitted takes nothing else, so pass the function without jax.jit, or "
                    "jitted by eqx.filter_jit, nnx.jit or with static_argnums."
                )
            raise TypeError(
                f"{caller}: {where} is a {type(leaf).__name__} ({leaf!r:.40}), not an array. "
                f"Pass arrays, numbers or jax.ShapeDtypeStruct; {cure}"
            )


@contextlib.contextmanager
def in_one_sentence(caller: str, fun: Callable, args: tuple) -> Iterator[None]:
    """Turn JAX's errors about tracing a function into a ``TypeError`` of one sentence."""
    try:
        yield
        return
    except tuple(_NEEDS_A_VALUE) as error:
        why, what = next(v for kind, v in _NEEDS_A_VALUE.items() if isinstance(error, kind))
        why += _place(error)
    except TypeError as error:
        returned = re.search(r"returned a value of type <class '(?:\w+\.)*(\w+)'>", str(error))
        if str(error).startswith(_SHAPE):
            why, what = _NEEDS_A_VALUE[jax.errors.ConcretizationTypeError]
            why += _place(error)
        elif returned:
            why = f"it returns a {returned[1]}"
            what = "return arrays only (of a model: eqx.filter(model, eqx.is_array))"
        elif "valid JAX type" in str(error) or "abstract array" in str(error):
            check_arguments(caller, fun, args)
            why, what = first_line(error), "take and return arrays only"
        else:
            raise
    except ValueError as error:
        if not str(error).startswith("Non-hashable static arguments"):
            raise
        why = "an argument that it says is static is traced here"
        what = "bind static arguments with functools.partial or a lambda"
    raise TypeError(f"{caller}: {name_of(fun)} cannot be traced ({why}): {what}.")


def misfit(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Say why a function cannot be called with arguments; nothing if it can, or does not tell."""
    try:
        inspect.signature(fun).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    except ValueError:
        pass  # functions built into Python have no signature
    return ""


def is_jitted(fun: Any) -> bool:
    """Tell whether a function has been jitted, by JAX or by a library that does as JAX does."""
    return callable(getattr(fun, "lower", None))


def _place(error: BaseException) -> str:
    """Say where in the person's own code an error came up."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(OURS)
    ]
    if not frames:
        return ""
    return f", at line {frames[-1].lineno} of {os.path.basename(frames[-1].filename)}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without its full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def name_of(fun: Callable) -> str:
    """Return a name for messages."""
    return getattr(fun, "__name__", None) or repr(fun)


def is_array(leaf: Any) -> bool:
    """Tell whether a leaf is an array, concrete or abstract."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def is_number(leaf: Any) -> bool:
    """Tell whether a leaf is a number that JAX would make an array of."""
    return isinstance(leaf, (bool, int, float, complex))


def inexact(leaf: Any) -> bool:
    """Tell whether a leaf can carry a derivative: real or complex floating point."""
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))
