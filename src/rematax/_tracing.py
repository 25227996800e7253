"""Trace a person's function, and say what is wrong with it in words of ours.

JAX's own errors about arguments and tracing come with a stack of JAX's frames and several
paragraphs. What they say of a call of this package fits into a sentence. Errors that the function
itself raises are passed on as they are.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

_NEEDS_A_VALUE = (
    jax.errors.ConcretizationTypeError,  # a Python if or while on a traced array
    jax.errors.TracerArrayConversionError,  # numpy on a traced array
    jax.errors.TracerIntegerConversionError,  # a traced array as an index of a list
    jax.errors.NonConcreteBooleanIndexError,
)


def check_arguments(caller: str, fun: Any, args: tuple) -> None:
    """Refuse what is no function, and leaves that are no arrays.

    Args:
        caller: Name of the public function, for the message.
        fun: What should be a function.
        args: Its arguments: pytrees of arrays, numbers or :class:`jax.ShapeDtypeStruct`.

    Raises:
        TypeError: ``fun`` is not callable, or a leaf is something else.
    """
    if not callable(fun):
        raise TypeError(
            f"{caller} needs a function, not {fun!r:.60}: pass the function itself, "
            "not the result of calling it."
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(args):
        if not (is_array(leaf) or is_number(leaf)):
            where = f"argument {path[0].idx}{jax.tree_util.keystr(path[1:])}"
            raise TypeError(
                f"{caller}: {where} is a {type(leaf).__name__} ({leaf!r:.40}), not an array. "
                "Pass arrays, numbers or jax.ShapeDtypeStruct; bind anything else with "
                "functools.partial or a lambda."
            )


@contextlib.contextmanager
def in_one_sentence(caller: str, fun: Callable, args: tuple) -> Iterator[None]:
    """Turn JAX's errors about tracing a function into a ``TypeError`` of one sentence."""
    try:
        yield
        return
    except _NEEDS_A_VALUE as error:
        why = "it needs the value of an argument while it is traced, as a Python if or while does"
        why += _place(error)
        what = "use jnp.where, jax.lax.cond or a loop of jax.lax, or make that argument static"
    except TypeError as error:
        why = first_line(error)
        what = "take and return arrays only"
        if not ("valid JAX type" in why or "abstract array" in why):
            raise
    check_arguments(caller, fun, args)  # a jitted function may have static ones, so only now
    raise TypeError(f"{caller}: {name_of(fun)} cannot be traced ({why}): {what}.")


def _place(error: BaseException) -> str:
    """Say where in the person's own code an error came up."""
    ours = (os.path.dirname(jax.__file__), os.path.dirname(__file__))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(ours)
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
