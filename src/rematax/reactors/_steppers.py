r"""One step of an ordinary differential equation :math:`dy/dx = f(y, u)`.

Explicit Runge-Kutta methods of order one, two and four. Each factory returns ``step(carry, x)``,
the body that ``jax.lax.scan`` and :func:`rematax.scan` loop over; none loops itself. The scan's
``x`` is handed to ``f`` as ``u``, held over the step: an input that is constant in pieces, or
nothing.

References:
    E. Hairer, S. P. Nørsett and G. Wanner (1993), "Solving Ordinary Differential Equations I",
    2nd edition, Springer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ._checks import refuse_nonfinite, refuse_nonpositive

PyTree = Any
Rhs = Callable[[PyTree, Any], PyTree]
Output = Callable[[PyTree], Any]
Step = Callable[[PyTree, Any], tuple[PyTree, Any]]


def euler(rhs: Rhs, dx: ArrayLike, output: Output | None = None) -> Step:
    r"""Make the explicit Euler step, of order one: :math:`y + h f(y, u)`.

    Args:
        rhs: ``rhs(y, u)``, the derivative of the state: of the structure and the shapes of ``y``,
            never broadcast, of its precision or a lower one, in its unit over that of ``dx``.
            ``u`` is the scan's ``x`` of this step, ``None`` if it has no ``xs``.
        dx: The step :math:`h`, positive: a time in batch, a length or a residence time in plug
            flow. The global error is proportional to it.
        output: ``output(y)`` of the new state is what each step of the scan puts out. Default:
            nothing, so that nothing is stacked.

    Returns:
        ``step(y, u)``, which returns the new state and the output. States may be any pytree.

    Raises:
        TypeError: ``rhs`` or ``output`` is no function of the arguments that it gets, or ``dx`` no
            real number; from the step, ``rhs`` returns what is not like the state.
        ValueError: ``dx`` is not positive and finite.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rematax import reactors
        >>> step = reactors.euler(lambda y, u: -y, 0.01)
        >>> y, _ = jax.lax.scan(step, jnp.array(1.0), length=100)
        >>> 1e-3 < abs(float(y) - float(jnp.exp(-1))) < 1e-2
        True
    """
    return _factory("euler", lambda y, f: _add(y, dx, f(y)), rhs, dx, output)


def midpoint(rhs: Rhs, dx: ArrayLike, output: Output | None = None) -> Step:
    r"""Make the explicit midpoint step, of order two: two evaluations of ``rhs``.

    Args:
        rhs: As in :func:`euler`.
        dx: As in :func:`euler`; the global error is proportional to its square.
        output: As in :func:`euler`.

    Returns:
        ``step(y, u)``, as in :func:`euler`.

    Raises:
        TypeError: As in :func:`euler`.
        ValueError: As in :func:`euler`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rematax import reactors
        >>> step = reactors.midpoint(lambda y, u: -y, 0.1)
        >>> y, _ = jax.lax.scan(step, jnp.array(1.0), length=10)
        >>> abs(float(y) - float(jnp.exp(-1))) < 1e-3
        True
    """

    def advance(y, f):
        return _add(y, dx, f(_add(y, dx / 2, f(y))))

    return _factory("midpoint", advance, rhs, dx, output)


def rk4(rhs: Rhs, dx: ArrayLike, output: Output | None = None) -> Step:
    r"""Make the classical Runge-Kutta step, of order four: four evaluations of ``rhs``.

    Args:
        rhs: As in :func:`euler`.
        dx: As in :func:`euler`; the global error is proportional to its fourth power.
        output: As in :func:`euler`.

    Returns:
        ``step(y, u)``, as in :func:`euler`.

    Raises:
        TypeError: As in :func:`euler`.
        ValueError: As in :func:`euler`.

    Example:
        The inputs ``xs`` of the scan are held over one step each. Here they are inflows:

        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rematax import reactors
        >>> step = reactors.rk4(lambda y, u: u - y, 0.1, output=lambda y: y)
        >>> inflow = jnp.ones(10)
        >>> y, path = jax.lax.scan(step, jnp.array(0.0), inflow)
        >>> path.shape, abs(float(y) - float(1 - jnp.exp(-1))) < 1e-6
        ((10,), True)
    """

    def advance(y, f):
        k1 = f(y)
        k2 = f(_add(y, dx / 2, k1))
        k3 = f(_add(y, dx / 2, k2))
        k4 = f(_add(y, dx, k3))
        mean = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, k1, k2, k3, k4)
        return _add(y, dx, mean)

    return _factory("rk4", advance, rhs, dx, output)


def _factory(name: str, advance: Callable, rhs: Rhs, dx: ArrayLike, output: Output | None) -> Step:
    """Turn an advance of the state into the body of a scan."""
    caller = f"reactors.{name}"
    _refuse_no_function(
        f"{caller}: rhs", rhs, "y, u", "the state and the scan's x (None without xs)"
    )
    if output is not None:
        _refuse_no_function(f"{caller}: output", output, "y", "the new state")
    refuse_nonpositive(f"{caller}: the step dx", dx)
    refuse_nonfinite(f"{caller}: the step dx", dx)

    def step(y, u):
        def slope(y):
            found = rhs(y, u)
            _refuse_unlike(f"{caller}: rhs must return a slope like the state", found, y)
            return found

        new = advance(y, slope)
        _refuse_unlike(f"{caller}: the step dx must leave the state as it is", new, y)
        return new, None if output is None else output(new)

    return step


def _refuse_no_function(what: str, fun: Any, arguments: str, meaning: str) -> None:
    if not callable(fun):
        raise TypeError(
            f"{what} must be a function of ({arguments}), {meaning}, not {fun!r:.40}; pass the "
            "function itself and not the result of calling it."
        )
    try:
        inspect.signature(fun).bind(*arguments.split(", "))
    except TypeError as error:
        raise TypeError(
            f"{what} must be a function of ({arguments}), {meaning}, but is not ({error}); write "
            f"lambda {arguments}: ... around yours."
        ) from None
    except ValueError:
        pass  # built-in functions have no signature


def _refuse_unlike(must: str, found: PyTree, y: PyTree) -> None:
    """Raise where the state would be broadcast, or change its type, as a scan refuses, too."""
    structure: Any = jax.tree.structure(y)
    if jax.tree.structure(found) != structure:
        raise TypeError(
            f"{must}, but gives {_kinds(found)} where the state is {_kinds(y)}: give both the same "
            "structure, as by jnp.stack for an array or jax.tree.map for the rest."
        )
    pairs = zip(jax.tree_util.tree_leaves_with_path(y), jax.tree.leaves(found), strict=True)
    for (path, here), there in pairs:
        where = jax.tree_util.keystr(path)
        if np.shape(there) != np.shape(here):
            cure = "; it is never broadcast, so give it that shape"
        elif _result_type(here, there) != jnp.result_type(here):
            cure = f"; cast it with astype, or start from a state of {_result_type(here, there)}"
        else:
            continue
        raise TypeError(
            f"{must}, but gives {_kind(there)} where the state{where} is {_kind(here)}{cure}."
        )


def _result_type(*values: Any) -> np.dtype:
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*values)


def _kind(leaf: Any) -> str:
    try:
        return f"{jnp.result_type(leaf)}[{','.join(map(str, np.shape(leaf)))}]"
    except (TypeError, ValueError):
        return repr(leaf)[:40]


def _kinds(tree: PyTree) -> str:
    return str(jax.tree.map(_kind, tree)).replace("'", "")


def _add(y: PyTree, h: Any, slope: PyTree) -> PyTree:
    """Move a state along a slope."""
    return jax.tree.map(lambda y, s: y + h * s, y, slope)
