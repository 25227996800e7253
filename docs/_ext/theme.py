"""Mend what the theme gets wrong: its weight, a second search box, and names that people listen to.

All of it is here, in ``_templates`` and in ``_static/book.css``:

- The theme loads all icons of Font Awesome twice: as a font, which its style sheet uses, and as a
  script of half a megabyte, compressed. ``_templates/static/webpack-macros.html`` leaves the script
  out, and it is not shipped.
- The sidebar and the header each have a search button, whose accessible name leaves out what it
  shows, and the sidebar's title stands outside all landmarks. ``_templates/sidebar-head.html`` has
  one button and a landmark instead.
- Citations have a role that their list does not allow; they become its items.
- In dark mode the theme puts HTML outputs on a light ground; ``book.css`` takes that back, since
  the book's outputs follow the theme themselves.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx


def _drop_unused(app: Sphinx, exception: Exception | None) -> None:
    """Delete the scripts that no page loads, and all source maps."""
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir, "_static")
    for pattern in ("fontawesome.js*", "*.map"):
        for path in static.rglob(pattern):
            path.unlink()


def _mend_citations(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Give citations the role that the list they stand in asks for; docutils' own is deprecated."""
    if 'role="doc-biblioentry"' in context.get("body", ""):
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def setup(app: Sphinx) -> dict:
    """Connect the repairs."""
    app.connect("html-page-context", _mend_citations)
    app.connect("build-finished", _drop_unused)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
