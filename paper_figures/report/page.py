"""`report.html`: what a study found, in one page that needs nothing but itself.

Styles, script and pictures are inside; nothing is fetched. Links to run folders and to files of
figures are relative.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from paper_figures.item import Item, Missing
from paper_figures.report import study_sections
from paper_figures.report.answer import lead, limits
from paper_figures.report.html_parts import bullets, paragraph, text
from paper_figures.report.item_sections import figures, not_reproduced, tables
from paper_figures.sources import Sources

OWN_SECTION = ("headline_table",)
"""Items that the study's own sections print."""


def is_shown(item: Item, sources: Sources) -> bool:
    """Whether runs have a part in it; without runs, always."""
    return sources.folder is None or bool(item.folders)


def html(sources: Sources, items: Sequence[Item], missing: Sequence[Missing], to: Path) -> str:
    """The page; the pictures' SVG files must lie in `to`. Same runs, same bytes."""
    there = [i for i in items if is_shown(i, sources) and i.kind not in OWN_SECTION]
    summary = sources.summary
    sections = {  # one that is empty is left out
        "Verdicts": study_sections.verdicts(summary),
        "Not read": bullets(summary.tables.problems) if summary.tables.problems else "",
        "Figures": figures(there, to),
        "Comparisons": study_sections.comparisons(summary),
        "Equal loss": study_sections.equal_loss(summary),
        "Cost and loss": study_sections.headline(summary),
        "Learning rates": study_sections.learning_rates(summary),
        "Tables": tables(there),
        "What these numbers cannot say": bullets(limits(summary)) if sources.folder else "",
        "Not compared": study_sections.excluded(summary),
        "Runs": study_sections.runs(summary, to),
        "The paper, figure by figure": not_reproduced(items, missing),
    }
    kept = {title: content for title, content in sections.items() if content}
    names = {title: "-".join(title.lower().replace(",", "").split()) for title in kept}
    links = "".join(f'<a href="#{names[title]}">{text(title)}</a>' for title in kept)
    body = "".join(
        f'<section id="{names[title]}"><h2>{text(title)}</h2>\n{content}</section>\n'
        for title, content in kept.items()
    )
    style, script = (
        Path(__file__).with_name(f"report.{kind}").read_text("utf8") for kind in ("css", "js")
    )
    title = escape(f"Token superposition: {_subject(sources)}")
    top = "No runs: everything here is published (arXiv 2605.06546)."
    start = paragraph(top, "lead") if sources.folder is None else lead(summary)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{style}</style></head>\n"
        f'<body><main><header><h1>{title}</h1>\n{start}<nav aria-label="Sections">{links}</nav>'
        f"</header>\n{body}</main>\n<script>\n{script}</script></body></html>\n"
    )


def _subject(sources: Sources) -> str:
    if sources.folder is None:
        return "the published numbers"
    names = sorted(set(sources.runs["study"]))
    return f"study {', '.join(names)}" if names else "no runs yet"
