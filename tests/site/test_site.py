"""The built book, as a reader's browser sees it."""

import gzip
import json
import re
from collections import Counter

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe

from .conftest import ROOT, SITE

PAGES = sorted(
    path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
    for path in (ROOT / "docs").rglob("*.md")
    if "_build" not in path.parts
)
CHAPTERS = [page for page in PAGES if page.startswith(("learn/", "apply/"))]
# Two frames, in which animations start, and to the end of these.
SETTLE = """new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))
    .then(() => document.getAnimations().forEach(a => a.finish()))"""
WEIGHT = 320_000  # bytes, compressed, of a page with all it loads but the search index


def rows() -> list[dict]:
    return json.loads((SITE / "claims.json").read_text("utf-8"))


# The figures of the earlier tutorial that this book covers: id -> value, as printed there.
ADAM = {
    0: (0.4000, 0.2000, 0.107273),
    10: (0.6240, 0.0100, 0.917683),
    20: (0.8598, 0.0100, 0.915442),
    30: (0.9231, 0.0100, 0.914671),
    40: (0.9187, 0.0100, 0.914670),
    49: (0.8885, 0.0100, 0.914955),
}
FIGURES = {
    "memory-norm": "5.7408e-09",
    "checkpoint-entry": "9.58528401e-07",
    "checkpoint-entry-decorated": "9.58528401e-07",
    "policies-norm": "5.9413659024",
    "policies-recompute": "5.9413659024",
    "policies-dots-norm": "5.9413659024",
    "policies-own-norm": "5.9413659024",
    "nested-norm": "1.0636e-05",
    "scan-norm": "1.8154e-09",
    "plug-outlet-a": "4.31712e-05",
    "plug-outlet-b": "0.0132216",
    "plug-outlet-c": "0.9867352",
    "plug-balance": "1.0000000",
    "plug-gradient-k1": "0.01234945",
    "plug-gradient-k2": "0.10730492",
    "plug-adam-end": "0.914998",
    "plug-closed-b": "0.0133850941",
    "plug-sensitivity-k1": "0.0124771",
    "plug-sensitivity-k2": "0.1079888",
    **{
        f"plug-adam-{name}-{row}": f"{value:.{digits}f}"
        for row, values in ADAM.items()
        for name, value, digits in zip(("k1", "k2", "cb"), values, (4, 4, 6), strict=True)
    },
    **{
        f"adjoints-{adjoint}-{name}": value
        for adjoint in ("recursive", "backsolve", "direct")
        for name, value in (("cb", "0.013385"), ("dk1", "-0.012477"), ("dk2", "-0.107989"))
    },
}
BELIEFS = {  # each put to the test by the page whose name its id begins with
    *("memory-belief-arrays", "memory-belief-unmeasurable", "memory-belief-peak"),
    *("checkpoint-belief-bitwise", "checkpoint-belief-twice", "checkpoint-belief-unrolled"),
    *("checkpoint-belief-always", "policies-belief-everything", "nested-belief-outer"),
    *("nested-belief-hierarchical", "scan-belief-body", "plug-belief-where", "plug-belief-optimum"),
    *("adjoints-belief-direct", "adjoints-belief-log", "adjoints-belief-free"),
    "adjoints-belief-same",
}


@pytest.mark.parametrize("id", FIGURES)
def test_reference_figures_stand_in_the_ledger(site, id):
    (row,) = (row for row in rows() if row["id"] == id)
    printed = FIGURES[id]
    digits = len(printed.partition("e")[0].lstrip("-").partition(".")[2])
    shown = f"{row['value']:.{digits}{'e' if 'e' in printed else 'f'}}"
    assert row["kind"] == "claim" and shown == printed


def test_beliefs_have_verdicts(site):
    assert {row["id"] for row in rows() if row["kind"] == "belief"} >= BELIEFS


def test_every_row_is_complete(site):
    assert len(rows()) >= 30
    ids = [row["id"] for row in rows()]
    assert len(set(ids)) == len(ids)
    for row in rows():
        assert {"id", "kind", "page", "value", "backend", "versions"} <= set(row)
        assert row["kind"] in ("claim", "record", "belief")
        if row["kind"] == "claim":
            assert row["source"] and row["says"] and {"expected", "below", "above"} & set(row), row
    assert {row["page"] for row in rows()} >= {page.removesuffix(".html") for page in CHAPTERS}


def test_ledger_pages_show_every_row(site):
    claims = (site / "reference/claims.html").read_text("utf-8")
    folklore = (site / "reference/folklore.html").read_text("utf-8")
    for row in rows():
        if row["kind"] == "belief":
            assert row["verdict"] in folklore and row["says"].replace("'", "’")[
                :20
            ] in folklore.replace("'", "’")
        else:
            assert f">{row['id']}<" in claims


@pytest.mark.parametrize("page", CHAPTERS)
def test_chapter_is_whole(site, page):
    html = (site / page).read_text("utf-8")
    assert "The answer" in html and "In short" in html and "Exercises" in html
    assert "{glue" not in html and "Traceback" not in html
    figures = re.findall(r'<div class="rx-figure"[^>]*><svg[^>]*aria-label="([^"]*)"', html)
    assert all(re.search(r"\d", alt) for alt in figures)


@pytest.mark.parametrize("page", PAGES)
def test_page_runs_from_a_file_and_asks_nobody(site, browser, page):
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        tab = context.new_page()
        requests, complaints = [], []
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto((site / page).as_uri())
        tab.wait_for_load_state("networkidle")
        assert not complaints
        assert not [url for url in requests if not url.startswith(("file:", "data:"))]
        shown = tab.locator("button.search-button__button:visible")
        assert shown.count() == 1
        shown.click()
        assert tab.locator("#pst-search-dialog input").is_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_page_is_accessible(address, browser, page, theme):
    with browser.new_context(
        viewport={"width": 1280, "height": 900}, color_scheme=theme
    ) as context:
        tab = context.new_page()
        tab.goto(f"{address}/{page}")
        tab.wait_for_load_state("networkidle")
        assert tab.evaluate("document.documentElement.dataset.theme") == theme
        tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        tab.evaluate(SETTLE)
        found = Axe().run(tab).response["violations"]
        assert not [(v["id"], v["nodes"][0]["html"]) for v in found]


@pytest.mark.parametrize("page", PAGES)
def test_page_fits_a_phone(address, browser, page):
    with browser.new_context(viewport={"width": 390, "height": 844}) as context:
        tab = context.new_page()
        tab.goto(f"{address}/{page}")
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert tab.evaluate(wide) <= 0


@pytest.mark.parametrize("page", PAGES)
def test_page_is_light(address, browser, page):
    with browser.new_context() as context:
        tab = context.new_page()
        bodies = {}
        tab.on("response", lambda r: bodies.setdefault(r.url, r.body()) if r.ok else None)
        tab.goto(f"{address}/{page}")
        tab.wait_for_load_state("networkidle")
        sizes = {
            url: len(body if url.endswith(".woff2") else gzip.compress(body))
            for url, body in bodies.items()
        }
        weighed = sum(size for url, size in sizes.items() if not url.endswith("searchindex.js"))
        assert weighed < WEIGHT, Counter(sizes).most_common(8)


def test_figures_follow_the_theme(address, browser):
    colours = {}
    for theme in ("light", "dark"):
        with browser.new_context(color_scheme=theme) as context:
            tab = context.new_page()
            tab.goto(f"{address}/learn/memory-problem.html")
            text = tab.locator(".rx-figure svg text").first
            colours[theme] = text.evaluate("e => getComputedStyle(e).fill")
    light, dark = (
        sum(map(int, re.findall(r"\d+", c)[:3])) for c in (colours["light"], colours["dark"])
    )
    assert light < 200 and dark > 500, colours


def test_copying_leaves_out_prompts_and_outputs(address, browser):
    with browser.new_context(permissions=["clipboard-read", "clipboard-write"]) as context:
        tab = context.new_page()
        tab.goto(f"{address}/reference/api.html")
        block = tab.locator("div.highlight:has(button.copybtn)").nth(1)
        shown = block.inner_text()
        block.hover()
        block.locator("button.copybtn").click()
        copied = tab.evaluate("navigator.clipboard.readText()")
    assert ">>>" in shown and "[('cos', True), ('cos', True)]" in shown
    assert ">>>" not in copied and "True" not in copied
    assert copied.startswith("import jax")
    compile(copied, "copied", "exec")


def test_search_finds_a_chapter_from_a_file(site, browser):
    with browser.new_context() as context:
        tab = context.new_page()
        tab.goto((site / "search.html").as_uri() + "?q=residual")
        tab.wait_for_selector("#search-results li a")
        titles = tab.locator("#search-results li a").all_inner_texts()
    assert any("memory" in title for title in titles)


def test_nothing_is_loaded_from_elsewhere(site):
    element = r'<(?:script|img|iframe|link(?! rel="(?:canonical|next|prev)"))'
    loaded = re.compile(element + r'[^>]*(?:src|href)="(?:https?:)?//')
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        assert not loaded.search(text), path
        assert 'type="module"' not in text, path
    assert not list(site.rglob("fontawesome.js")) and not list(site.rglob("*.map"))


@pytest.mark.parametrize("page", CHAPTERS)
def test_notebook_is_executed_and_readable(site, page):
    notebook = nbformat.read(site / "notebooks" / page.replace(".html", ".ipynb"), as_version=4)
    nbformat.validate(notebook)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert (
        "{glue" not in prose and ":::" not in prose and "{doc}" not in prose and "{py:" not in prose
    )
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
