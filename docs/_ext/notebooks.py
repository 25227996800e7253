"""Publish each executed page as a notebook that reads well where MyST is not understood.

Pasted values (``{glue:text}``) are filled in, figures are kept as PNG alone, and the outputs that
only carry the book's bookkeeping are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import nbformat
from myst_nb.core.variables import format_plain_text
from sphinx.application import Sphinx

# {glue:text}`other.md::name:format`, where the other page and the format may be missing
GLUE = re.compile(r"\{glue:text\}`(?:([^`:]+)::)?([^`:]+)(?::([^`]*))?`")
FENCE = re.compile(r"^:::(?:\{\w+\} ?(.*))?\n?(?::\w+:.*\n)*", re.MULTILINE)
ROLE = re.compile(r"\{[\w:-]+\}`(?:([^`<]+?)\s*<[^`>]+>|([^`]+))`")


def readable(
    notebook: nbformat.NotebookNode, glued: Callable[[str], dict]
) -> nbformat.NotebookNode:
    """Return the notebook with glue filled in and its outputs in forms that any viewer shows.

    ``glued`` returns the pasted outputs of a page, given its path relative to this one, or ``""``.
    """

    def value(match: re.Match) -> str:
        output = glued(match[1] or "")[match[2]]
        return format_plain_text(output["data"]["text/plain"], match[3] or "")

    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = GLUE.sub(value, cell.source)
            cell.source = FENCE.sub(lambda m: f"**{m[1]}**\n" if m[1] else "", cell.source)
            cell.source = ROLE.sub(lambda m: f"`{m[1] or m[2]}`", cell.source)
        for output in cell.get("outputs", []):
            if output.get("metadata", {}).get("rematax", {}).get("kind") == "figure":
                output["data"].pop("text/html", None)
    notebook.metadata.pop("source_map", None)
    return notebook


def _publish(app: Sphinx, exception: Exception | None) -> None:
    """Write ``notebooks/<page>.ipynb`` for each page with code."""
    if exception or app.builder.format != "html":
        return
    executed = Path(app.env.mystnb_config.output_folder)
    for page, data in app.env.nb_metadata.items():
        if not data.get("exec_data"):
            continue
        path = executed / f"{page}.ipynb"

        def glued(other: str, path: Path = path) -> dict:
            source = path.parent / other if other else path
            return json.loads(source.with_suffix(".glue.json").read_text("utf-8"))

        target = Path(app.outdir, "notebooks", f"{page}.ipynb")
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(readable(nbformat.read(path, as_version=4), glued), target)


def _offer(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Put a link to the notebook among the header buttons."""
    if app.env.nb_metadata.get(pagename, {}).get("exec_data"):
        context["header_buttons"].append(
            {
                "type": "link",
                "url": f"{context['pathto']('notebooks', 1)}/{pagename}.ipynb",
                "tooltip": "Download the executed notebook",
                "icon": "fas fa-download",
                "label": "download-notebook-button",
            }
        )


def setup(app: Sphinx) -> dict:
    """Write the notebooks and link to them."""
    app.connect("build-finished", _publish)
    app.connect("html-page-context", _offer, priority=502)  # after the theme made its list
    return {"parallel_read_safe": True, "parallel_write_safe": True}
