"""Memory sizes: as numbers of bytes, as text, and of pytrees of arrays.

One kB is 1000 bytes and one KiB is 1024 (IEC 80000-13). Sizes are shown in decimal units.
"""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_UNITS = {"B": 1} | {
    f"{prefix}{infix}B": base**power
    for power, prefix in enumerate("kMGT", 1)
    for infix, base in (("", 1000), ("i", 1024))
}
_BY_LOWER_CASE = {unit.lower(): size for unit, size in _UNITS.items()} | {"": 1, "bytes": 1}
# Commas only between thousands: "1,5 MB" must not come to be 15.
_SIZE = re.compile(r"([+-]?(?:\d{1,3}(?:,\d{3})+|[\d_]*)(?:\.\d+)?)\s*([a-zA-Z]*)")


def parse_bytes(size: int | str) -> int:
    """Return a memory size in bytes.

    Args:
        size: A whole number of bytes (``2e9`` is one), or text such as ``"500 MB"``, ``"2 GiB"``
            or ``"1.5kB"``. Letter case does not matter; ``b`` always means byte.

    Returns:
        The size in bytes, rounded down to a whole byte.

    Raises:
        TypeError: The size is neither a whole number nor text.
        ValueError: The size is negative, or the text is not a size.

    Example:
        >>> from rematax._sizes import parse_bytes
        >>> parse_bytes("2 GiB") == 2 * 1024**3
        True
        >>> parse_bytes("1.5 kB")
        1500
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size.strip())
        if match is None or not match[1].strip("+-_") or match[2].lower() not in _BY_LOWER_CASE:
            raise ValueError(
                f"{size!r} is not a memory size: write a number and a unit, such as '500 MB' or "
                f"'2 GiB' (units: {', '.join(_UNITS)})."
            )
        # Whole numbers stay whole: a float holds only 53 bits of a size.
        number = match[1].replace(",", "").replace("_", "")
        unit = _BY_LOWER_CASE[match[2].lower()]
        bytes_ = math.floor(float(number) * unit) if "." in number else int(number) * unit
    elif isinstance(size, (int, np.integer)) and not isinstance(size, bool):
        bytes_ = int(size)
    elif isinstance(size, float) and size.is_integer():  # 2e9 is how people write it
        bytes_ = int(size)
    else:
        raise TypeError(
            f"a memory size is a whole number of bytes or text such as '2 GiB', not {size!r}."
        )
    if bytes_ < 0:
        raise ValueError(f"a memory size cannot be negative, but got {size!r}.")
    return bytes_


def parse_limit(memory: int | str, caller: str) -> int:
    """Return a limit of memory in bytes, as :func:`parse_bytes` reads it; refuse one of nothing."""
    try:
        limit = parse_bytes(memory)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{caller}: memory: {error}") from None
    if limit < 1:
        raise ValueError(f"{caller}: memory must be at least one byte, not {memory!r}.")
    return limit


def format_fit(size: int | None, limit: int) -> str:
    """Return a measured size as text, with whether it fits; nothing if it was not measured."""
    if size is None:
        return ""
    return f"{format_bytes(size)}, {'fits' if size <= limit else 'too much'}"


def format_bytes(size: int) -> str:
    """Return a size as text with three figures and a decimal unit.

    Args:
        size: Size in bytes.

    Example:
        >>> from rematax._sizes import format_bytes
        >>> format_bytes(816_264), format_bytes(12)
        ('816 kB', '12 B')
    """
    value, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        # 999.5 would be shown as 1000 in this unit: it belongs to the next.
        if abs(value) < 999.5 or unit == "TB":
            break
        value /= 1000
    if unit == "B":
        return f"{size} B"
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f} {unit}"


def tree_bytes(tree: Any) -> int:
    """Return the bytes of all leaves of a pytree.

    Args:
        tree: Pytree of arrays, :class:`jax.ShapeDtypeStruct`, PRNG keys or Python scalars.

    Returns:
        Their size in bytes; Python scalars count with the dtype that JAX would give them.

    Example:
        >>> import jax.numpy as jnp
        >>> from rematax._sizes import tree_bytes
        >>> tree_bytes({"a": jnp.zeros((3, 2), jnp.float32), "b": None})
        24
    """
    return sum(leaf_bytes(leaf) for leaf in jax.tree.leaves(tree))


def leaf_bytes(leaf: Any) -> int:
    """Return the bytes of an array, an abstract array, a PRNG key or a Python scalar."""
    dtype = getattr(leaf, "dtype", None) or jnp.result_type(leaf)
    return math.prod(getattr(leaf, "shape", ())) * dtype.itemsize
