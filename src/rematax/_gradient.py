"""The gradient of one scan, to be compiled with one schedule after another.

It takes the arrays that the step closes over, the first carry, xs, and the cotangents of the last
carry and of ys; it returns ys and the gradients. What it needs beside these is what the schedule
answers for. A Hessian-vector product is the derivative of that along a direction, and a batch is
a ``jax.vmap`` around the scan, as a person would write them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ._calls import axis_of_each
from ._default import decided, kept_bytes, linearised, pieces
from ._inspect import list_residuals
from ._jax import UNREPEATABLE, Captured, Leaves, captured, has_tangent
from ._jaxprs import hoisted
from ._loop import Loop, Parts
from ._measure import Measured, measured
from ._scan import runner, scan, steps_of
from ._schedules import Binomial, Nested, Schedule, StoreAll
from ._search import Held
from ._sizes import tree_bytes
from ._tracing import first_line, in_one_sentence, inexact, is_array, name_of

PyTree = Any
_Step = Callable[[Leaves, Leaves, Leaves], tuple[Leaves, Leaves]]


class Gradient:
    """The gradient of one scan, or its derivative along a direction.

    Attributes:
        n: Number of steps.
        default: What :func:`rematax.scan` takes where it is given no schedule.
        repeatable: Whether the step may be repeated by Binomial, see :func:`rematax.scan`.
        state_bytes: Bytes of one carry; where there is a batch, of all its examples.
        kept_bytes: Bytes of what a derivative needs of it.
        tape_bytes: Bytes of the residuals of one step, without what is there anyway.
        captured_bytes: Bytes of the arrays that the step closes over.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        init: PyTree,
        xs: PyTree,
        length: Any,
        *,
        mode: str,
        in_axes: Any,
        is_run: bool,
    ) -> None:
        """Trace a scan; if what is compiled ``is_run``, it needs arrays. Else as ``rx.plan``."""
        self._mode, self._is_run = mode, is_run
        call, traced, self._step = self._trace(f, init, xs, length, in_axes)
        self._inputs, self._axes = traced

        def run(*inputs: Any) -> Any:
            return self._scan(StoreAll(), *inputs)

        run.__name__ = name_of(f)  # for the message if it has no reverse mode
        self._outputs = jax.eval_shape(run, *self._inputs)
        rows = list_residuals("rx.plan", run, self._inputs)
        stacked = [row.bytes for row in rows if row.kind == "intermediate" and row.length >= self.n]
        self.state_bytes = tree_bytes(self._outputs[0])
        self.tape_bytes = sum(stacked) // max(self.n, 1)
        self._fixed_bytes = rows.extra_bytes - sum(stacked)
        self.captured_bytes = tree_bytes(self._inputs[0])
        self._captured_slope_bytes = tree_bytes(list(filter(inexact, self._inputs[0])))
        self._x_bytes = tree_bytes(self._inputs[2]) // max(self.n, 1)
        self._y_bytes = tree_bytes(self._outputs[1]) // max(self.n, 1)
        self.default: Schedule = StoreAll()
        self.kept_bytes = self.state_bytes
        self.repeatable = call is None or not call.effects & UNREPEATABLE
        if call is not None and self.repeatable:
            self._look_into(Loop.of(call, None))

    def _trace(
        self, f: Callable[..., Any], init: PyTree, xs: PyTree, length: Any, in_axes: Any
    ) -> tuple[Captured | None, tuple[Any, list[list[Any]]], _Step]:
        """Trace the scan of one example; give its call, its inputs with their axes, its step."""
        seen: dict[str, Any] = {}
        axes = None if in_axes is None else _axes(in_axes, init, xs)
        if axes is None:
            steps_of(xs, length, "rx.plan")  # before numbers and lists are made arrays

        def look(init: PyTree, xs: PyTree) -> None:
            n = steps_of(xs, length, "rx.plan")
            if n is None:
                raise TypeError("rx.plan: length must be known, not traced; make it static.")
            self.n, seen["args"] = n, jax.tree.leaves((init, xs))
            if n == 0:  # there is no first x to trace the step with
                leaves = jax.tree.leaves(init), jax.tree.leaves(xs)
                seen.update(call=None, parts=([], *leaves), step=_as_it_is(f, init, xs))
                return
            call = _captured(f, init, xs, n)
            first = call.sizes[1]

            def step(consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
                out = call.program(*consts, *carry, *x)
                return out[:first], out[first:]

            def run(*parts: Leaves) -> Leaves:
                seen.update(call=call, parts=parts, step=step)
                return runner(call, StoreAll())(*parts)

            call.finish(run)

        with in_one_sentence("rx.plan", f, (init, xs)):
            jax.eval_shape(look if axes is None else jax.vmap(look, in_axes=axes), init, xs)
        # An argument is known by what was traced in its place: the loop may take a leaf of the
        # carry that stays as it is for a constant.
        leaves = jax.tree.leaves((init, xs))
        each = axis_of_each(axes, (init, xs))
        given = dict(zip(map(id, seen["args"]), zip(leaves, each, strict=True), strict=True))
        inputs = [[given.get(id(leaf), (leaf, None)) for leaf in part] for part in seen["parts"]]
        arrays = tuple([_as_given(leaf) for leaf, _ in part] for part in inputs)
        return seen["call"], (arrays, [[axis for _, axis in part] for part in inputs]), seen["step"]

    def _look_into(self, loop: Loop) -> None:
        """Find the default schedule, and what of the carry a derivative needs."""
        given = Parts(*(tuple(map(has_tangent, part)) for part in loop.types))
        self.default = decided(loop, given).schedule or StoreAll()
        examples = self.state_bytes / max(tree_bytes(loop.types.carry), 1)
        self.kept_bytes = round(examples * kept_bytes(linearised(loop, given)))

    def held(self, schedule: Schedule) -> Held:
        """Predict temporary and constant bytes from what the schedule holds.

        Beside that, a state, a tape, and the gradient of the captured arrays are at work. What else
        there is was seen on CPU: see the comments.
        """
        n, (states, tapes) = self.n, schedule.stored(self.n)
        kept_tapes = tapes if tapes > 1 else 0
        work = self._fixed_bytes + self._captured_slope_bytes + self.state_bytes
        work += 0 if kept_tapes else self.tape_bytes
        exact, doubt = 0.0, 0.01
        if isinstance(schedule, Binomial):
            work += self.state_bytes  # the last state has a slot of its own
            exact = 4 * states + 4 * n  # positions of the snapshots; table
        elif isinstance(schedule, Nested):
            doubt = 0.35
            exact = pieces(schedule, n, self._x_bytes, self._y_bytes)
            radices = schedule.blocks(n)
            if n % math.prod(radices[1:]):  # gradients of two parts, added up
                exact += len(radices) * self._captured_slope_bytes
        twice = 2 if self._mode == "hvp" else 1  # a tangent beside each value
        return Held(
            twice * states * self.kept_bytes,
            twice * kept_tapes * self.tape_bytes,
            twice * work,
            exact,
            doubt,
        )

    def compiled(self, schedule: Schedule) -> Measured:
        """Compile what was asked for, with a schedule."""
        return measured("rx.plan", self._asked(schedule), self._arguments(), {})

    def _scan(self, schedule: Schedule, consts: Leaves, carry: Leaves, xs: Leaves) -> Any:
        """Run the scan of the example, or of all."""

        def run(consts: Leaves, carry: Leaves, xs: Leaves) -> Any:
            def step(carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
                return self._step(consts, carry, x)

            return scan(step, carry, xs, self.n, schedule=schedule)

        mapped = any(axis is not None for part in self._axes for axis in part)
        batch = jax.vmap(run, in_axes=tuple(self._axes)) if mapped else run
        return batch(consts, carry, xs)

    def _asked(self, schedule: Schedule) -> Callable[..., Any]:
        leaves, tree = jax.tree.flatten(self._inputs)
        varied = list(map(inexact, leaves))

        def gradient(moved: Leaves, fixed: Leaves, cotangents: Leaves) -> Any:
            def run(moved: Leaves) -> tuple[Leaves, Leaves]:
                rest, others = iter(moved), iter(fixed)
                inputs = [next(rest) if varies else next(others) for varies in varied]
                carry, ys = self._scan(schedule, *jax.tree.unflatten(tree, inputs))
                return list(filter(inexact, [*carry, *ys])), ys

            _, pullback, ys = jax.vjp(run, moved, has_aux=True)
            return ys, pullback(cotangents)

        def product(moved: Leaves, fixed: Leaves, cotangents: Leaves) -> Any:
            def of(moved: Leaves, cotangents: Leaves) -> Any:
                return gradient(moved, fixed, cotangents)

            return jax.jvp(of, (moved, cotangents), (moved, cotangents))

        return product if self._mode == "hvp" else gradient

    def _arguments(self) -> tuple[Leaves, Leaves, Leaves]:
        leaves = jax.tree.leaves(self._inputs)
        moved = [leaf for leaf in leaves if inexact(leaf)]
        fixed = [leaf for leaf in leaves if not inexact(leaf)]
        cotangents = list(filter(inexact, jax.tree.leaves(self._outputs)))
        if self._is_run:
            cotangents = [jnp.ones(like.shape, like.dtype) for like in cotangents]
        return moved, fixed, cotangents


def _captured(f: Callable[..., Any], init: PyTree, xs: PyTree, n: int) -> Captured:
    """Trace the scan; say in a sentence what keeps a function from being a step."""
    try:
        return captured(hoisted(f), init, xs, n)
    except TypeError as error:
        what, *more = str(error).split("\n\n")
        if not what.startswith("scan body"):
            raise
        why = " ".join((more or [what])[0].split()).rstrip(".")
        raise TypeError(f"rx.plan: f cannot be the step of a scan: {why}.") from None


def _axes(in_axes: Any, init: PyTree, xs: PyTree) -> tuple[Any, Any]:
    """Read the axes of init and of xs."""
    single = isinstance(in_axes, int) and not isinstance(in_axes, bool)
    axes = (in_axes, in_axes) if single else in_axes
    if not (isinstance(axes, tuple | list) and len(axes) == 2):
        raise TypeError(
            "rx.plan: in_axes must be an axis of init and xs, or a pair, of init and of xs, as for "
            f"jax.vmap, not {in_axes!r}."
        )
    try:
        jax.eval_shape(jax.vmap(lambda init, xs: None, in_axes=tuple(axes)), init, xs)
    except ValueError as error:
        why = first_line(error).rstrip(":")
        raise ValueError(f"rx.plan: in_axes={in_axes!r} does not fit init and xs: {why}.") from None
    return axes[0], axes[1]


def _as_given(leaf: Any) -> Any:
    """Keep an array, with its sharding; know a traced one by its type."""
    if isinstance(leaf, jax.core.Tracer):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
    return leaf if is_array(leaf) else jnp.asarray(leaf)


def _as_it_is(f: Callable[..., Any], init: PyTree, xs: PyTree) -> _Step:
    """Restate a step on lists of leaves without tracing it."""
    trees = jax.tree.structure(init), jax.tree.structure(xs)

    def step(consts: Leaves, carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        carry, y = f(*map(jax.tree.unflatten, trees, (carry, x)))
        return jax.tree.leaves(carry), jax.tree.leaves(y)

    return step
