"""Sections of the report that come from tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis.wording import number
from paper_figures.item import Item, Missing
from paper_figures.picture import Picture
from paper_figures.report.html_parts import bullets, folded, paragraph, scroll_box, table, text
from paper_figures.report.inline_svg import inline
from paper_figures.report.reproduction import Line, done_grid, lines, open_grid
from paper_figures.style import COLUMN
from paper_figures.table import Table

FIRST = "overview"
"""Its two panels follow one by one, so a phone leaves it out."""


def figures(items: Sequence[Item], to: Path) -> str:
    pictures = [item for item in items if isinstance(item, Picture)]
    # A study's own pictures say what was found; the paper's come after them.
    pictures.sort(key=lambda picture: (picture.group != "study", picture.kind != FIRST))
    parts = [_figure(picture, place, to) for place, picture in enumerate(pictures)]
    return f'<div class="figures">\n{"".join(parts)}</div>\n' if parts else ""


def _figure(picture: Picture, place: int, to: Path) -> str:
    svg = to.joinpath(f"{picture.name}.svg").read_text("utf8")
    drawing = inline(svg, f"f{place}", f"{picture.title}. {picture.caption}")
    wide = _width(svg) > 1.3 * COLUMN * 72
    kinds = " ".join(["wide"] * wide + ["twice"] * (picture.kind == FIRST))
    hint = '<p class="hint">Scroll sideways to see all of it.</p>\n' if wide else ""
    files = f'<a href="{picture.name}.csv">CSV</a> · <a href="{picture.name}.pdf">PDF</a>'
    return (
        f'<figure id="{picture.name}" class="{kinds}"><h3>{text(picture.title)}</h3>\n{hint}'
        f"{scroll_box(drawing, picture.title)}"
        f"<figcaption>{text(picture.caption)} {files}</figcaption></figure>\n"
    )


def tables(items: Sequence[Item]) -> str:
    """Folded, each: there may be 28 of them."""
    parts = []
    for item in items:
        if isinstance(item, Table):
            grids = (table(g, f"{item.name}-{i}", item.title) for i, g in enumerate(item.grids))
            content = paragraph(item.caption, "note") + "".join(grids)
            parts.append(folded(item.title, content, item.name))
    return "".join(parts)


def not_reproduced(items: Sequence[Item], missing: Sequence[Missing]) -> str:
    """What agrees, what does not and what was not measured; then what could not be drawn."""
    found: list[Line] = lines(items, missing)
    done, open_ = done_grid(found), open_grid(found)
    page = table(done, "reproduction-table", "The paper, figure by figure")
    if open_.rows:
        listed = table(open_, "not-reproduced-table", "Not reproduced")
        summary = f"Not reproduced: {number(len(open_.rows), 'item')}, and what would measure each"
        page += folded(summary, listed)
    undrawn = [f"{entry.title}. {entry.sentence}" for entry in missing]
    return page + (f"<h3>Not drawn</h3>\n{bullets(undrawn)}" if undrawn else "")


def _width(svg: str) -> float:
    """Points, from matplotlib's own `width="244.8pt"`."""
    start = svg.index('width="') + len('width="')
    return float(svg[start : svg.index("pt", start)])
