"""Sections of the report that come from tables and figures."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from analysis.wording import number
from paper_figures.item import Item, Missing
from paper_figures.picture import Picture
from paper_figures.report.html_parts import bullets, folded, paragraph, scroll_box, table, text
from paper_figures.report.reproduction import grids
from paper_figures.style import COLUMN, PALETTE
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
    points = re.search(r'width="([\d.]+)pt"', svg)
    wide = points is not None and float(points[1]) > 1.3 * COLUMN * 72
    kinds = " ".join(["wide"] * wide + ["twice"] * (picture.kind == FIRST))
    hint = '<p class="hint">Scroll sideways to see all of it.</p>\n' if wide else ""
    files = f'<a href="{picture.name}.csv">CSV</a> · <a href="{picture.name}.pdf">PDF</a>'
    return (
        f'<figure id="{picture.name}" class="{kinds}"><h3>{text(picture.title)}</h3>\n{hint}'
        f"{scroll_box(drawing, picture.title)}"
        f"<figcaption>{text(picture.caption)} {files}</figcaption></figure>\n"
    )


def inline(svg: str, prefix: str, description: str) -> str:
    """The `<svg>` element alone, in the colours of the page, light or dark: they become variables
    (`--c-1c1c20`); ids get `prefix`. What a page does not need goes, and so does the fixed size.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    head, _, body = svg.partition(">")
    view = re.search(r'viewBox="[^"]*"', head)
    label = escape(description, quote=True)
    head = f'<svg {view[0] if view else ""} role="img" aria-label="{label}">'
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r"url\(#", f"url(#{prefix}-", body)
    body = re.sub(r'xlink:href="#', f'href="#{prefix}-', body)
    for colour in PALETTE:
        body = body.replace(colour, f"var(--c-{colour[1:]})")
    return head + body.strip()


def tables(items: Sequence[Item]) -> str:
    """Folded, each: there may be 28 of them."""
    parts = []
    for item in items:
        if isinstance(item, Table):
            made = (table(g, f"{item.name}-{i}", item.title) for i, g in enumerate(item.grids))
            content = paragraph(item.caption, "note") + "".join(made)
            parts.append(folded(item.title, content, item.name))
    return "".join(parts)


def not_reproduced(items: Sequence[Item], missing: Sequence[Missing]) -> str:
    """What agrees, what does not and what was not measured; then what could not be drawn."""
    done, open_ = grids(items, missing)
    page = table(done, "reproduction-table", "The paper, figure by figure")
    if open_.rows:
        listed = table(open_, "not-reproduced-table", "Not reproduced")
        summary = f"Not reproduced: {number(len(open_.rows), 'item')}, and what would measure each"
        page += folded(summary, listed)
    undrawn = [f"{entry.title}. {entry.sentence}" for entry in missing]
    return page + (f"<h3>Not drawn</h3>\n{bullets(undrawn)}" if undrawn else "")
