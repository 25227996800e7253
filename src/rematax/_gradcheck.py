r"""Is this gradient right? The Taylor remainder test.

For a smooth scalar function, with :math:`g` its gradient and :math:`d` a direction,

.. math::
    R(h) = |f(x + h d) - f(x) - h \, g \cdot d| = O(h^2),

while a wrong gradient leaves a remainder of order :math:`h`. So one halves the step and looks at
the *slope*, :math:`\log_2 R(h) / R(h/2)`: about 2 (more, where the curvature along :math:`d`
vanishes) if the gradient is right, 1 if it is not. Unlike comparison with a finite difference it
needs no well-chosen step, and unlike comparison with another gradient it cannot be fooled by two
that are wrong alike. It is the standard check of adjoint codes, known as the Taylor test or the
verification of adjoints.

References:
    P. E. Farrell, D. A. Ham, S. W. Funke and M. E. Rognes (2013), "Automated derivation of the
    adjoint of high-level transient finite element programs", SIAM Journal on Scientific Computing
    35(4):C369-C393.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any

HALVINGS = 6
LEAST_SLOPE = 1.8


@dataclass(frozen=True)
class TaylorTest:
    """What :func:`taylor_test` found.

    Attributes:
        steps: The steps ``h``, in units of the unit direction, largest first.
        remainders: The Taylor remainder at each step, in the unit of the function's value. Those
            too small to mean anything in floating point are left out, with their steps.
        slopes: The order by which the remainder falls from each step to the next.
        exact: Whether fewer than three remainders stand out of rounding: the gradient is exact to
            rounding along this direction, and there is no slope to look at.
        passed: Whether the gradient is right: ``exact``, or the slope at the smallest steps is at
            least 1.8.
    """

    steps: tuple[float, ...]
    remainders: tuple[float, ...]
    slopes: tuple[float, ...]
    exact: bool
    passed: bool

    @property
    def verdict(self) -> str:
        """One sentence on the result."""
        if self.exact:
            return "passed: exact to rounding"
        last = f"the remainder falls as h^{self.slopes[-1]:.2f}"
        if self.passed:
            return f"passed: {last}"
        return f"FAILED: {last}, where h^2 was expected; the gradient is wrong along this direction"

    def _rows(self) -> list[tuple[str, str, str]]:
        slopes = ["", *(f"{slope:.2f}" for slope in self.slopes)]
        return [
            (f"{h:.2e}", f"{r:.3e}", slope)
            for h, r, slope in zip(
                self.steps, self.remainders, slopes[: len(self.steps)], strict=True
            )
        ]

    def __repr__(self) -> str:
        lines = [f"Taylor test {self.verdict}", f"{'step':>10}{'remainder':>12}{'slope':>7}"]
        lines += [f"{h:>10}{r:>12}{slope:>7}" for h, r, slope in self._rows()]
        return "\n".join(lines[: 1 if not self.steps else None])

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in self._rows()
        )
        head = "<tr><th>step</th><th>remainder</th><th>slope</th></tr>"
        return f"<table><caption>Taylor test {self.verdict}</caption>{head}{cells}</table>"


def taylor_test(
    fun: Callable[[PyTree], Any], x: PyTree, direction: PyTree | None = None
) -> TaylorTest:
    r"""Test the reverse-mode gradient of ``fun`` at ``x`` by its Taylor remainder.

    Takes the steps ``h = h0, h0/2, .., h0/64`` along ``direction``, with
    ``h0 = 0.01 max(1, |x|)``, and measures how fast
    :math:`|f(x + h d) - f(x) - h \, \nabla f(x) \cdot d|` falls. Remainders below
    ``100 eps |f|`` are rounding and are dropped. Costs one gradient and seven values of ``fun``.

    Args:
        fun: Function of one pytree that returns a real scalar. Smooth near ``x``; a kink within
            ``h0`` of it fails the test.
        x: Where to test: a pytree of arrays. Integer, boolean and key leaves are held fixed.
        direction: Pytree like ``x`` along which to test, normalised to unit Euclidean norm.
            Default: normally distributed from a fixed key, so that all leaves count; give one
            where the leaves differ in scale by orders of magnitude.

    Returns:
        Steps, remainders, slopes and verdict.

    Raises:
        TypeError: If ``fun`` does not return a real scalar, or ``x`` holds nothing to vary.
        ValueError: If ``direction`` is zero.

    Warns:
        UserWarning: In single precision, where hardly any remainder stands out of rounding.

    References:
        Farrell et al. (2013).

    Example:
        A right gradient, and one that a custom rule has made 1 % too large:

        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rematax as rx
        >>> with jax.enable_x64(True):
        ...     rx.taylor_test(lambda x: jnp.sin(x).sum(), jnp.arange(3.0)).passed
        True
        >>> @jax.custom_vjp
        ... def sine(x):
        ...     return jnp.sin(x)
        >>> sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (1.01 * ct * jnp.cos(x),))
        >>> with jax.enable_x64(True):
        ...     rx.taylor_test(lambda x: sine(x).sum(), jnp.arange(3.0)).passed
        False
    """
    leaves, tree = jax.tree.flatten(x)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    varied = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    if not varied:
        raise TypeError("rx.taylor_test: x holds no floating-point array to vary.")

    def value(moved):
        full = list(leaves)
        for i, leaf in zip(varied, moved, strict=True):
            full[i] = leaf
        return fun(jax.tree.unflatten(tree, full))

    point = [leaves[i] for i in varied]
    out = jax.eval_shape(value, point)
    if not _leaf(out) or out.shape or not _real(out):
        raise TypeError(f"rx.taylor_test: fun must return a real scalar, not {out}.")
    if any(jnp.finfo(leaf.dtype).eps > 1e-12 for leaf in [out, *point]):
        warnings.warn(
            "rx.taylor_test: in single precision rounding hides all but the largest remainders; "
            "enable x64 for a test that means something.",
            stacklevel=2,
        )
    along = _unit(_along(tree, varied, point, direction))
    base, gradient = jax.jit(jax.value_and_grad(value))(point)
    slope = sum(float(jnp.sum(jnp.real(g * d))) for g, d in zip(gradient, along, strict=True))
    moved = jax.jit(lambda h: value([_step(a, h, d) for a, d in zip(point, along, strict=True)]))

    size = math.sqrt(sum(float(jnp.sum(jnp.abs(a) ** 2)) for a in point))
    steps = [0.01 * max(1.0, size) / 2**k for k in range(HALVINGS + 1)]
    values = [float(moved(h)) for h in steps]
    base = float(base)
    floor = 100 * float(jnp.finfo(out.dtype).eps) * max(map(abs, [base, *values]))
    remainders = [abs(v - base - h * slope) for h, v in zip(steps, values, strict=True)]
    return _judged([(h, r) for h, r in zip(steps, remainders, strict=True) if not r <= floor])


def _judged(kept: list[tuple[float, float]]) -> TaylorTest:
    steps, remainders = tuple(h for h, _ in kept), tuple(r for _, r in kept)
    slopes = tuple(math.log(r / s) / math.log(h / k) for (h, r), (k, s) in itertools.pairwise(kept))
    exact = len(kept) < 3 and all(map(math.isfinite, remainders))
    return TaylorTest(steps, remainders, slopes, exact, exact or slopes[-1] >= LEAST_SLOPE)


def _along(tree, varied, point, direction):
    """Give the direction's leaves, drawn from a fixed key unless given."""
    if direction is not None:
        given, given_tree = jax.tree.flatten(direction)
        if given_tree != tree:
            raise TypeError(
                f"rx.taylor_test: direction must have the structure of x, {tree}, not {given_tree}."
            )
        return [
            jnp.asarray(given[i], a.dtype).reshape(a.shape)
            for i, a in zip(varied, point, strict=True)
        ]
    keys = jax.random.split(jax.random.key(0), len(point))
    return [jax.random.normal(key, a.shape, a.dtype) for key, a in zip(keys, point, strict=True)]


def _unit(leaves):
    norm = math.sqrt(sum(float(jnp.sum(jnp.abs(d) ** 2)) for d in leaves))
    if norm == 0:
        raise ValueError("rx.taylor_test: direction must not be zero.")
    return [d / jnp.asarray(norm, d.dtype) for d in leaves]


def _step(a, h, d):
    return a + jnp.asarray(h).astype(a.dtype) * d


def _leaf(out: Any) -> bool:
    return bool(jax.tree_util.treedef_is_leaf(jax.tree.structure(out)))


def _real(out: Any) -> bool:
    return bool(jnp.issubdtype(out.dtype, jnp.floating))
