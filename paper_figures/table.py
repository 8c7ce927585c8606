"""A table: an item that is printed, as Markdown, LaTeX and CSV."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from paper_figures.item import Item, csv_bytes, is_current, trace_text, write_bytes

SUFFIXES = (".md", ".tex", ".csv", ".json")


@dataclass(frozen=True)
class Entry:
    """A cell as printed."""

    text: str = ""
    best: bool = False
    """Set in bold."""
    value: float | None = None
    """To sort by; None for words and empty cells."""


@dataclass(frozen=True)
class Grid:
    """One block of a table: a heading line and rows, numbers to the right."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]

    def is_numeric(self, place: int) -> bool:
        """Whether a column holds numbers."""
        return any(row[place].value is not None for row in self.rows)


@dataclass(frozen=True)
class Table(Item):
    grids: tuple[Grid, ...]

    def save(self, runs: pd.DataFrame, to: Path) -> list[Path]:
        """Write Markdown, LaTeX, CSV and trace; returns what was written."""
        text = trace_text(self, runs)
        paths = {suffix: to / f"{self.name}{suffix}" for suffix in SUFFIXES}
        if is_current(paths, text):
            return []
        contents = {
            ".md": markdown(self).encode(),
            ".tex": latex(self).encode(),
            ".csv": csv_bytes(self.data),
            ".json": text.encode(),
        }
        for suffix, content in contents.items():
            write_bytes(paths[suffix], content)
        return list(paths.values())


def number_entry(value: float | None, digits: int, best: bool = False, sign: bool = False) -> Entry:
    """A number with so many digits behind the point; empty where there is none."""
    if value is None or pd.isna(value):
        return Entry()
    text = f"{value:+,.{digits}f}" if sign else f"{value:,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("+-")
    return Entry(text.replace("-", "−"), best, float(value))


def markdown(table: Table) -> str:
    parts = [f"# {table.title}\n", f"{table.caption}\n"]
    for grid in table.grids:
        if grid.title:
            parts.append(f"**{grid.title}**\n")
        parts.append(markdown_grid(grid))
    return "\n".join(parts)


def markdown_grid(grid: Grid) -> str:
    places = range(len(grid.headings))
    lines: list[Iterable[str]] = [
        (heading or " " for heading in grid.headings),
        ("---:" if grid.is_numeric(place) else "---" for place in places),
    ]
    lines += [(f"**{e.text}**" if e.best else e.text for e in row) for row in grid.rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(table: Table) -> str:
    """A `table` environment; its document loads booktabs."""
    parts = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(table.caption)}}}"]
    parts.append(rf"\label{{tab:{table.name}}}")
    for grid in table.grids:
        if grid.title:
            parts.append(rf"\par\medskip {_escaped(grid.title)}\par\smallskip")
        parts.append(latex_grid(grid))
    return "\n".join([*parts, r"\end{table}", ""])


def latex_grid(grid: Grid) -> str:
    """A booktabs tabular."""
    spec = "".join("r" if grid.is_numeric(place) else "l" for place in range(len(grid.headings)))
    heading = " & ".join(map(_escaped, grid.headings)) + r" \\"
    body = [" & ".join(map(_latex_entry, row)) + r" \\" for row in grid.rows]
    inner = [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", heading, r"\midrule", *body]
    return "\n".join([*inner, r"\bottomrule", r"\end{tabular}"])


def _latex_entry(entry: Entry) -> str:
    text = _escaped(entry.text)
    return rf"\textbf{{{text}}}" if entry.best else text


_COMMANDS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "^": r"\^{}",
    "~": r"\~{}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "–": "--",
    "…": r"\dots{}",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
}


def _escaped(text: str) -> str:
    """Backquotes of a command line become typewriter type."""
    parts = text.split("`")
    plain = ["".join(_COMMANDS.get(sign, sign) for sign in part) for part in parts]
    return "".join(rf"\texttt{{{part}}}" if i % 2 else part for i, part in enumerate(plain))
