"""Gather the rows that claims, records and beliefs left in a page's outputs; show and export them.

``rematax.book`` puts a row in the metadata of each value it glues, so the rows are stored in the
execution cache with the outputs. MyST-NB writes what a page glued to a file when it reads the page;
from there the rows go into Sphinx's environment, page by page, which makes incremental and parallel
builds come out the same. After the build they are written to ``claims.json`` beside the HTML.

Two directives show them: ``{claims-table}`` (claims and records, by chapter) and
``{beliefs-table}`` (the folklore ledger).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import sphinx.util.logging
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors import EnvironmentCollector
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

LOGGER = sphinx.util.logging.getLogger(__name__)


class RowCollector(EnvironmentCollector):
    """Keeps each document's rows in the environment, as ``env.rx_rows[docname]``."""

    def clear_doc(self, app: Sphinx, env: BuildEnvironment, docname: str) -> None:
        """Forget a document that is to be read again or is gone."""
        _rows(env).pop(docname, None)

    def merge_other(self, app, env, docnames: set[str], other) -> None:
        """Take over what a parallel reader collected."""
        for name in docnames & set(_rows(other)):
            _rows(env)[name] = _rows(other)[name]

    def process_doc(self, app: Sphinx, doctree: nodes.document) -> None:
        """Collect the rows of the document just read, in the page's order."""
        env = app.env
        name = env.docname
        keys = env.nb_metadata[name].get("glue", [])
        if not keys:
            return
        glued = Path(env.mystnb_config.output_folder, f"{name}.glue.json")
        outputs = json.loads(glued.read_text("utf-8"))
        found = [outputs[key]["metadata"].get("rematax") for key in keys]
        _rows(env)[name] = [{**row, "page": name} for row in found if row]


def all_rows(env: BuildEnvironment) -> list[dict]:
    """Return the rows of all pages, in the order of the table of contents."""
    order = {name: i for i, name in enumerate(_toc_order(env, env.config.root_doc))}
    pages = sorted(_rows(env), key=lambda name: (order.get(name, len(order)), name))
    return [row for page in pages for row in _rows(env)[page]]


def _rows(env: BuildEnvironment) -> dict[str, list[dict]]:
    if not hasattr(env, "rx_rows"):
        env.rx_rows = {}
    return env.rx_rows


def _toc_order(env: BuildEnvironment, name: str) -> Iterator[str]:
    yield name
    for child in env.toctree_includes.get(name, []):
        yield from _toc_order(env, child)


def _check_ids(app: Sphinx, env: BuildEnvironment) -> None:
    """Refuse an id that two pages use: a reader of the ledger could not tell which is meant."""
    first: dict[str, str] = {}
    for row in all_rows(env):
        other = first.setdefault(row["id"], row["page"])
        if other != row["page"]:
            LOGGER.warning("the id %r is used by %s, too", row["id"], other, location=row["page"])


def _write_json(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        text = json.dumps(all_rows(app.env), indent=1, ensure_ascii=False)
        Path(app.outdir, "claims.json").write_text(text + "\n", "utf-8")


class LedgerNode(nodes.General, nodes.Element):
    """Stands for a table until all pages have been read."""


class LedgerDirective(SphinxDirective):
    """Put a table of rows here; ``claims-table`` or ``beliefs-table``, by the name it is called."""

    def run(self) -> list[nodes.Node]:
        """Leave a placeholder."""
        return [LedgerNode(kind=self.name)]


class FillLedgers(SphinxPostTransform):
    """Replace each placeholder by its table, before references are resolved."""

    default_priority = 8

    def run(self, **kwargs) -> None:
        """Fill in what all pages left."""
        for node in list(self.document.findall(LedgerNode)):
            make = _claims if node["kind"] == "claims-table" else _beliefs
            rows = all_rows(self.env)
            node.replace_self(list(make(rows, self.env)) or [nodes.paragraph(text="None yet.")])


def _claims(rows: list[dict], env: BuildEnvironment) -> Iterator[nodes.Node]:
    """One table a page: what it claims, and what it measured without claiming."""
    shown = [row for row in rows if row["kind"] != "belief"]
    for page in dict.fromkeys(row["page"] for row in shown):
        yield nodes.rubric("", "", _link(page, env), classes=["rx-ledger-page"])
        head = ("Name", "Value", "Expected", "What it says, and the source")
        body = []
        for row in (row for row in shown if row["page"] == page):
            says = "; ".join(filter(None, (row["says"], row.get("source"))))
            body.append((nodes.literal(text=row["id"]), _value(row), _expectation(row), says))
        yield _table(head, body)


def _beliefs(rows: list[dict], env: BuildEnvironment) -> Iterator[nodes.Node]:
    body = [
        (row["says"], nodes.strong(text=row["verdict"]), row["because"], _link(row["page"], env))
        for row in rows
        if row["kind"] == "belief"
    ]
    if body:
        yield _table(("Belief", "Verdict", "What was measured", "Page"), body)


def _value(row: dict) -> str:
    value = row["value"]
    shown = (
        f"{value:.10g}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else value
    )
    return f"{shown} {row['unit']}".strip()


def _expectation(row: dict) -> str:
    if row["kind"] == "record":
        return "measured only"
    parts = []
    if "expected" in row:
        tolerance = " + ".join(
            f"{size:g}{' relative' if name == 'rtol' else ''}"
            for name, size in row["tolerance"].items()
            if size
        )
        parts.append(f"{row['expected']:.10g}" + (f" ± {tolerance}" if tolerance else " exactly"))
    parts += [f"below {row['below']:.6g}"] if "below" in row else []
    parts += [f"above {row['above']:.6g}"] if "above" in row else []
    return ", ".join(parts)


def _link(page: str, env: BuildEnvironment) -> addnodes.pending_xref:
    title = env.titles[page].astext()
    link = addnodes.pending_xref(
        "", refdomain="std", reftype="doc", reftarget=f"/{page}", refexplicit=True, refwarn=True
    )
    link += nodes.inline("", title)
    return link


def _table(head: Iterable, body: Iterable[Iterable]) -> nodes.table:
    head, body = list(head), [list(row) for row in body]
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in head), cols=len(head))
    group += nodes.thead("", _row(head))
    group += nodes.tbody("", *(_row(row) for row in body))
    return nodes.table("", group, classes=["colwidths-auto", "rx-ledger"])


def _row(cells: Iterable) -> nodes.row:
    def paragraph(cell) -> nodes.paragraph:
        return (
            nodes.paragraph(text=cell) if isinstance(cell, str) else nodes.paragraph("", "", cell)
        )

    return nodes.row("", *(nodes.entry("", paragraph(cell)) for cell in cells))


def setup(app: Sphinx) -> dict:
    """Register the collector, the directives and the export."""
    app.add_env_collector(RowCollector)
    app.add_node(LedgerNode)
    app.add_directive("claims-table", LedgerDirective)
    app.add_directive("beliefs-table", LedgerDirective)
    app.add_post_transform(FillLedgers)
    app.connect("env-check-consistency", _check_ids)
    app.connect("build-finished", _write_json)
    return {"parallel_read_safe": True, "parallel_write_safe": True, "env_version": 1}
