"""Find measured-looking numbers that somebody typed into prose.

A number that was measured belongs to the build: it is glued, and changes when the measurement does.
This check reads the prose of the pages (no code, maths, roles or addresses) and reports decimals
and digits followed by a unit. ``prose_numbers_allowed.toml`` lists the few that are something else,
each with its reason.

    python -m docs._ext.prose_numbers docs README.md
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from mdit_py_plugins.colon_fence import colon_fence_plugin
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.front_matter import front_matter_plugin
from mdit_py_plugins.myst_role import myst_role_plugin

ALLOWED = Path(__file__).with_name("prose_numbers_allowed.toml")
UNITS = r"(?:x|×|%|B|[kKMGT]i?B|bytes|s|ms|µs|min|seconds|minutes|times)"
MEASURED = re.compile(rf"(?<![\w.])\d[\d,]*(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+|\s?{UNITS})(?!\w|\.\d)")
# Directives whose body is prose, as against code, tables of contents, or options.
PROSE = re.compile(r"^\{(admonition|note|tip|warning|important|margin|deflist|figure|glossary)\}")


def measured(text: str, first_line: int = 1) -> Iterator[tuple[int, str]]:
    """Yield (line, literal) for what looks like a measurement in a page's prose.

    >>> list(measured("It took 3.5 s, not `4.5 s`, $0.1$ or {glue:text}`t:.1f` s."))
    [(1, '3.5')]
    >>> list(measured("It needs 40 MB and 2x the time of jax 0"))
    [(1, '40 MB'), (1, '2x')]
    """
    reader = MarkdownIt("commonmark").enable("table")
    for plugin in (front_matter_plugin, colon_fence_plugin, deflist_plugin, dollarmath_plugin):
        reader.use(plugin)
    reader.use(myst_role_plugin)
    for token in reader.parse(text):
        line = first_line + (token.map[0] if token.map else 0)
        if token.type in ("fence", "colon_fence") and PROSE.match(token.info.strip()):
            yield from measured(token.content, line + 1)
        for child in token.children or []:
            if child.type == "text":
                yield from ((line, match[0]) for match in MEASURED.finditer(child.content))


def main(places: list[str]) -> int:
    """Report what is found in the given files and folders; return how many there are."""
    allowed = tomllib.loads(ALLOWED.read_text("utf-8"))
    found = 0
    for path in _pages(places):
        known = allowed.get(path.as_posix(), {})
        for line, literal in measured(path.read_text("utf-8")):
            if literal not in known:
                found += 1
                print(
                    f"{path}:{line}: {literal!r} looks measured: glue it, or allow it with a reason"
                )
    return min(found, 1)


def _pages(places: list[str]) -> Iterator[Path]:
    for place in map(Path, places):
        pages = sorted(place.rglob("*.md")) if place.is_dir() else [place]
        yield from (page for page in pages if "_build" not in page.parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
