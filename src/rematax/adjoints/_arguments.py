"""The arguments of an advice: those of ``diffeqsolve``, checked before anything runs."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._calls import axis_of_each
from .._sizes import tree_bytes
from .._tracing import first_line, is_array, is_number

PyTree = Any

_MODES = ("reverse", "forward", "hvp")
_OTHERS = {
    "adjoint": "the adjoint is what it finds: leave it out",
    "event": "solves with an event were not tried: leave it out, and give the t1 that you expect",
    "solver_state": "it starts without one: leave it out",
    "controller_state": "it starts without one: leave it out",
    "made_jump": "it starts without one: leave it out",
    "throw": "a solve that fails is refused: leave it out",
    "progress_meter": "it takes no memory that counts: leave it out",
    "n_steps": "say max_steps, a bound on the steps",
    "ts": "say saveat=diffrax.SaveAt(ts=...)",
    "controller": "say stepsize_controller",
}


@dataclass(frozen=True)
class Arguments:
    """The arguments of a solve.

    Attributes:
        inputs: Terms, ``y0`` as arrays of real or complex numbers, and args.
        solver: The solver.
        times: ``t0``, ``t1`` and ``dt0``.
        saveat: What is saved.
        controller: The controller of the steps.
        max_steps: Bound on the steps.
        axes: The axis of the batch in each leaf of the inputs, ``None`` where there is none.
    """

    inputs: tuple[Any, PyTree, PyTree]
    solver: Any
    times: tuple[Any, Any, Any]
    saveat: Any
    controller: Any
    max_steps: int
    axes: list[int | None]

    @classmethod
    def checked(
        cls,
        terms: Any,
        solver: Any,
        times: tuple[Any, Any, Any],
        y0: PyTree,
        args: PyTree,
        mode: Any,
        in_axes: Any,
        saveat: Any,
        controller: Any,
        max_steps: Any,
        others: Mapping[str, Any],
    ) -> Arguments:
        """Check what was given to ``advise``, and fill in what was not."""
        dfx = import_diffrax()
        for name in others:
            cure = _OTHERS.get(name, "see its documentation for those that it takes")
            raise TypeError(f"adjoints.advise takes no argument {name}=: {cure}.")
        if mode not in _MODES:
            raise ValueError(
                f"adjoints.advise: mode must be 'reverse', 'forward' or 'hvp' (a Hessian-vector "
                f"product), not {mode!r}."
            )
        saveat = dfx.SaveAt(t1=True) if saveat is None else saveat
        controller = dfx.ConstantStepSize() if controller is None else controller
        _check_objects(dfx, terms, solver, saveat, controller)
        _check_values(y0, (terms, args, times))
        _check_times(*times, fixed=isinstance(controller, dfx.ConstantStepSize))
        _check_saved(dfx, saveat, *times[:2])
        with jax.numpy_dtype_promotion("standard"):  # as diffrax does it
            y0 = jax.tree.map(lambda a: jnp.asarray(a, jnp.result_type(a, 1.0)), y0)
        if not tree_bytes(y0):
            raise ValueError("adjoints.advise: y0 has no entries, so there is nothing to solve.")
        return cls(
            inputs=(terms, y0, args),
            solver=solver,
            times=times,
            saveat=saveat,
            controller=controller,
            max_steps=_whole(max_steps),
            axes=[*(None for _ in jax.tree.leaves(terms)), *_axes(in_axes, y0, args)],
        )


def import_diffrax() -> Any:
    """Import diffrax, or say that it is missing."""
    try:
        import diffrax
    except ImportError as error:
        raise ImportError(
            "rematax.adjoints needs diffrax, which is not installed: pip install diffrax."
        ) from error
    return diffrax


def _whole(max_steps: Any) -> int:
    try:
        bound = 0 if isinstance(max_steps, bool) else operator.index(max_steps)
    except TypeError:
        bound = 0
    if bound < 1:
        raise TypeError(
            f"adjoints.advise: max_steps must be a positive whole number, not {max_steps!r}."
        )
    return bound


def _check_objects(dfx: Any, terms: Any, solver: Any, saveat: Any, controller: Any) -> None:
    """Refuse what is no object of diffrax's, and what was not tried."""
    if not isinstance(solver, dfx.AbstractSolver):
        raise TypeError(
            f"adjoints.advise: solver must be one of diffrax's, such as diffrax.Tsit5(), not "
            f"{solver!r:.60}."
        )
    single = lambda x: isinstance(x, dfx.AbstractTerm) and not isinstance(x, dfx.MultiTerm)  # noqa: E731
    for term in jax.tree.leaves(terms, is_leaf=single) or [terms]:
        if not isinstance(term, dfx.ODETerm):
            cure = (
                "stochastic and controlled equations were not tried (ControlTerm.to_ode() makes an "
                "ODETerm of a smooth control)"
                if isinstance(term, dfx.AbstractTerm)
                else "write diffrax.ODETerm(f), with f(t, y, args) the vector field"
            )
            raise TypeError(
                "adjoints.advise: terms must be made of diffrax.ODETerm, not "
                f"{type(term).__name__}; {cure}."
            )
    if not isinstance(saveat, dfx.SaveAt):
        raise TypeError(
            "adjoints.advise: saveat must be a diffrax.SaveAt, such as diffrax.SaveAt(ts=[1.0]), "
            f"not {saveat!r:.60}."
        )
    if not isinstance(controller, dfx.AbstractStepSizeController):
        raise TypeError(
            "adjoints.advise: stepsize_controller must be one of diffrax's, such as "
            f"diffrax.PIDController(rtol=1e-5, atol=1e-7), not {controller!r:.60}."
        )


def _check_values(y0: PyTree, others: PyTree) -> None:
    """Refuse a state that is no array, and anything without a value."""
    for leaf in jax.tree.leaves((y0, others)):
        if isinstance(leaf, jax.core.Tracer | jax.ShapeDtypeStruct):
            raise TypeError(
                "adjoints.advise runs the solve, so it needs values, not a "
                f"{type(leaf).__name__}: call it outside of jax.jit, jax.grad and jax.vmap, and "
                "give a batch as a whole, with in_axes=(0, None) for one of y0."
            )
    for path, leaf in jax.tree_util.tree_leaves_with_path(y0):
        if not (is_array(leaf) or is_number(leaf)) or not jnp.issubdtype(
            jnp.result_type(leaf), jnp.number
        ):
            raise TypeError(
                f"adjoints.advise: y0{jax.tree_util.keystr(path)} is a {type(leaf).__name__}, but "
                "y0 must be a pytree of arrays of numbers."
            )


def _check_times(t0: Any, t1: Any, dt0: Any, fixed: bool) -> None:
    """Refuse times that are no numbers, and a step that leads away from the end."""
    for name, time in (("t0", t0), ("t1", t1), ("dt0", dt0)):
        if name == "dt0" and time is None:
            continue
        real = is_array(time) or is_number(time)
        if not real or np.ndim(time) or not np.isrealobj(time) or not np.isfinite(time):
            raise TypeError(
                f"adjoints.advise: {name} must be a real finite number, not {time!r:.60}."
            )
    if dt0 is None and fixed:
        raise ValueError(
            "adjoints.advise: dt0=None lets the controller choose the first step, but steps of "
            "fixed length have no such choice: give dt0, or an adaptive stepsize_controller such "
            "as diffrax.PIDController(rtol=1e-5, atol=1e-7)."
        )
    if dt0 is not None and (t1 - t0) * dt0 <= 0 and t1 != t0:
        raise ValueError(
            f"adjoints.advise: dt0={dt0} does not lead from t0={t0} to t1={t1}: give it the sign "
            "of t1 - t0."
        )


def _check_saved(dfx: Any, saveat: Any, t0: Any, t1: Any) -> None:
    """Refuse times to save at that lie outside of the solve, which only a run would tell."""
    for sub in jax.tree.leaves(saveat.subs, is_leaf=lambda x: isinstance(x, dfx.SubSaveAt)):
        ts = np.asarray([] if sub.ts is None else sub.ts)
        if ts.ndim != 1:
            raise ValueError(
                f"adjoints.advise: saveat has times of shape {ts.shape}, which must be a list of "
                "times: SaveAt(ts=[...])."
            )
        if not ((ts >= min(t0, t1)) & (ts <= max(t0, t1))).all():
            raise ValueError(
                f"adjoints.advise: saveat has times outside of the solve, which goes from t0={t0} "
                f"to t1={t1}: leave them out of SaveAt(ts=...), or move t1."
            )


def _axes(in_axes: Any, y0: PyTree, args: PyTree) -> list[int | None]:
    """Give the axis of the batch for each leaf of the state and of args."""
    if in_axes is None or isinstance(in_axes, int):
        in_axes = (in_axes, in_axes)
    wrong = "adjoints.advise: in_axes must be as jax.vmap's for (y0, args), such as (0, None)"
    if not isinstance(in_axes, tuple | list) or len(in_axes) != 2:
        raise TypeError(f"{wrong}, not {in_axes!r:.60}.")
    try:
        axes = axis_of_each(tuple(in_axes), (y0, args))
    except ValueError as error:
        raise ValueError(f"{wrong}, or trees of these ({first_line(error)}).") from error
    sizes = set()
    for axis, leaf in zip(axes, jax.tree.leaves((y0, args)), strict=True):
        if axis is None:
            continue
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise TypeError(f"{wrong}, but has {axis!r:.60} for an axis.")
        if not is_array(leaf) or not -leaf.ndim <= axis < leaf.ndim:
            what = f"an array of shape {leaf.shape}" if is_array(leaf) else repr(leaf)[:60]
            raise ValueError(
                f"adjoints.advise: in_axes names axis {axis} of {what}, which has none: "
                "say None for what the batch shares."
            )
        sizes.add(leaf.shape[axis])
    if len(sizes) > 1:
        raise ValueError(
            f"adjoints.advise: in_axes names axes of different lengths, {sorted(sizes)}: a batch "
            "has one length, and None stands for what it shares."
        )
    return axes
