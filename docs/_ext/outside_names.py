"""Link names of other libraries' documentation through a small table kept by hand.

intersphinx would need the network on every build. The table, ``outside_names.toml``, holds the few
names the book uses, each with an address that somebody opened; ``nox -s linkcheck`` opens them all.
A name that is not in the table is a warning, and so an error, like any other broken reference.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

TABLE = Path(__file__).with_name("outside_names.toml")


def load() -> dict[str, str]:
    """Return the table: full name -> address."""
    sections = tomllib.loads(TABLE.read_text("utf-8"))
    return {name: address for section in sections.values() for name, address in section.items()}


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    if node.get("refdomain") != "py":
        return None
    address = app.rx_outside_names.get(node.get("reftarget"))
    if address is None:
        return None
    return nodes.reference("", "", content, internal=False, refuri=address, classes=["outside"])


def setup(app: Sphinx) -> dict:
    """Resolve what Sphinx itself could not."""
    app.rx_outside_names = load()
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
