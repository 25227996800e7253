"""Turn LaTeX into MathML while the book is built: a page's maths needs no script and no font file.

Uses latex2mathml. The source stays in ``alttext``, for whoever copies a formula or has it read out.
"""

from __future__ import annotations

import html

import latex2mathml.converter
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.locale import _
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator


def to_mathml(latex: str, display: str) -> str:
    """Return MathML for a formula; ``display`` is ``"inline"`` or ``"block"``."""
    try:
        converted = latex2mathml.converter.convert(latex, display=display)
    except Exception as error:
        raise ExtensionError(
            f"the formula {latex!r} cannot be turned into MathML: {error}"
        ) from error
    return converted.replace("<math ", f'<math alttext="{html.escape(latex)}" ', 1)


def _visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(f'<span class="math">{to_mathml(node.astext(), "inline")}</span>')
    raise nodes.SkipNode


def _visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math", tabindex="0"))
    if node.get("number"):
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})')
        self.add_permalink_ref(node, _("Link to this equation"))
        self.body.append("</span>")
    self.body.append(to_mathml(node.astext(), "block") + "</div>")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict:
    """Register the renderer under the name ``mathml``."""
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
