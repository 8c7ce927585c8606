"""Sections of the report that come from tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis.wording import number
from paper_figures.item import Item, Missing
from paper_figures.picture import Picture
from paper_figures.report.html_parts import Cell, bullets, paragraph, table, text
from paper_figures.report.inline_svg import inline
from paper_figures.report.reproduction import Line, lines
from paper_figures.style import COLUMN
from paper_figures.table import Grid, Table

STUDY = "paper_figures.study"
WIDE = "overview"
"""Its two panels follow one by one, so a telephone leaves it out."""


def figures(items: Sequence[Item], to: Path) -> str:
    parts = []
    pictures = [item for item in items if isinstance(item, Picture)]
    # A study's own pictures say what was found; the paper's come behind them.
    pictures.sort(key=lambda picture: not picture.draw.__module__.startswith(STUDY))
    for place, picture in enumerate(pictures):
        svg = to.joinpath(f"{picture.name}.svg").read_text("utf8")
        drawing = inline(svg, f"f{place}", f"{picture.title}. {picture.caption}")
        kinds = ["wide"] if _width(svg) > 1.3 * COLUMN * 72 else []
        kinds += ["twice"] if picture.kind == WIDE else []
        kind = f' class="{" ".join(kinds)}"' if kinds else ""
        parts.append(
            f'<figure id="{picture.name}"{kind}><h3>{text(picture.title)}</h3>\n'
            f'<div class="scroll">{drawing}</div>\n'
            f"<figcaption>{text(picture.caption)}</figcaption></figure>\n"
        )
    return f'<div class="figures">\n{"".join(parts)}</div>\n' if parts else ""


def tables(items: Sequence[Item]) -> str:
    """Folded, each: there may be 28 of them."""
    parts = []
    for item in items:
        if isinstance(item, Table):
            grids = "".join(_grid(grid, f"{item.name}-{i}") for i, grid in enumerate(item.grids))
            caption = paragraph(item.caption, "note")
            parts.append(
                f'<details id="{item.name}"><summary>{text(item.title)}</summary>\n'
                f"{caption}{grids}</details>\n"
            )
    return "".join(parts)


def not_reproduced(items: Sequence[Item], missing: Sequence[Missing]) -> str:
    """What agrees, what does not and what was not measured; then what could not be drawn."""
    found = lines(items, missing)
    done = [_done(line) for line in found if line.finding.measured]
    open_ = [_open(line) for line in found if not line.finding.measured]
    headings = ["item", "published", "measured here", "runs", "verdict"]
    page = table(headings, done, "reproduction-table") if done else ""
    if open_:
        listed = table(["item", "published", "to measure it"], open_, "not-reproduced-table")
        summary = f"Not reproduced: {number(len(open_), 'item')}, and what would measure each"
        page += f"<details><summary>{summary}</summary>\n{listed}</details>\n"
    undrawn = [f"{entry.title}. {entry.sentence}" for entry in missing]
    return page + (f"<h3>Not drawn</h3>\n{bullets(undrawn)}" if undrawn else "")


def _done(line: Line) -> list[Cell]:
    found = line.finding
    words = (line.label, found.published, found.measured, found.scale)
    return [*(Cell(text, words=True) for text in words), Cell(found.verdict, bold=True)]


def _open(line: Line) -> list[Cell]:
    command = f"`{line.finding.needs}`" if line.finding.needs else "published numbers alone"
    words = (line.label, line.finding.published, command)
    return [Cell(text, words=True) for text in words]


def _grid(grid: Grid, name: str) -> str:
    rows = [[Cell(entry.text, entry.value, bold=entry.best) for entry in row] for row in grid.rows]
    heading = f"<h3>{text(grid.title)}</h3>\n" if grid.title else ""
    return heading + table(grid.headings, rows, name)


def _width(svg: str) -> float:
    """Points, from matplotlib's own `width="244.8pt"`."""
    start = svg.index('width="') + len('width="')
    return float(svg[start : svg.index("pt", start)])
