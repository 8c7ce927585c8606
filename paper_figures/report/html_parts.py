"""Small pieces of the report's HTML: everything that comes from a run is escaped here."""

from collections.abc import Iterable
from html import escape

from paper_figures.table import Entry, Grid

FILTERED = 8
"""Rows from which on a table has a field that filters them."""


def text(words: str) -> str:
    """Escaped, with `commands` in backquotes set as code."""
    parts = escape(words).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def paragraph(words: str, kind: str = "") -> str:
    return f"<p{_class(kind)}>{text(words)}</p>\n"


def bullets(sentences: Iterable[str]) -> str:
    items = "\n".join(f"<li>{text(sentence)}</li>" for sentence in sentences)
    return f"<ul>\n{items}\n</ul>\n"


def folded(summary: str, content: str, name: str = "") -> str:
    start = f'<details id="{name}">' if name else "<details>"
    return f"{start}<summary>{text(summary)}</summary>\n{content}</details>\n"


def table(grid: Grid, name: str, label: str) -> str:
    """A table that sorts by a click on a heading; a longer one has a field that filters its rows.

    `name` is its id, `label` what a screen reader says of the box in which it scrolls.
    """
    if not grid.rows:
        return ""
    numeric = [grid.is_numeric(place) for place in range(len(grid.headings))]
    head = "".join(
        f'<th{_class("number" if right else "")} scope="col"><button>{text(heading)}</button></th>'
        for heading, right in zip(grid.headings, numeric, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row, numeric))}</tr>\n" for row in grid.rows)
    search = ""
    if len(grid.rows) >= FILTERED:
        search = (
            f'<input type="search" data-filters="{name}" placeholder="Filter rows: s = 16" '
            f'aria-label="Filter rows: {escape(label, quote=True)}">\n<output></output>\n'
        )
    heading = f"<h3>{text(grid.title)}</h3>\n" if grid.title else ""
    return (
        heading
        + search
        + scroll_box(
            f'<table class="sortable" id="{name}"><thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}</tbody></table>",
            label,
        )
    )


def scroll_box(content: str, label: str) -> str:
    """What may be wider than the screen: scrolls by keyboard too, and has a name."""
    named = escape(label, quote=True)
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{named}">{content}</div>\n'


def _cell(entry: Entry, right: bool) -> str:
    content = text(entry.text)
    if entry.best:
        content = f"<b>{content}</b>"
    if entry.link is not None:
        content = f'<a href="{escape(entry.link, quote=True)}">{content}</a>'
    if not right:
        return f"<td>{content}</td>"
    value = "" if entry.value is None or entry.value != entry.value else entry.value
    return f'<td class="number" data-value="{value}">{content}</td>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
