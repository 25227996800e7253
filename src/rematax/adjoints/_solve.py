"""The solve that an advice is for: run once, and made into the derivative that is measured."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from .._jaxprs import equations
from .._sizes import leaf_bytes, tree_bytes
from .._tracing import first_line, inexact, is_array
from ._arguments import Arguments, import_diffrax

PyTree = Any
Mode = Literal["reverse", "forward", "hvp"]
Program = tuple[Callable, tuple[Any, ...]]

_SPARE = 1.5  # steps to allow for each step taken, where the solver chooses its steps
_SCALARS = 8 * 8  # times, counters and flags beside the state of each step, in bytes


class Solve:
    """A solve, or a batch of them, run once.

    Attributes:
        arrays: What is differentiated with respect to: the inexact arrays of terms, ``y0``, args.
        solver: The solver as it was given.
        most: The bound on the steps as it was given.
        steps, accepted: Steps of the solve with the most steps, and how many were accepted.
        allowed: Steps to allow for.
        state_bytes: Bytes of ``y0``.
        kept_bytes: Bytes of one checkpoint.
        copied_bytes: What is kept twice of a checkpoint for a moment, where checkpoints get sorted.
        step_bytes: Bytes of all values that a step makes, each stage counted once.
    """

    def __init__(self, given: Arguments) -> None:
        """Run the solve."""
        self._dfx = dfx = import_diffrax()
        self.solver, self._controller, self._axes = given.solver, given.controller, given.axes
        self._times, self._saveat, self.most = given.times, given.saveat, given.max_steps
        leaves, self._tree = jax.tree.flatten(given.inputs)
        self.arrays = [leaf for leaf in leaves if _inexact(leaf)]
        self._others = [None if _inexact(leaf) else leaf for leaf in leaves]
        program = jax.jit(self._once)
        with refusals_of_diffrax("diffrax.diffeqsolve does not take these arguments"):
            self.step_bytes = _made_bytes(program.trace(self.arrays).jaxpr)
            y, stats, result, carried = program(self.arrays)
        self._refuse_failure(y, result)
        steps, accepted = map(np.ravel, stats)
        slowest = int(np.argmax(steps))
        self.steps, self.accepted = int(steps[slowest]), int(accepted[slowest])
        # Adding up the times may come out one step longer in another program.
        known = isinstance(given.controller, dfx.ConstantStepSize | dfx.StepTo)
        self.allowed = max(math.ceil(self.steps + 1 if known else _SPARE * self.steps), 1)
        self.state_bytes = tree_bytes(y)
        self.kept_bytes = tree_bytes((y, carried)) + _SCALARS * len(steps)
        self.copied_bytes = max(map(tree_bytes, jax.tree.leaves((y, carried))))

    def derivative(self, adjoint: Any, solver: Any, max_steps: int, mode: Mode) -> Program:
        """Give the program that is measured, and its arguments.

        In reverse mode that is the value and the gradient of half the squared distance between what
        is saved and some numbers from -1 to 1; for ``"hvp"`` the product of its second derivatives
        with a direction as well, forward over reverse; in forward mode the derivative of what is
        saved along a direction.
        """

        def saved(arrays: list) -> list:
            options = {"adjoint": adjoint, "max_steps": max_steps, "saveat": self._saveat}
            pick = lambda solution: jax.tree.leaves((solution.ys, solution.interpolation))  # noqa: E731
            return list(filter(_inexact, self._run(arrays, pick, solver=solver, **options)))

        def gradient(arrays: list) -> tuple:
            out, pullback = jax.vjp(saved, arrays)
            # Computed, since arrays of data would be constants of the program.
            return out, pullback([a - _data(a) for a in out])[0]

        if mode == "reverse":
            return jax.jit(gradient), (self.arrays,)
        fun = saved if mode == "forward" else gradient
        forward = jax.jit(lambda arrays, along: jax.jvp(fun, (arrays,), (along,)))
        return forward, (self.arrays, self.arrays)

    def _run(self, arrays: list, pick: Callable[[Any], Any], solver: Any, **options: Any) -> Any:
        """Run diffeqsolve once, or for each example of a batch, and pick something of each."""
        left = iter(arrays)
        leaves = [next(left) if leaf is None else leaf for leaf in self._others]
        mapped = [i for i, axis in enumerate(self._axes) if axis is not None]

        def one(values: list) -> Any:
            mine = dict(enumerate(leaves)) | dict(zip(mapped, values, strict=True))
            terms, y0, args = jax.tree.unflatten(self._tree, mine.values())
            problem = terms, solver, *self._times, y0, args
            controller = {"stepsize_controller": self._controller}
            return pick(self._dfx.diffeqsolve(*problem, **controller, **options))

        if not mapped:
            return one([])
        axes = [self._axes[i] for i in mapped]
        return jax.vmap(one, in_axes=(axes,))([leaves[i] for i in mapped])

    def _once(self, arrays: list) -> Any:
        def pick(solution: Any) -> Any:
            y = jax.tree.map(lambda a: a[0], solution.ys)
            stats = [solution.stats[f"num_{which}steps"] for which in ("", "accepted_")]
            return y, stats, solution.result, (solution.solver_state, solution.controller_state)

        saveat = self._dfx.SaveAt(t1=True, solver_state=True, controller_state=True)
        return self._run(
            arrays, pick, solver=self.solver, saveat=saveat, max_steps=self.most, throw=False
        )

    def _refuse_failure(self, y: PyTree, result: Any) -> None:
        results = self._dfx.RESULTS
        failed = np.atleast_1d(np.asarray(result != results.successful))
        if failed.any():
            first = int(np.argmax(failed))
            result = jax.tree.map(lambda a: jnp.ravel(a)[first], result)
            which = f" of example {first}" if any(a is not None for a in self._axes) else ""
            if bool(result == results.max_steps_reached):
                raise ValueError(
                    f"adjoints.advise: the solve{which} stopped after max_steps={self.most} steps, "
                    "before t1: give a larger max_steps, which costs nothing here."
                )
            raise ValueError(f"adjoints.advise: the solve{which} failed: {results[result]}")
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(y)):
            raise ValueError(
                "adjoints.advise: the solve ends in numbers that are not finite, so there is no "
                "gradient to advise on; look at y0, args and the vector field."
            )


@contextlib.contextmanager
def refusals_of_diffrax(what: str) -> Iterator[None]:
    """Say in one sentence what diffrax does not take; pass on errors of the vector field.

    Args:
        what: What cannot be done, for the message.
    """
    try:
        yield
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        if _in_the_field(error):
            raise
        kind = type(error) if type(error) in (TypeError, NotImplementedError) else ValueError
        raise kind(f"adjoints.advise: {what}: {first_line(error)}.") from error


def _in_the_field(error: BaseException) -> bool:
    """Tell whether an error of a solve came up in code that is no library's of diffrax's."""
    import diffrax
    import equinox
    import jaxtyping
    import lineax
    import optimistix

    modules = (diffrax, equinox, jax, jaxtyping, lineax, optimistix)
    known = [os.path.dirname(str(module.__file__)) for module in modules]
    known += [os.path.dirname(os.path.dirname(__file__)), contextlib.__file__, functools.__file__]
    frames = traceback.extract_tb(error.__traceback__)
    return not all(frame.filename.startswith(tuple(known)) for frame in frames)


def _made_bytes(closed: Any) -> int:
    """Add up the bytes of all values that a traced program makes, a loop's body once."""
    return sum(leaf_bytes(var.aval) for eqn in equations(closed) for var in eqn.outvars)


def _data(like: jax.Array) -> jax.Array:
    """Make numbers from -1 to 1 in the form of an array."""
    counted = jnp.arange(1, like.size + 1, dtype=jnp.finfo(like.dtype).dtype)
    return jnp.cos(counted).reshape(like.shape).astype(like.dtype)


def _inexact(leaf: Any) -> bool:
    return is_array(leaf) and inexact(leaf)
