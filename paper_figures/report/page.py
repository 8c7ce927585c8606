"""`report.html`: what a study found, in one self-contained page.

Styles, script and pictures are part of the file, so a browser fetches nothing. Links to run folders
and to the files of figures and tables are relative to the page.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tst_study.paper_figures.drawing import Picture, rendered
from tst_study.paper_figures.item import Item
from tst_study.paper_figures.report import sections
from tst_study.paper_figures.report.sections import lead, limits
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import COLUMN, PALETTE
from tst_study.paper_figures.table import Grid, Table


@dataclass(frozen=True)
class Section:
    """A section of the page. One without content is left out."""

    title: str
    tables: Sequence[Grid] = ()
    pictures: Sequence[dict[str, object]] = ()
    sentences: Sequence[str] = ()
    links: Sequence[Table] = ()


def is_shown(item: Item, sources: Sources) -> bool:
    """Return whether the report shows an item. If there are runs, the item must have been made from
    some of them (`item.folders`); if there are none, every item is shown."""
    return not sources.folders or bool(item.folders)


def html(sources: Sources, items: Sequence[Item], to: Path) -> str:
    """Return the page as HTML; the same arguments give the same text.

    `items`: pictures, which the page contains, and tables, to which it links; those for which
    `is_shown` is false are left out. `to`: the folder of the page, to which its links are relative.
    """
    shown_items, summary = [item for item in items if is_shown(item, sources)], sources.summary
    pictures = _pictures(shown_items)
    first = pictures.pop(0) if pictures and sources.folders else None
    sections_of_page = [
        Section("Verdicts", sections.verdicts(summary, sources.answers)),
        Section("Not read", sentences=summary.tables.problems),
        Section("Figures", pictures=pictures),
        Section("Arms", [sections.arms(summary)]),
        Section("Learning rates", sentences=[sweep.sentence() for sweep in summary.sweeps]),
        Section("Tables", links=[item for item in shown_items if isinstance(item, Table)]),
        Section("What these numbers cannot say", sentences=limits(summary)),
        Section("Not compared", [sections.excluded(summary)]),
        Section("Runs", [sections.runs(summary, to)]),
    ]
    names = ", ".join(sorted(set(sources.runs["study"])))
    published = "No runs: every number is the paper's (arXiv 2605.06546), or follows from one."
    pages = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    pages.filters["marked"] = marked
    return pages.get_template("report.html").render(
        subject=f"study {names}" if sources.folders else "the published numbers",
        lead=lead(sources) if sources.folders else [("answer", "", published)],
        first=first,
        sections=[
            one
            for one in sections_of_page
            if one.pictures
            or one.links
            # Without runs there is nothing to say of them, not even what could not be read.
            or (sources.folders and (one.sentences or any(grid.rows for grid in one.tables)))
        ],
    )


def marked(words: str) -> Markup:
    """Return words as HTML: escaped, with each part in backquotes as `<code>`."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(words))))


def _pictures(items: Sequence[Item]) -> list[dict[str, object]]:
    """Return what the template needs of each picture: `overview` first, then the other pictures of
    the study, then those of the paper and its extensions."""
    pictures = [item for item in items if isinstance(item, Picture)]
    pictures.sort(key=lambda picture: (picture.group != "study", picture.name != "overview"))
    return [
        {
            "item": picture,
            "wide": picture.untitled.get_figwidth() > 1.3 * COLUMN,
            "drawing": _inline(picture, f"f{place}"),
        }
        for place, picture in enumerate(pictures)
    ]


def _inline(picture: Picture, prefix: str) -> Markup:
    """Return the `<svg>` element of a picture, without metadata, comments and a fixed size.

    A screen reader says the title and the caption in its place. Colours become CSS variables
    (`--c-1c1c20`), which have one value on light pages and one on dark ones. Ids and the references
    to them get `prefix`, so that they are unique on the page.
    """
    svg = rendered(picture.untitled, "svg").decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    head, _, body = svg.partition(">")
    view = re.search(r'viewBox="[^"]*"', head)
    said = escape(f"{picture.title}. {picture.caption}")
    head = f'<svg {view[0] if view else ""} role="img" aria-label="{said}">'
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r"url\(#", f"url(#{prefix}-", body)
    body = re.sub(r'xlink:href="#', f'href="#{prefix}-', body)
    for colour in PALETTE:
        body = body.replace(colour, f"var(--c-{colour[1:]})")
    return Markup(head + body.strip())
