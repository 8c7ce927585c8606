"""Tables, the grids and cells that they are made of, and how these are written as Markdown and
LaTeX. The pages of `report/` use grids and cells, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import gain, signed
from tst_study.paper_figures.item import Item
from tst_study.text import in_markdown, printable

Row = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One cell of a table, as it is printed."""

    text: str = ""
    best: bool = False
    """Whether the text is bold."""
    value: float | None = None
    """The number that the report sorts by; None for words and empty cells."""
    link: str | None = None
    """The address that the text links to in the report, relative to the page; None for no link."""


@dataclass(frozen=True)
class Grid:
    """One block of a table: a line of headings, and rows with numbers aligned to the right."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    note: str = ""
    """A text that the report prints between the title and the rows."""

    @classmethod
    def of(
        cls,
        rows: Iterable[Row],
        columns: Mapping[str, Callable[[Row], Entry | str]],
        title: str = "",
    ) -> Grid:
        """Make a grid with a line for each of `rows`.

        `columns`: for each heading, a function that returns the cell of a row. It may return plain
        text in place of an `Entry`.
        """

        def cells(row: Row) -> tuple[Entry, ...]:
            made = (cell(row) for cell in columns.values())
            return tuple(Entry(entry) if isinstance(entry, str) else entry for entry in made)

        return cls(title, tuple(columns), tuple(map(cells, rows)))

    @functools.cached_property
    def numeric(self) -> set[int]:
        """The columns (counted from 0) that have numbers; they are aligned to the right."""
        rows = map(enumerate, self.rows)
        return {place for row in rows for place, entry in row if entry.value is not None}


@dataclass(frozen=True, kw_only=True)
class Table(Item):
    """A table, printed as one or more grids."""

    grids: tuple[Grid, ...]

    def contents(self) -> dict[str, bytes]:
        parts = (f"% {printable(grid.title)}\n{latex_grid(grid)}" for grid in self.grids)
        return {**self.for_page(), ".tex": "\n".join(parts).encode()}

    def for_page(self) -> dict[str, bytes]:
        return {".md": markdown(self).encode()}


def number_entry(
    value: float | None, digits: int = 0, best: bool = False, sign: bool = False
) -> Entry:
    """Return a cell with a number, with `digits` digits after the point; an empty cell for None or
    NaN. `sign`: also show a plus sign."""
    if value is None or pd.isna(value):
        return Entry()
    text = signed(value, digits) if sign else f"{value:,.{digits}f}".replace("-", "−")
    return Entry(text, best, float(value))


def number_as(value: float, form: Callable[[float], str]) -> Entry:
    """Return a cell with a number as the function `form` prints it; an empty cell for NaN."""
    return Entry() if pd.isna(value) else Entry(form(value), value=float(value))


def gain_entry(row: Row, column: str = "gain", digits: int = 4, best: bool = False) -> Entry:
    """Return a cell with the gain in `column`, and the interval in `low` and `high` if there is
    one; an empty cell if there is no gain."""
    if pd.isna(row[column]):
        return Entry()
    bounds = {"low": row.get("low"), "high": row.get("high")}
    return Entry(gain({"gain": row[column], **bounds}, digits), best, float(row[column]))


def grids_over_s_and_r(
    data: pd.DataFrame, titles: Mapping[str, str], digits: int, best: Literal["min", "max"]
) -> list[Grid]:
    """Return a grid for each column of `data` in `titles`, with a row for each s and a column for
    each r. The baseline's value is in the title.

    The best value of each r is bold, but none at r = 1: such runs are never trained to predict the
    next token.
    """
    grids = []
    for column, title in titles.items():
        base = data[data["bag_size"] == 1][column].dropna()
        if len(base):
            title += f"; baseline {number_entry(base.iloc[0], digits).text}"
        cells = data[(data["bag_size"] > 1) & data[column].notna()]
        # Measured step ratios are rounded, so that two runs of nearly the same r share a cell.
        wide = cells.pivot_table(column, index="bag_size", columns="step_ratio")
        wide.columns = pd.Index([f"r = {ratio:.3g}" for ratio in wide.columns])
        tops = {name: wide[name].agg(best) for name in wide if name != "r = 1"}
        rows = []
        for size, row in zip(wide.index, rows_of(wide), strict=True):
            own = (number_entry(x, digits, x == tops.get(r)) for r, x in row.items())
            rows.append((number_entry(size), *own))
        grids.append(Grid(title, ("s", *map(str, wide)), tuple(rows)))
    return grids


def markdown(table: Table) -> str:
    """Return a whole table as Markdown: title, caption and grids."""
    parts = [f"# {in_markdown(table.title)}\n", f"{in_markdown(table.caption)}\n"]
    for grid in table.grids:
        if grid.title:
            parts.append(f"**{in_markdown(grid.title)}**\n")
        parts.append(markdown_grid(grid))
    return "\n".join(parts)


def markdown_grid(grid: Grid) -> str:
    """Return the headings and rows of a grid as Markdown."""
    places = range(len(grid.headings))
    lines: list[Iterable[str]] = [
        (heading or " " for heading in grid.headings),
        ("---:" if place in grid.numeric else "---" for place in places),
    ]
    lines += [(f"**{e.text}**" if e.best else e.text for e in row) for row in grid.rows]
    clean = (map(in_markdown, line) for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in clean)


def latex_grid(grid: Grid) -> str:
    """Return a grid as a LaTeX `tabular`. A document that includes it must load booktabs."""
    spec = "".join("r" if place in grid.numeric else "l" for place in range(len(grid.headings)))
    columns = [*map(printable, grid.headings)]
    words = pd.DataFrame(
        [[printable(entry.text) for entry in row] for row in grid.rows], columns=columns
    )
    bold = [["textbf:--rwrap" if entry.best else "" for entry in row] for row in grid.rows]
    style = words.style.hide(axis="index").apply(
        lambda _: pd.DataFrame(bold, columns=columns), axis=None
    )
    style = style.format(escape="latex").format_index(escape="latex", axis="columns")
    return style.to_latex(column_format=spec, hrules=True).replace("−", "$-$")
