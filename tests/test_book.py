"""rematax.book: what is asserted, what is refused, and what a kernel is given to carry."""

import re

import matplotlib

matplotlib.use("Agg")

import jax.numpy as jnp
import matplotlib.pyplot as plt
import nbclient
import nbformat
import numpy as np
import pytest

from rematax import book


@pytest.fixture(autouse=True)
def fresh_ids(monkeypatch):
    monkeypatch.setattr(book, "_used", {})


@pytest.mark.parametrize(
    ("value", "bounds"),
    [
        (3, {"expected": 3}),
        (np.float64(1.001), {"expected": 1.0, "rtol": 1e-2}),
        (jnp.float32(0.5), {"below": 1, "above": 0}),
        (jnp.bfloat16(0.5), {"expected": 0.5}),
        (jnp.arange(3)[2], {"expected": 2}),
        (-1e-12, {"expected": 0.0, "atol": 1e-9}),
    ],
)
def test_a_true_claim_passes(value, bounds):
    book.claim("it", value, **bounds)


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (2, {"expected": 3}, "claim 'it' does not hold: the value is 2, expected 3."),
        (1.1, {"expected": 1.0, "rtol": 0.05}, "the value is 1.1, expected 1.0, rtol 0.05"),
        (1.0, {"below": 1.0}, "the value is 1.0, below 1.0"),
        (1.0, {"above": 1.0}, "the value is 1.0, above 1.0"),
        (5, {"expected": 5, "below": 4}, "expected 5, below 4"),
    ],
)
def test_a_false_claim_names_id_value_and_expectation(value, bounds, message):
    with pytest.raises(book.ClaimError, match=message):
        book.claim("it", value, **bounds)


def test_a_failed_claim_says_what_was_claimed():
    with pytest.raises(book.ClaimError, match=r"claim 'it' \(bytes of a state\) does not hold"):
        book.claim("it", 1, expected=2, says="bytes of a state")


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (float("nan"), ValueError, "must be finite"),
        (jnp.inf, ValueError, "must be finite"),
        (np.ones(3), TypeError, r"an array of shape \(3,\)"),
        (1j, TypeError, "one real number"),
        (jnp.complex64(1), TypeError, "one real number"),
        ("3", TypeError, "a str"),
        (None, TypeError, "a NoneType"),
        (True, TypeError, "truth value"),
        (jnp.array(True), TypeError, "truth value"),
    ],
)
def test_what_is_no_finite_real_scalar_is_refused(value, error, message):
    with pytest.raises(error, match=message):
        book.claim("it", value, expected=1)


@pytest.mark.parametrize("id", ["with:colon", "Upper", "", "a b", "-a", "a--b", 3])
def test_malformed_ids_are_refused(id):
    with pytest.raises(ValueError, match="malformed"):
        book.claim(id, 1, expected=1)


def test_other_misuse_is_refused():
    with pytest.raises(ValueError, match=r"claims nothing.*record\(\)"):
        book.claim("it", 1)
    with pytest.raises(ValueError, match="must not be negative"):
        book.claim("it", 1, expected=1, rtol=-1)
    with pytest.raises(ValueError, match="a tolerance needs expected="):
        book.claim("it", 1, below=2, rtol=1e-3)
    for bad in (float("inf"), True, None, "1e-3"):
        with pytest.raises((TypeError, ValueError)):
            book.claim("it", 1, expected=1, rtol=bad)
    with pytest.raises(book.ClaimError):
        book.claim("it", 2**53 + 1, expected=2.0**53)
    for bad in ([1, 2], [1, [2]]):
        with pytest.raises(TypeError, match="one real number"):
            book.record("it", bad)
    with pytest.raises(TypeError, match="a Matplotlib figure"):
        book.figure("fig", alt="A line.")
    with pytest.raises(ValueError, match="what was measured"):
        book.belief("it", "Text.", "holds", None)
    with pytest.raises(ValueError, match="the verdict is 'maybe'"):
        book.belief("it", "Text.", "maybe", "Because.")
    with pytest.raises(ValueError, match="what was measured"):
        book.belief("it", "Text.", "holds", " ")
    fig, _ = plt.subplots()
    with pytest.raises(ValueError, match="needs alt="):
        book.figure(fig, alt="")
    plt.close(fig)


def test_an_id_is_used_once():
    book.record("it", 1)
    with pytest.raises(ValueError, match="'it' is used already"):
        book.claim("it", 1, expected=1)


def run(*cells: str) -> list[list[dict]]:
    """Execute cells in a kernel; return their outputs."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.execute(notebook, extra_arguments=["--log-level=40"])
    return [cell.outputs for cell in notebook.cells]


def test_in_a_kernel():
    glued, again, figure, belief, stamp = run(
        "import numpy as np, rematax.book as book\n"
        "book.claim('it', np.float64(1.5), expected=1.5, unit='MB', "
        "source='arithmetic', says='half')",
        "for _ in range(2):\n"
        "    pass\n"
        "ip = get_ipython()\n"
        "source = 'book.record(\"twice\", 1)'\n"
        "assert ip.run_cell(source, store_history=True).success\n"
        "ok = ip.run_cell(source, store_history=True).success  # the same cell, run again\n"
        "twice = ip.run_cell(source + ';' + source, store_history=True).error_in_exec\n"
        "print(ok, type(twice).__name__)",
        "import matplotlib.pyplot as plt\n"
        "fig, ax = plt.subplots(); ax.plot([0, 1], label='a < b'); ax.legend()\n"
        "book.figure(fig, alt='A line from 0 to 1. Straight & \"true\".')",
        "book.belief('lore', 'All < is > well.', 'holds only if', 'it is 3 & more.')",
        "book.stamp()",
    )
    (output,) = glued
    assert output.data == {"application/papermill.record/text/plain": "1.5"}
    assert output.metadata["scrapbook"]["name"] == "it"
    row = output.metadata["rematax"]
    assert row["value"] == 1.5 and row["expected"] == 1.5 and row["verdict"] == "holds"
    assert (row["unit"], row["source"], row["says"]) == ("MB", "arithmetic", "half")
    assert row["tolerance"] == {"rtol": 0.0, "atol": 0.0}
    assert row["versions"].startswith("jax ") and row["backend"]

    printed = "".join(o.text for o in again if o.output_type == "stream" and o.name == "stdout")
    assert printed.splitlines()[-1] == "True ValueError"

    (output,) = figure
    svg = output.data["text/html"]
    assert 'role="img"' in svg and "<title>A line from 0 to 1.</title>" in svg
    assert "Straight &amp; &quot;true&quot;." in svg and "a &lt; b" in svg
    assert "var(--rx-c0, #1f77b4)" in svg and "currentColor" in svg
    assert "#000000" not in svg and "Date" not in svg
    assert not re.search(r"<[^>]*\d\.\d{3}", svg.split("</desc>")[1])  # no digits beyond a screen's
    assert output.data["image/png"] and output.data["text/plain"].startswith("A line")

    value, card = belief
    assert value.metadata["rematax"]["because"] == "it is 3 & more."
    assert 'data-verdict="holds only if"' in card.data["text/html"]
    assert "All &lt; is &gt; well." in card.data["text/html"]
    assert stamp[0].data["text/plain"].startswith("Computed with jax ")


def test_figures_are_reproducible_and_do_not_share_ids():
    def svg(alt):
        fig, ax = plt.subplots()
        ax.plot([0, 1])
        drawn = book._themed_svg(fig, alt)
        plt.close(fig)
        return drawn

    ids = [set(re.findall(r'clip-path="url\(#(\w+)\)"', svg(alt))) for alt in ("One.", "Two.")]
    assert svg("One.") == svg("One.")
    assert ids[0] and not ids[0] & ids[1]


def test_table_refuses_ragged_rows_and_none():
    with pytest.raises(ValueError, match="needs rows of 2 cells"):
        book.table("T", ["a", "b"], [(1, 2), (3,)])
    with pytest.raises(ValueError, match="needs rows of 1 cells"):
        book.table("T", ["a"], [])


def test_table_escapes_and_has_headings(monkeypatch):
    shown = {}
    monkeypatch.setattr(book, "_display", lambda data, **_: shown.update(data))
    book.table("a < b", ["name", "MB"], [("x & y", 1.5), ("z", 20)])
    page = shown["text/html"]
    assert "<caption>a &lt; b</caption>" in page and '<th scope="row">x &amp; y</th>' in page
    assert page.count('<th scope="col">') == 2 and "<td>1.5</td>" in page
    assert shown["text/plain"].splitlines()[1:] == ["name    MB", "x & y  1.5", "z       20"]


def test_a_stored_run_is_read_from_the_folder_that_the_build_names(tmp_path, monkeypatch):
    (tmp_path / "run.json").write_text('{"date": "2026-01-01", "machine": {}, "rows": [1.5]}')
    monkeypatch.setenv("REMATAX_DATA", str(tmp_path))
    assert book.stored("run")["rows"] == [1.5]


def test_a_run_without_a_date_or_at_all_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"machine": {}}')
    with pytest.raises(ValueError, match="the stored run 'run' lacks date"):
        book.stored("run", tmp_path)
    with pytest.raises(FileNotFoundError, match="no stored run 'other' in"):
        book.stored("other", tmp_path)
