"""Small pieces of the report's HTML: everything that comes from a run is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

FILTERED = 8
"""Rows from which on a table has a field that filters them."""


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | str | None = None
    """What to sort by, where it is not the text; numbers are set to the right."""
    link: str | None = None
    words: bool = False
    """A sentence, which may wrap."""
    bold: bool = False


def text(words: str) -> str:
    """Escaped, with `commands` in backquotes set as code."""
    parts = escape(words).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def paragraph(words: str, kind: str = "") -> str:
    return f"<p{_class(kind)}>{text(words)}</p>\n"


def bullets(sentences: Iterable[str]) -> str:
    items = "\n".join(f"<li>{text(sentence)}</li>" for sentence in sentences)
    return f"<ul>\n{items}\n</ul>\n"


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], name: str) -> str:
    """A table that sorts by a click on a heading; a longer one has a field that filters its rows.

    `name` is its id.
    """
    lines = [list(row) for row in rows]
    numeric = [
        any(isinstance(line[place].value, int | float) for line in lines)
        for place in range(len(headings))
    ]
    head = "".join(
        f'<th{_class("number" if right else "")} scope="col"><button>{text(heading)}</button></th>'
        for heading, right in zip(headings, numeric, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, line, numeric))}</tr>\n" for line in lines)
    search = ""
    if len(lines) >= FILTERED:
        search = (
            f'<input type="search" data-filters="{name}" placeholder="Filter rows" '
            'aria-label="Filter rows">\n'
        )
    return (
        f'{search}<div class="scroll"><table class="sortable" id="{name}">'
        f"<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}</tbody></table></div>\n"
    )


def _cell(cell: Cell, right: bool) -> str:
    content = text(cell.text)
    if cell.bold:
        content = f"<b>{content}</b>"
    if cell.link is not None:
        content = f'<a href="{escape(cell.link, quote=True)}">{content}</a>'
    value: Any = cell.value
    if right and (value is None or pd.isna(value)):
        value = ""
    data = "" if value is None else f' data-value="{escape(str(value), quote=True)}"'
    return f"<td{_class('number' if right else 'words' if cell.words else '')}{data}>{content}</td>"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
