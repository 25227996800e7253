"""The kernel side of the book: how a page's numbers become assertions, prose and a ledger.

A chapter computes a number, and :func:`claim` does three things with it. It asserts the number, so
that a build with a wrong one fails. It *glues* the number, so that prose can show it without
anybody typing it. And it leaves a row (value, expectation, tolerance, source) in the metadata of
that glued output, so that the row travels with it through the execution cache. The Sphinx side, in
``docs/_ext``, gathers the rows into ``claims.json`` and the ledger pages.

:func:`record` glues without asserting (timings, names of what was found), :func:`belief` records
what became of a belief of the field that a page put to the test, :func:`figure` shows a figure that
is legible in light and dark and has alternative text, :func:`table` shows a table, :func:`stored`
reads a run that was too long for a page, and :func:`stamp` says what the page ran on.

Outside a notebook kernel all of them check their arguments and show nothing.
"""

from __future__ import annotations

import html
import io
import json
import math
import os
import re
import sys
from base64 import b64encode
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ._backends import describe_backend
from ._tables import table_html, table_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ClaimError", "belief", "claim", "figure", "record", "stamp", "stored", "table"]

VERDICTS = ("holds", "holds only if", "does not hold")

# MyST-NB takes an output whose types carry this prefix for a value to paste, not to show.
_GLUED = "application/papermill.record/"
_ID = re.compile(r"[a-z0-9]+([-_.][a-z0-9]+)*")

_LONG = re.compile(r"-?\b\d+\.\d{3,}\b")  # a number with more than two decimals

# id -> the run of a cell that used it last
_used: dict[str, int] = {}


class ClaimError(AssertionError):
    """A claim of the book that turned out not to hold."""


def claim(
    id: str,
    value: Any,
    *,
    expected: float | None = None,
    below: float | None = None,
    above: float | None = None,
    rtol: float = 0.0,
    atol: float = 0.0,
    unit: str = "",
    source: str = "",
    says: str = "",
) -> None:
    r"""Assert a number, glue it for the prose, and leave its row for the ledger.

    The claim holds if :math:`|value - expected| \le atol + rtol\,|expected|`, if
    :math:`value < below` and if :math:`value > above`, each where given. At least one must be.

    Args:
        id: Name to paste the value by, lower-case words joined by ``-``, ``_`` or ``.``; used once
            in the whole book. No colon: MyST puts the number format behind one.
        value: A Python, NumPy or JAX real scalar, in ``unit``. Stored as ``int`` or ``float``.
        expected: The right value, in ``unit``.
        below: Strict upper bound, in ``unit``.
        above: Strict lower bound, in ``unit``.
        rtol: Relative tolerance on ``expected``. The default, zero, asks for equality.
        atol: Absolute tolerance on ``expected``, in ``unit``. The default, zero, asks for equality.
        unit: Unit of the value, such as ``"B"`` or ``"1/min"``; empty for a pure number.
        source: Where the expectation comes from: a publication, a closed form, a count.
        says: What is claimed, as a short phrase for the ledger.

    Raises:
        ClaimError: The claim does not hold. Names the id, the value and what was expected.
        TypeError: The value is not a real scalar.
        ValueError: The value is not finite, the id is malformed or used before, a tolerance is
            negative or has nothing to apply to, or nothing was claimed.

    Example:
        >>> from rematax.book import claim
        >>> claim("doc-two", 1.9999, expected=2, rtol=1e-3, source="arithmetic")
        >>> claim("doc-three", 3.5, expected=3)
        Traceback (most recent call last):
        ...
        rematax.book.ClaimError: claim 'doc-three' does not hold: the value is 3.5, expected 3.
    """
    number = _scalar(id, value)
    bounds = {"expected": expected, "below": below, "above": above}
    given = {name: _scalar(id, bound) for name, bound in bounds.items() if bound is not None}
    if not given:
        raise ValueError(
            f"claim {id!r} claims nothing: give expected=, below= or above=, "
            "or use record() for a value that is only shown."
        )
    rtol, atol = _scalar(id, rtol), _scalar(id, atol)
    if rtol < 0 or atol < 0:
        raise ValueError(f"claim {id!r}: rtol and atol must not be negative, got {rtol}, {atol}.")
    if (rtol or atol) and "expected" not in given:
        raise ValueError(f"claim {id!r}: a tolerance needs expected=; bounds are strict.")
    _check_id(id)

    holds = (
        ("expected" not in given or _close(number, given["expected"], rtol, atol))
        and number < given.get("below", math.inf)
        and number > given.get("above", -math.inf)
    )
    if not holds:
        within = "".join(
            f", {name} {tol:g}" for name, tol in (("rtol", rtol), ("atol", atol)) if tol
        )
        wanted = ", ".join(f"{name} {bound!r}" for name, bound in given.items())
        about = f" ({says})" if says else ""
        raise ClaimError(
            f"claim {id!r}{about} does not hold: the value is {number!r}, {wanted}{within}."
        )
    _register(id)
    tolerance = {"rtol": rtol, "atol": atol} if "expected" in given else None
    row = {**given, "tolerance": tolerance, "unit": unit, "source": source, "says": says}
    _glue(id, "claim", number, verdict="holds", **row)


def record(id: str, value: Any, *, unit: str = "", says: str = "") -> None:
    """Glue a value for the prose without asserting it.

    For what depends on the machine or the JAX version: a timing ratio, the name of what was found.

    Args:
        id: Name to paste the value by, as in :func:`claim`.
        value: A real scalar in ``unit``, or a short text.
        unit: Unit of the value; empty for a pure number or text.
        says: What was measured, as a short phrase for the ledger.

    Raises:
        TypeError: The value is neither a real scalar nor text.
        ValueError: The value is not finite, or the id is malformed or used before.

    Example:
        >>> from rematax.book import record
        >>> record("doc-ratio", 1.31, says="time with and without checkpointing")
    """
    stored = value if isinstance(value, str) else _scalar(id, value)
    _check_id(id)
    _register(id)
    _glue(id, "record", stored, unit=unit, says=says)


def belief(id: str, text: str, verdict: str, because: str) -> None:
    """Record what became of a belief of the field that this page put to the test, and show it.

    A belief that does not hold is a finding, not a failure.

    Args:
        id: Name to paste the verdict by, as in :func:`claim`.
        text: The belief, as people say it.
        verdict: ``"holds"``, ``"holds only if"`` or ``"does not hold"``. Compute it.
        because: What was measured, with its numbers, as one sentence. Compute it too.

    Raises:
        ValueError: An unknown verdict, no reason given, or an id that is malformed or used before.

    Example:
        >>> from rematax.book import belief
        >>> belief("doc-twice", "It takes twice the time.", "does not hold", "it took 1.3 times.")
    """
    if verdict not in VERDICTS:
        raise ValueError(
            f"belief {id!r}: the verdict is {verdict!r}, but must be one of {VERDICTS}."
        )
    if not all(isinstance(part, str) and part.strip() for part in (text, because)):
        raise ValueError(f"belief {id!r} needs both its text and what was measured (because=).")
    _check_id(id)
    _register(id)
    _glue(id, "belief", verdict, verdict=verdict, says=text, because=because)
    page = (
        f'<div class="rx-belief" data-verdict="{verdict}">'
        f"<p><strong>Folklore, tested.</strong> “{html.escape(text)}” "
        f'<span class="rx-verdict">{verdict}</span> {html.escape(because)}</p></div>'
    )
    plain = f"Folklore, tested: “{text}” {verdict}: {because}"
    _display({"text/html": page, "text/plain": plain})


def figure(fig: Figure, *, alt: str) -> None:
    """Show a Matplotlib figure as an inline drawing that follows the page's light or dark theme.

    Emits HTML with inline SVG, in which Matplotlib's default colours are replaced by CSS variables,
    and a PNG for notebooks. The figure is closed.

    Args:
        fig: The figure. Leave colours at their defaults (``"C0"``, ``"k"``, ``"0.5"``, ...): only
            those follow the theme.
        alt: What the figure shows, in words, with its numbers: compute it. The first sentence is
            the title, the whole is the description.

    Raises:
        ValueError: The alternative text is empty.

    Example:
        >>> import matplotlib
        >>> matplotlib.use("Agg")
        >>> import matplotlib.pyplot as plt
        >>> from rematax.book import figure
        >>> fig, ax = plt.subplots()
        >>> figure(fig, alt=f"A line from {0} to {1}.")
    """
    import matplotlib.pyplot as plt

    if not hasattr(fig, "savefig"):
        raise TypeError(f"figure needs a Matplotlib figure, not a {type(fig).__name__}.")
    if not (isinstance(alt, str) and alt.strip()):
        raise ValueError("figure needs alt=: say in words, with numbers, what the figure shows.")
    png = io.BytesIO()
    fig.savefig(png, format="png", bbox_inches="tight", dpi=120)
    svg = _themed_svg(fig, alt)
    plt.close(fig)
    _display(
        {
            "text/html": f'<div class="rx-figure" tabindex="0">{svg}</div>',
            "image/png": b64encode(png.getvalue()).decode(),
            "text/plain": alt,
        },
        rematax={"kind": "figure", "alt": alt},
    )


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Show a table of what was computed.

    Args:
        caption: What the table shows.
        head: The columns' headings, with units.
        rows: Cells; shown as ``str`` shows them. The first of a row is its heading.

    Raises:
        ValueError: There is no row, or one has not as many cells as there are headings.

    Example:
        >>> from rematax.book import table
        >>> table("Squares", ["number", "square"], [(n, n**2) for n in (1, 2)])
    """
    cells = [[str(cell) for cell in row] for row in rows]
    if not cells or any(len(row) != len(head) for row in cells):
        raise ValueError(
            f"table {caption!r} needs rows of {len(head)} cells, as many as it has headings."
        )
    _display(
        {
            "text/html": table_html(caption, head, cells, "results"),
            "text/plain": f"{caption}\n{table_text(head, cells)}",
        }
    )


def stored(name: str, folder: str | Path | None = None) -> dict[str, Any]:
    """Read a dated run: numbers that take too long, or another machine, to compute on a page.

    Args:
        name: The run is the file ``name.json``.
        folder: Where it is. Default: what the variable ``REMATAX_DATA`` says, as it does while the
            book is built; else ``../_data``, as seen from a page's own folder.

    Returns:
        The run. It has a ``"date"`` and a ``"machine"`` for the page to name, beside its numbers,
        whose units are the run's own.

    Raises:
        FileNotFoundError: There is no such run.
        ValueError: The run does not say when or where it was made.

    Example:
        >>> import pathlib, tempfile
        >>> from rematax.book import stored
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "run.json").write_text('{"date": "1992-01-01", "machine": "a VAX"}')
        >>> stored("run", folder)["date"]
        '1992-01-01'
    """
    path = Path(folder or os.environ.get("REMATAX_DATA", "../_data")) / f"{name}.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no stored run {name!r} in {path.parent}: see tests/benchmarks for how to "
            "make one, or pass folder=."
        )
    run: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if missing := {"date", "machine"} - run.keys():
        raise ValueError(f"the stored run {name!r} lacks {', '.join(sorted(missing))}.")
    return run


def stamp() -> None:
    """Say what this page was computed on: versions, backend and floating-point width.

    Example:
        >>> from rematax.book import stamp
        >>> stamp()
    """
    here = describe_backend()
    width = "float64" if here.float64 else "float32"
    text = f"Computed with {_versions()}, Python {here.python}, on {here.summary}, in {width}."
    _display({"text/html": f'<p class="rx-stamp">{html.escape(text)}</p>', "text/plain": text})


_CYCLE = "#1f77b4 #ff7f0e #2ca02c #d62728 #9467bd #8c564b #e377c2 #7f7f7f #bcbd22 #17becf".split()

# Matplotlib's defaults -> what a page's style sheet may set, with the default as the fallback.
_COLOURS = {
    "#000000": "currentColor",
    "#ffffff": "var(--pst-color-background, #ffffff)",
    "#b0b0b0": "var(--rx-grid, #b0b0b0)",
    "#cccccc": "var(--rx-grid, #cccccc)",
    "#808080": "var(--pst-color-text-muted, #808080)",
    **{colour: f"var(--rx-c{i}, {colour})" for i, colour in enumerate(_CYCLE)},
}


def _themed_svg(fig: Figure, alt: str) -> str:
    """Draw a figure as an SVG element that has a name and lets the page choose its colours."""
    import matplotlib as mpl

    out = io.StringIO()
    # Text stays text: it can be selected, searched and read aloud. Ids come from the alt text, so
    # that the same figure is the same bytes, and two figures of a page do not share their ids.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": alt}):
        fig.savefig(
            out, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None}
        )
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg).group(1))  # type: ignore[union-attr]
    # Points to CSS pixels: the drawing is shown at its size, and shrinks on a narrow screen.
    style = f"max-width:{width * 4 / 3:.0f}px;width:100%;height:auto"
    head = re.search(r"<svg[^>]*>", svg).group(0)  # type: ignore[union-attr]
    viewbox = re.search(r'viewBox="[^"]*"', head).group(0)  # type: ignore[union-attr]
    title = html.escape(re.split(r"(?<=[.:;])\s", alt, maxsplit=1)[0])
    opened = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{viewbox} role="img" aria-label="{html.escape(alt)}" fill="currentColor" style="{style}">'
        f"<title>{title}</title><desc>{html.escape(alt)}</desc>"
    )
    body = svg[svg.index(head) + len(head) :]
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # Hundredths of a point are finer than any screen; the other digits are a tenth of a page.
    body = re.sub(r"<[^>]*>", lambda tag: _LONG.sub(lambda m: f"{float(m[0]):.2f}", tag[0]), body)
    # Matplotlib names its fallback fonts one by one; the page's own font is the better choice.
    body = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--pst-font-family-base, sans-serif)", body)
    return opened + re.sub(r"#[0-9a-f]{6}\b", lambda m: _COLOURS.get(m[0], m[0]), body)


def _scalar(id: str, value: Any) -> int | float:
    """Return the value as a Python int or float, or say why it is none."""
    shape = getattr(value, "shape", ()) if not isinstance(value, str) else None
    dtype = getattr(value, "dtype", None) if shape == () else None
    if isinstance(value, (bool, np.bool_)) or dtype == np.bool_:
        raise TypeError(f"{id!r} got a truth value: pass the number that was compared instead.")
    whole = isinstance(value, int) or (
        dtype is not None and jax.numpy.issubdtype(dtype, np.integer)
    )
    real = isinstance(value, float) or (
        dtype is not None and jax.numpy.issubdtype(dtype, np.floating)
    )
    if not (whole or real):
        what = f"an array of shape {shape}" if shape else f"a {type(value).__name__}"
        raise TypeError(f"{id!r} got {what}: pass one real number, such as float(x) or x.max().")
    number = int(value) if whole else float(value)
    if not whole and not math.isfinite(number):
        raise ValueError(f"{id!r} got {number}: a number of the book must be finite.")
    return number


def _close(number: float, expected: float, rtol: float, atol: float) -> bool:
    """Compare without rounding: an int need not be a float."""
    number, expected, rtol, atol = map(Fraction, (number, expected, rtol, atol))  # type: ignore
    return abs(number - expected) <= atol + rtol * abs(expected)


def _check_id(id: str) -> None:
    """Refuse a malformed id."""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise ValueError(
            f"the id {id!r} is malformed: use lower-case words or digits joined by '-', '_' or '.'."
        )


def _register(id: str) -> None:
    """Refuse an id that was used already.

    A person at a notebook may edit a cell and run it again, so there only a second use by the same
    run of a cell counts. A build and a script run everything once, and see every second use.
    """
    shell = _shell()
    run = shell.execution_count if shell else 0
    strict = shell is None or "REMATAX_BOOK" in os.environ
    if id in _used and (strict or _used[id] == run):
        raise ValueError(f"the id {id!r} is used already: every number needs its own.")
    _used[id] = run


def _shell() -> Any:
    """Return the running IPython shell, or None. Never imports IPython by itself."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def _glue(id: str, kind: str, value: int | float | str, **row: Any) -> None:
    """Emit a value that prose can paste, with its ledger row in the metadata."""
    row = {
        "id": id,
        "kind": kind,
        "value": value,
        **row,
        "backend": _backend(),
        "versions": _versions(),
    }
    _display(
        {f"{_GLUED}text/plain": repr(value)},
        scrapbook={"name": id, "mime_prefix": _GLUED},
        rematax=row,
    )


def _display(data: dict[str, str], **metadata: Any) -> None:
    """Publish an output to the notebook; do nothing where there is none."""
    if _shell():
        from IPython.display import publish_display_data

        publish_display_data(data=data, metadata=metadata)


def _backend() -> str:
    return describe_backend().summary


def _versions() -> str:
    return f"jax {jax.__version__}"
