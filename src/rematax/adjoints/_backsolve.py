r"""What diffrax's ``BacksolveAdjoint`` makes of a gradient: tried, and compared.

``BacksolveAdjoint`` keeps no steps. It solves the equations backwards, together with those of their
adjoint. What decays forwards grows backwards, and the errors with it; an L-stable solver damps that
growth, right or wrong. Neither shows until the adjoint's own equations are solved, so that is done:
the gradient is computed by ``BacksolveAdjoint`` and by the advised adjoint, which differentiates
the steps that were taken, and the two are compared.

The entries of a gradient :math:`g` have units, one over those of the parameter :math:`p`, and are
compared as changes for relative changes of the parameters. With :math:`w_i = |p_i|`, or the largest
of the array's :math:`|p_j|` where an entry is nothing, the error of an array's gradient is

.. math:: \frac{\|w\,(\tilde g - g)\|}{\|w\,g\|},

and that of all is the largest. What is so small beside the largest :math:`\|w\,g\|` that rounding
hides it is compared with the square root of the rounding unit of that.

References:
    P. Kidger (2021), "On Neural Differential Equations", doctoral thesis, University of Oxford,
    chapter 5: backpropagation through a solver, and its alternatives.

    A. Gholami, K. Keutzer and G. Biros (2019), "ANODE: Unconditionally Accurate Memory-Efficient
    Gradients for Neural ODEs", IJCAI: solving backwards is unstable.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._measure import measure
from .._sizes import format_bytes
from .._tracing import first_line
from ._arguments import import_diffrax
from ._solve import Program, Solve

CLOSE = 0.01
_RAISED = re.compile(r"RuntimeError: (.+)")


@dataclass(frozen=True)
class Verdict:
    """What became of the gradient by ``BacksolveAdjoint``.

    Attributes:
        error: Its relative error, ``inf`` if there is none since it failed, ``None`` if it was not
            tried.
        sentence: The same in words.
    """

    error: float | None
    sentence: str


def judge(solve: Solve, trusted: Program, limit: int) -> Verdict:
    """Compute a gradient by ``BacksolveAdjoint``, and compare it with one to be trusted.

    Args:
        solve: The solve.
        trusted: A program for the same gradient, and its arguments.
        limit: Bytes that the program may take.
    """
    adjoint = import_diffrax().BacksolveAdjoint()
    program, args = solve.derivative(adjoint, solve.solver, solve.most, "reverse")
    try:
        needed = measure(program, *args).working_bytes
    except Exception as error:  # whatever it is, the other adjoint does not raise it
        return Verdict(None, f"BacksolveAdjoint cannot be used here: {_plain(_why(error))}.")
    if needed > limit:
        return Verdict(
            None,
            f"BacksolveAdjoint was not tried: it needs {format_bytes(needed)} here, which is more "
            "than the memory.",
        )
    try:
        with _quiet():
            found = jax.block_until_ready(program(*args))[1]
    except Exception as error:  # equinox's and JAX's differ between versions and backends
        reason = _plain(_why(error))
        if "maximum number of solver steps" in reason:
            reason = f"it does not come back to t0 within max_steps={solve.most} steps"
        return Verdict(math.inf, f"Warning: BacksolveAdjoint fails here: {reason}.")
    run, its = trusted
    off = _difference(found, run(*its)[1], solve.arrays)
    return Verdict(off, _sentence(off))


def _sentence(error: float) -> str:
    if error <= CLOSE:
        return (
            f"Tried here, the gradient by BacksolveAdjoint is within {error:.1e} of this one "
            "(relative): approximate, but not unstable."
        )
    if error == math.inf:
        off = "not finite"
    else:
        off = f"off by {100 * error:.2g}%" if error < 1 else f"off by {error:.3g} times its size"
    return (
        f"Warning: tried here, the gradient by BacksolveAdjoint is {off}, without an error raised."
    )


def _difference(found: list, right: list, parameters: list) -> float:
    """Compare two gradients; see the module."""
    if not all(np.isfinite(a).all() for a in found):
        return math.inf
    missed, sizes = [], []
    for arrays in zip(found, right, parameters, strict=True):
        a, b, p = (np.ravel(np.asarray(each)).astype(complex) for each in arrays)
        weight = np.where(p == 0, abs(p).max(initial=0) or 1, abs(p))
        missed.append(float(np.linalg.norm(weight * (a - b))))
        sizes.append(float(np.linalg.norm(weight * b)))
    rounding = max(float(jnp.finfo(b.dtype).eps) for b in right)
    least = math.sqrt(rounding) * max(sizes)
    ratios = (m / max(size, least) for m, size in zip(missed, sizes, strict=True) if m > 0)
    return max(ratios, default=0.0) if least > 0 else (math.inf if any(missed) else 0.0)


def _why(error: BaseException) -> str:
    """Find the sentence that diffrax raised while the program ran."""
    raised = _RAISED.findall(str(error))
    return raised[-1] if raised else first_line(error)


def _plain(sentence: str) -> str:
    return re.sub(r"[`.]+$", "", sentence.strip().replace("`", ""))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep JAX from printing the stack of an error that is caught."""
    logger: Any = logging.getLogger("jax._src.callback")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
