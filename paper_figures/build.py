"""Makes the tables, figures and pages that are asked for, and writes them to one folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tst_study.analysis.tables.columns import Tables
from tst_study.analysis.tables.source import Folders
from tst_study.errors import UserError
from tst_study.paper_figures.catalogue import Registered, catalogue, find
from tst_study.paper_figures.item import Item, write_bytes
from tst_study.paper_figures.report import page, reproduction
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import boxes_named
from tst_study.text import printable


@dataclass(frozen=True)
class Built:
    """The items that `build` made, and the files that it wrote."""

    to: Path
    sources: Sources
    items: tuple[Item, ...]
    missing: tuple[str, ...]
    """A line for each item that could not be made, with the runs that it needs. There is no line
    for items that were asked for only by their group (`only=["study"]`) or that only a page
    needs."""
    written: tuple[Path, ...]
    """Files whose content is new; empty if nothing changed."""
    report: Path | None
    """The path of `report.html`; None if it was not asked for."""

    def lines(self) -> list[str]:
        """The lines to print: missing items, the number of written files, and the report's path."""
        lines = [*self.missing, f"Files written to {self.to}: {len(self.written)}."]
        return [*lines, f"Report: {self.report}"] if self.report else lines


# Wide tables are sliced thousands of times. If pandas stores strings with Arrow, the slicing takes
# a tenth of the whole time; Python strings avoid that.
@pd.option_context("mode.string_storage", "python")
@boxes_named()
def build(
    runs: Folders | Tables | None,
    to: Path | str,
    only: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Built:
    """Write tables (Markdown, LaTeX, CSV), figures (PDF without a title, SVG, PNG, CSV), a trace
    (JSON) beside each, and the pages `report.html` and `reproduction.md`.

    `runs`: folders of runs or archives, or None for the published numbers alone. `only`: names of
    items, groups or pages (`catalogue.find`); by default everything. If only the report needs an
    item, just the files that the report links to are written for it. `say`: called with a line of
    progress before each item.

    Raises `UserError`, for example if a folder of runs does not exist, two runs are copies of each
    other, `only` has an unknown name, or a file cannot be written.
    """
    (wanted, pages), sources, to = find(only), Sources(runs), Path(to)
    if sources.folders and sources.runs.empty:
        raise UserError(sources.summary.tables.problems[0])
    if not (only or runs):  # without runs, a study's own pictures are not reported as missing
        wanted = [entry for entry in wanted if entry.group != "study"]
    entries = _entries(wanted, pages, sources)
    items: list[Item] = []
    missing: list[str] = []
    files: dict[str, bytes] = {}
    for count, entry in enumerate(entries, 1):
        say(f"drawing figures and tables: {count} of {len(entries)}")
        item = entry.item(sources)
        if item is None:
            if not only or entry.name in only:
                missing.append(f"{entry.title}: needs {entry.lacks}.")
            continue
        items.append(item)
        made: dict[str, bytes] = {}
        if entry in wanted:
            made = item.files(sources.runs)
        elif "report" in pages and page.is_shown(item, sources):
            made = item.for_page()
        files |= {f"{item.name}{suffix}": content for suffix, content in made.items()}
    if "report" in pages:
        files["report.html"] = page.html(sources, items, to).encode()
    if "reproduction" in pages:
        files["reproduction.md"] = reproduction.markdown(sources, items).encode()
    files = {name: _readable(Path(name), content) for name, content in files.items()}
    try:
        to.mkdir(parents=True, exist_ok=True)
        written = [to / name for name, content in files.items() if write_bytes(to / name, content)]
    except OSError as error:
        raise UserError(f"{error.filename or to}: cannot be written ({error.strerror})") from None
    report = to / "report.html" if "report" in pages else None
    return Built(to, sources, tuple(items), tuple(missing), tuple(written), report)


def _readable(path: Path, content: bytes) -> bytes:
    """Escape control characters, such as those in the names of somebody else's archive, in a file
    that people read; data stay as they are."""
    if path.suffix not in (".html", ".md", ".svg"):
        return content
    return "\n".join(map(printable, content.decode().split("\n"))).encode()


def _entries(wanted: Sequence[Registered], pages: set[str], sources: Sources) -> list[Registered]:
    """Return the entries to make, in the catalogue's order: those that are asked for, and those
    that a page shows.

    A page shows every entry, except that those of `study/` are left out if there are no runs. If
    there are runs, and the report is the only page, entries to which runs cannot contribute are
    left out as well."""
    every = catalogue().values()
    shown = [entry for entry in every if pages and (entry.group != "study" or sources.folders)]
    if pages == {"report"} and sources.folders:
        shown = [entry for entry in shown if entry.needs or entry.lacks]
    return [entry for entry in every if entry in wanted or entry in shown]
