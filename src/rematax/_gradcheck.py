r"""Is this gradient right? The Taylor remainder test.

For a smooth scalar function, with :math:`g` its gradient and :math:`d` a direction,

.. math::
    R(h) = |f(x + h d) - f(x) - h \, g \cdot d| = O(h^2),

while a wrong gradient leaves a remainder of order :math:`h`. So one shortens the step and looks at
the *slope*, the order by which :math:`R` falls: about 2 (more, where the curvature along :math:`d`
vanishes) if the gradient is right, 1 if it is not. Unlike comparison with another gradient it
cannot be fooled by two that are wrong alike. It is the standard check of adjoint codes, known as
the Taylor test or the verification of adjoints.

Two things make slopes lie: steps so long that the function is not yet smooth over them (a chaotic
one may need 1e-5 of the usual length), and steps so short that rounding is all there is. Both are
properties of the function and not of the gradient. So the function is looked at first, alone:
between which lengths its secants :math:`(f(x + h d) - f(x))/h` converge as those of a smooth
function do, to which slope, and how surely, given the noise of its values. Then that slope is held
against :math:`g \cdot d`.

References:
    P. E. Farrell, D. A. Ham, S. W. Funke and M. E. Rognes (2013), "Automated derivation of the
    adjoint of high-level transient finite element programs", SIAM Journal on Scientific Computing
    35(4):C369-C393.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import numbers
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ._calls import check_function
from ._noise import VALUES, noise, stuck
from ._tables import table_html, table_text
from ._tracing import check_arguments, in_one_sentence, inexact, misfit, name_of

PyTree = Any
Outcome = Literal["passed", "exact", "wrong", "not smooth", "rounding", "not finite"]

STEPS = 25  # from the longest to the shortest, if nothing ends them earlier
QUIET = 4  # so many secants in a row that differ by their noise alone will do
SURE = 10  # standard deviations of the noise
CLEAR = 30  # remainders of so many standard deviations have a slope that is good to 0.1
SMOOTH = 0.1  # how well, relative to itself, a slope must be known to be one
RESOLVED = 0.004  # ... and to say that a gradient is right: one that is 1 % wrong stands out
SAME = 1e-5  # gradients this close to the function's slope are right: solvers have tolerances
PLAIN = 1e4  # noise up to so many roundings of the value is called rounding

HEAD = ("step", "remainder", "slope")


@dataclass(frozen=True, repr=False)
class TaylorTest:
    """What :func:`taylor_test` found.

    Attributes:
        outcome: One of

            - ``"passed"``: the gradient is right along this direction: to what could be seen, and
              at least to 1e-5 of itself, since solvers have tolerances. The remainder falls
              quadratically, or faster; where less than 1e-5 is off, the verdict says how much;
            - ``"exact"``: it is right, too, but no two remainders stand out of rounding, so that
              there are no slopes to look at, as with a linear function;
            - ``"wrong"``: the gradient is wrong along this direction: a remainder of first order
              is left at all steps over which the function is smooth;
            - ``"not smooth"``: the function is not smooth over steps of this size, so that
              nothing can be said of the gradient;
            - ``"rounding"``: rounding, or other noise, hides too much to say anything;
            - ``"not finite"``: the value or the gradient is infinite or not a number.
        steps: The steps ``h`` that decided, in units of the unit direction, largest first: those
            over which the function is smooth and the remainder stands out of rounding.
        remainders: The Taylor remainder at each of them, in the unit of the function's value.
        slopes: The order by which the remainder falls from each step to the next.
        claimed: The slope along the direction that the gradient claims, ``g . d``.
        observed: The slope of the function itself, extrapolated from its secants.
        uncertainty: By how much ``observed`` may be off, so that an error of the gradient along
            this direction that is several times as large would have been seen (and called wrong, if
            it is more than 1e-5 of ``claimed``). Infinite, and
            ``observed`` not a number, where the function showed no slope at all.
        note: What else the verdict has to say.
    """

    outcome: Outcome
    steps: tuple[float, ...] = ()
    remainders: tuple[float, ...] = ()
    slopes: tuple[float, ...] = ()
    claimed: float = math.nan
    observed: float = math.nan
    uncertainty: float = math.inf
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the gradient was found to be right."""
        return self.outcome in ("passed", "exact")

    @property
    def exact(self) -> bool:
        """Whether it was, without remainders that stand out of rounding."""
        return self.outcome == "exact"

    @property
    def verdict(self) -> str:
        """One sentence on the result."""
        falls = f"the remainder falls as h^{self.slopes[-1]:.2f}" if self.slopes else ""
        first_order = falls and self.slopes[-1] < 1.5
        match self.outcome:
            case "passed":
                return f"passed: {falls}{self.note}"
            case "exact":
                return "passed: exact to rounding"
            case "wrong":
                return (
                    "FAILED: the gradient is wrong along this direction: it claims the slope "
                    f"{self.claimed:.6g}, the function's is {self.observed:.6g}"
                    + (f"; {falls}, where h^2 was expected" if first_order else "")
                )
            case "not smooth":
                return f"undecided: the function is not smooth over steps of this size{self.note}"
            case "rounding":
                return (
                    "undecided: nothing stands out of rounding; use double precision, or a longer "
                    "first step h0"
                )
        return f"FAILED: {self.note}"

    def _rows(self) -> list[tuple[str, str, str]]:
        slopes = ["", *(f"{slope:.2f}" for slope in self.slopes)]
        return [
            (f"{h:.2e}", f"{r:.3e}", slope)
            for h, r, slope in zip(
                self.steps, self.remainders, slopes[: len(self.steps)], strict=True
            )
        ]

    def __repr__(self) -> str:
        head = f"Taylor test {self.verdict}"
        return f"{head}\n{table_text(HEAD, self._rows())}" if self.steps else head

    def _repr_html_(self) -> str:
        return table_html(f"Taylor test {self.verdict}", HEAD, self._rows(), "taylor")


def taylor_test(
    fun: Callable[[PyTree], Any],
    x: PyTree,
    direction: PyTree | None = None,
    *,
    h0: float | None = None,
) -> TaylorTest:
    r"""Test the reverse-mode gradient of ``fun`` at ``x`` by its Taylor remainder.

    Measures how fast :math:`|f(x + h d) - f(x) - h \, \nabla f(x) \cdot d|` falls with the step
    ``h`` along ``direction``. The steps shrink, by four in double precision and by two in single,
    until rounding takes over; those over which the function is not yet smooth do not count. How
    large rounding is comes from values of the function at neighbouring points. An error of less
    than 1e-5 of the slope along ``direction`` passes, and is told: so one in a leaf that hardly
    matters there needs a direction of its own.

    Costs one gradient and some thirty values of ``fun``, up to eighty before a verdict that is not
    a pass, and two compilations.

    Args:
        fun: Function of one pytree that returns a real scalar.
        x: Where to test: a pytree of arrays. Integer, boolean and key leaves are held fixed.
        direction: Pytree like ``x`` along which to test, normalised to unit Euclidean norm.
            Default: normally distributed from a fixed key, so that all leaves count; give one
            where the leaves differ in scale by orders of magnitude.
        h0: The first and longest step, positive, in units of the unit direction. Default:
            ``max(1, |x|)`` times 0.01 in double and 0.1 in single precision. Shorten it where
            ``fun`` fails or never ends so far from ``x``.

    Returns:
        Outcome, steps, remainders, slopes and verdict.

    Raises:
        TypeError: If ``fun`` is no function of one argument that JAX can trace, does not return a
            real scalar, or ``x`` holds nothing to vary; if ``direction`` is not like ``x``; if
            ``h0`` is no number.
        ValueError: If ``direction`` is zero or not finite, or ``h0`` is not positive and finite.

    Warns:
        UserWarning: In single precision, where hardly any remainder stands out of rounding.

    References:
        Farrell et al. (2013); for the noise, Moré and Wild (2011), "Estimating computational
        noise", SIAM Journal on Scientific Computing 33(3):1292-1314.

    Example:
        A right gradient, and one that a custom rule has made 1 % too large:

        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rematax as rx
        >>> with jax.enable_x64(True):
        ...     rx.taylor_test(lambda x: jnp.sin(x).sum(), jnp.arange(3.0)).outcome
        'passed'
        >>> @jax.custom_vjp
        ... def sine(x):
        ...     return jnp.sin(x)
        >>> sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (1.01 * ct * jnp.cos(x),))
        >>> with jax.enable_x64(True):
        ...     rx.taylor_test(lambda x: sine(x).sum(), jnp.arange(3.0)).outcome
        'wrong'
    """
    _check(fun, x, h0)
    leaves, tree = jax.tree.flatten(x)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    varied = [i for i, leaf in enumerate(leaves) if inexact(leaf) and leaf.size]

    def value(moved):
        full = list(leaves)
        for i, leaf in zip(varied, moved, strict=True):
            full[i] = leaf
        return fun(jax.tree.unflatten(tree, full))

    point = [leaves[i] for i in varied]
    with in_one_sentence("rx.taylor_test", fun, (x,)):
        out = jax.eval_shape(value, point)
    _check_scalar(out)
    along = _unit(_along(x, varied, point, direction))
    eps = max(float(jnp.finfo(leaf.dtype).eps) for leaf in [out, *point])
    if eps > 1e-12:
        warnings.warn(
            "rx.taylor_test: in single precision rounding hides all but the largest remainders; "
            "enable x64 for a test that means something.",
            stacklevel=2,
        )
    base, gradient = jax.jit(jax.value_and_grad(value))(point)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(x)]
    if not math.isfinite(base):
        return TaylorTest("not finite", note=f"the value at x is not finite, but {float(base)}")
    if where := _not_finite([(paths[i], g) for i, g in zip(varied, gradient, strict=True)]):
        return TaylorTest("not finite", note=f"the gradient is not finite in leaf {where}")

    @jax.jit
    def moved(h):
        return value(
            [a + jnp.asarray(h).astype(a.dtype) * d for a, d in zip(point, along, strict=True)]
        )

    at, g, d = (np.concatenate([_wide(leaf) for leaf in kind]) for kind in (point, gradient, along))
    claimed, size = float((g * d).real.sum()), float(np.linalg.norm(at))
    line = _Line(
        value=functools.cache(lambda h: float(moved(h))),
        base=float(moved(0.0)),
        claimed=claimed,
        size=size,
        eps=eps,
        # the point is rounded, too
        least_noise=eps / 2 * float(np.linalg.norm(g * at)),
        same=SAME * abs(claimed),
    )
    return line.judged(float(h0) if h0 else eps**0.125 * max(1.0, size))


def _not_finite(leaves: list[tuple[Any, Any]]) -> str:
    """Name the first number of a gradient that is not finite."""
    for path, leaf in leaves:
        if (bad := np.argwhere(~np.isfinite(_wide(leaf).reshape(leaf.shape)))).size:
            return f"x{jax.tree_util.keystr(path)}" + "".join(f"[{index}]" for index in bad[0])
    return ""


class _Window(NamedTuple):
    """What four secants in a row tell of the function's slope."""

    first: int
    slope: float
    unsure: float
    noise: float
    largest: float


@dataclass
class _Line:
    """The function along the direction, and what the gradient claims of it."""

    value: Callable[[float], float]
    base: float
    claimed: float
    size: float
    eps: float
    least_noise: float
    same: float

    def judged(self, h0: float) -> TaylorTest:
        """Walk towards ``x``, and judge; before anything but a pass, walk all the way."""
        self.ratio = 4.0 if self.eps < 1e-12 else 2.0
        at_x = self._noise_at_x(h0)
        for quiet in (QUIET, STEPS):
            self.noise = at_x
            self.walk(h0, quiet)
            if len(self.steps) < 4:
                note = (
                    "the value is finite at x, but not at the steps from it: is it at the edge "
                    "of where it is defined?"
                )
                return TaylorTest("not finite", claimed=self.claimed, note=note)
            # Noise may grow on the way from x, as where a sum of squares is zero at x, and among
            # the closest neighbours one's rounding may be much like the next one's.
            h = self.steps[self.likely(self.settled() or list(self.windows())).first]
            self.noise = max(self.noise, noise(self._neighbours(h, h / 2**10)))
            result = self.verdict()
            if result.passed:
                break
        return result

    def _neighbours(self, h: float, spacing: float) -> list[float]:
        return [self.value(h + i * spacing) for i in range(VALUES)]

    def _noise_at_x(self, h0: float) -> float:
        """Estimate the noise from values just so far apart that it shows."""
        longest = h0 / 2**14
        spacing = 64 * self.eps * (self.size or self.eps)  # at zero any step is exact
        if self.claimed:
            spacing = max(spacing, 16 * self.eps * abs(self.base / self.claimed))
        for _ in range(3):
            spacing = min(spacing, longest)
            values = self._neighbours(0.0, spacing)
            if not stuck(values) or spacing == longest:
                break
            spacing *= 2**13
        return noise(values)

    def walk(self, h0: float, enough: int) -> None:
        """Take values at ever shorter steps, until enough secants differ by noise alone."""
        steps: list[float] = []
        rises: list[float] = []
        quiet = 0
        for k in range(STEPS):
            h = h0 / self.ratio**k
            rise = self.value(h) - self.base
            if not math.isfinite(rise):
                steps, rises = [], []  # too long, and so are those before it
                continue
            if steps:
                gap = abs(rise / h - rises[-1] / steps[-1])
                loud = 3 * self._floor(max(abs(rise), abs(rises[-1]))) * (1 / h + 1 / steps[-1])
                quiet = quiet + 1 if gap <= loud else 0
            steps.append(h)
            rises.append(rise)
            if quiet == enough and len(steps) > 4:
                break
        while len(rises) > 4 and rises[-1] == 0 and any(rises):
            del steps[-1], rises[-1]  # shorter than the value can show
        self.steps, self.rises = np.array(steps), np.array(rises)

    def _floor(self, rise: Any) -> Any:
        """Return the noise of a value, at least its own rounding."""
        rounding = self.eps / 2 * (abs(self.base) + abs(rise))
        return np.maximum(np.maximum(self.noise, self.least_noise), rounding)

    def windows(self) -> Iterator[_Window]:
        """Extrapolate the slope at ``x`` from each two secants in a row, and say how surely.

        By Richardson: the error of a secant falls with the step, that of the extrapolated slope
        with its square, so that the change from one to the next bounds it.
        """
        ratio, secants = self.ratio, self.rises / self.steps
        loud = self._floor(abs(self.rises)) / self.steps
        slopes = (ratio * secants[1:] - secants[:-1]) / (ratio - 1)
        noises = (ratio * loud[1:] + loud[:-1]) / (ratio - 1)
        gaps = abs(np.diff(slopes))
        for i in range(2, len(slopes)):
            gap = max(gaps[i - 1], 2 * gaps[i - 2] / ratio**2)
            yield _Window(
                first=i - 2,
                slope=float(slopes[i]),
                unsure=float(gap + SURE * noises[i]),
                noise=float(SURE * noises[i]),
                largest=float(abs(secants[i - 2 : i + 2]).max()),
            )

    @staticmethod
    def likely(windows: list[_Window]) -> _Window:
        """Give the window that looks most like that of a smooth function."""
        return min(windows, key=lambda window: window.unsure / (window.largest or 1.0))

    def _flat(self, window: _Window) -> bool:
        """Tell whether the value does not change at all there, but for plain rounding."""
        rises = abs(self.rises[window.first : window.first + 4])
        plain = self.noise <= PLAIN * self.eps * abs(self.base)
        return plain and bool((rises <= SURE * self._floor(rises)).all())

    def settled(self) -> list[_Window]:
        """Give the windows with a slope that holds for all shorter steps, but for their noise."""
        windows = list(self.windows())
        return [
            one
            for i, one in enumerate(windows)
            if (one.unsure <= SMOOTH * one.largest or self._flat(one))
            and all(
                abs(other.slope - one.slope) <= 3 * (one.unsure + other.noise)
                for other in windows[i + 1 :]
            )
        ]

    def verdict(self) -> TaylorTest:
        """Hold the slope that is known best against that of the gradient."""
        settled = sorted(self.settled(), key=lambda window: window.unsure)
        if not settled:
            return self._undecided(self.likely(list(self.windows())), math.inf)
        best = settled[0]
        off = best.slope - self.claimed
        if abs(off) <= best.unsure + self.same:
            return self._right(best)
        confirmed = any((w.slope - self.claimed) / off > w.unsure / abs(off) for w in settled[1:])
        if abs(off) <= 3 * best.unsure + self.same or not confirmed:
            return self._undecided(best, abs(off))
        if self._kink(max(settled, key=lambda window: window.first)):
            note = ": its slopes on the two sides of x differ, as at a kink"
            return dataclasses.replace(
                self._undecided(best, math.inf), outcome="not smooth", note=note
            )
        return self._result("wrong", min(w.first for w in settled), best)

    def _right(self, best: _Window) -> TaylorTest:
        """Pass a gradient, if one that is 1 % wrong would not have agreed as well."""
        result = self._result("passed", min(w.first for w in self.settled()), best)
        falls = len(result.slopes) >= 2 and min(result.slopes) > 1.4
        stationary = abs(self.claimed) <= best.unsure
        bound = best.unsure + self.same
        if not (
            bound <= RESOLVED * max(abs(self.claimed), best.largest)
            or (stationary and falls)
            or (self.claimed == 0 and self._flat(best))
        ):
            return self._undecided(best, bound)
        if not result.slopes:
            return dataclasses.replace(result, outcome="exact")
        off = abs(best.slope - self.claimed)
        if off > best.unsure and self.claimed:
            note = (
                f", and the slope is right to {off / abs(self.claimed):.0e} of itself: if that is "
                "more than a solver's tolerance, test one leaf at a time, by direction"
            )
            return dataclasses.replace(result, note=note)
        return result

    def _kink(self, window: _Window) -> bool:
        """Tell whether the slope is another on the other side of ``x``.

        Asked over the shortest steps: a kink further away is none at ``x``.
        """
        h = self.steps[window.first + 2 : window.first + 4]
        near, far = ((self.value(-step) - self.base) / -step for step in (h[1], h[0]))
        slope = (self.ratio * near - far) / (self.ratio - 1)
        bound = 6 * window.unsure + 0.01 * max(abs(slope), abs(window.slope))
        return abs(slope - window.slope) > bound

    def _undecided(self, best: _Window, uncertainty: float) -> TaylorTest:
        """Say whether it was for noise or for the function's shape that nothing could be told."""
        drowned = best.noise > best.unsure / 4
        return TaylorTest(
            "rounding" if drowned else "not smooth",
            claimed=self.claimed,
            observed=best.slope if math.isfinite(uncertainty) else math.nan,
            uncertainty=uncertainty,
        )

    def _result(self, outcome: Outcome, first: int, best: _Window) -> TaylorTest:
        """Report the remainders that stand out of noise, from the first that counts on."""
        remainders = abs(self.rises - self.steps * self.claimed)
        clear = remainders > CLEAR * self._floor(abs(self.rises))
        counting = itertools.dropwhile(lambda i: not clear[i], range(first, len(clear)))
        kept = list(itertools.takewhile(lambda i: clear[i], counting))
        steps, left = self.steps[kept], remainders[kept]
        slopes = np.diff(np.log(left)) / np.diff(np.log(steps))
        return TaylorTest(
            outcome,
            tuple(steps.tolist()),
            tuple(left.tolist()),
            tuple(slopes.tolist()),
            self.claimed,
            best.slope,
            best.unsure,
        )


def _check(fun: Any, x: PyTree, h0: Any) -> None:
    """Refuse what can be refused without running anything."""
    check_function("rx.taylor_test", fun)
    check_arguments("rx.taylor_test", fun, (x,))
    if why := misfit(fun, x):
        raise TypeError(
            f"rx.taylor_test: {name_of(fun)} must take one argument, x ({why}): bind the others "
            "with functools.partial or a lambda, or put what is to vary into one pytree."
        )
    leaves = jax.tree.leaves(x)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise TypeError("rx.taylor_test: x must hold numbers; call it outside of jax.jit.")
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        raise TypeError(
            "rx.taylor_test: x must hold numbers, not jax.ShapeDtypeStruct: the test runs fun."
        )
    if not any(inexact(leaf) and leaf.size for leaf in map(jnp.asarray, leaves)):
        raise TypeError(
            "rx.taylor_test: x holds no floating-point number to vary; convert integers with "
            "jnp.asarray(x, float)."
        )
    if h0 is None:
        return
    if isinstance(h0, bool) or not isinstance(h0, numbers.Real):
        raise TypeError(f"rx.taylor_test: h0 must be a number, the first step, not {h0!r:.40}.")
    if not 0 < float(h0) < math.inf:
        raise ValueError(f"rx.taylor_test: h0 must be positive and finite, not {h0}.")


def _check_scalar(out: Any) -> None:
    must = "rx.taylor_test: fun must return a real scalar, not"
    if not hasattr(out, "dtype"):
        raise TypeError(
            f"{must} a {type(out).__name__}: return the value alone, as does lambda x: fun(x)[0] "
            "where other things come with it."
        )
    kind = f"{out.dtype}{list(out.shape)}"
    if out.shape:
        raise TypeError(f"{must} {kind}: sum it, or take one entry.")
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise TypeError(f"{must} {kind}: take its real part or its modulus, or convert it.")


def _along(x: PyTree, varied: list[int], point: list, direction: PyTree | None) -> list:
    """Give the direction's leaves, drawn from a fixed key unless given."""
    if direction is None:
        keys = jax.random.split(jax.random.key(0), len(point))
        return [
            jax.random.normal(key, a.shape, a.dtype) for key, a in zip(keys, point, strict=True)
        ]
    tree: Any = jax.tree.structure(x)
    given_tree: Any = jax.tree.structure(direction)
    if given_tree != tree:
        raise TypeError(
            f"rx.taylor_test: direction must have the structure of x, {tree}, not {given_tree}."
        )
    given = jax.tree_util.tree_leaves_with_path(direction)
    return [_leaf_along(*given[i], a) for i, a in zip(varied, point, strict=True)]


def _leaf_along(path: Any, leaf: Any, like: jax.Array) -> jax.Array:
    key = jax.tree_util.keystr(path)
    where = f"rx.taylor_test: direction{key}"
    try:
        leaf = jnp.asarray(leaf)
    except TypeError:
        raise TypeError(f"{where} must be an array, not {leaf!r:.40}.") from None
    if leaf.shape != like.shape:
        raise TypeError(f"{where} has shape {leaf.shape}, where x{key} has {like.shape}.")
    if jnp.iscomplexobj(leaf) and not jnp.iscomplexobj(like):
        raise TypeError(f"{where} is complex, where x{key} is real.")
    if not jnp.isfinite(leaf).all():
        raise ValueError(f"{where} is not finite.")
    return leaf.astype(like.dtype)


def _unit(leaves: list) -> list:
    norm = math.hypot(*(float(np.linalg.norm(_wide(d))) for d in leaves))
    if norm == 0:
        raise ValueError("rx.taylor_test: direction must not be zero.")
    return [d / jnp.asarray(norm, d.dtype) for d in leaves]


def _wide(leaf: Any) -> np.ndarray:
    """Bring a leaf's numbers to the host, in double precision."""
    return np.asarray(leaf).astype(complex if jnp.iscomplexobj(leaf) else float).ravel()
