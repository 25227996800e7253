"""Small tables that read well in a terminal and in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

Row = Sequence[str]


def table_text(head: Row, rows: Iterable[Row]) -> str:
    """Lay a table out in columns: the first to the left, the others to the right."""
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))).rstrip()
        for row in lines
    )


def list_text(rows: Iterable[Row]) -> str:
    """Lay names and their values out in two columns, both to the left."""
    pairs = list(rows)
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in pairs)


def table_html(caption: str, head: Row, rows: Iterable[Row], kind: str) -> str:
    """Write a table as HTML, with the first cell of each row as its heading."""
    top = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    top = f"<thead><tr>{top}</tr></thead>" if top else ""
    return (
        f'<table class="rx-table rx-{kind}"><caption>{html.escape(caption)}</caption>'
        f"{top}<tbody>{body}</tbody></table>"
    )


def lines_html(lines: Iterable[str]) -> str:
    """Write lines that stand under a table as paragraphs."""
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)
