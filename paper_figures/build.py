"""Tables, figures and the report, written to one folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tst_study.analysis.tables.source import Folders
from tst_study.errors import UserError
from tst_study.paper_figures.catalogue import Entry, catalogue, find
from tst_study.paper_figures.drawing import Picture
from tst_study.paper_figures.item import Item, write_bytes
from tst_study.paper_figures.report import page, reproduction
from tst_study.paper_figures.sources import Sources


@dataclass(frozen=True)
class Built:
    """The items that `build` made, and the files that it wrote."""

    to: Path
    sources: Sources
    items: tuple[Item, ...]
    missing: tuple[str, ...]
    """A line for each item that was asked for and lacks runs, which it names."""
    written: tuple[Path, ...]
    """Files whose content is new; empty where nothing changed."""
    report: Path | None

    def lines(self) -> list[str]:
        lines = [*self.missing, f"{len(self.written)} files written to {self.to}."]
        return [*lines, f"Report: {self.report}"] if self.report else lines


# Wide tables are cut into small ones thousands of times: with Arrow's strings this takes a tenth of
# the whole time.
@pd.option_context("mode.string_storage", "python")
def build(
    runs: Folders | None,
    to: Path | str,
    only: Sequence[str] | None = None,
    for_print: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Built:
    """Write tables (Markdown, LaTeX, CSV), figures (PDF, SVG, PNG, CSV), a trace beside each, and
    the pages `report.html` and `reproduction.md`.

    `runs`: folders of runs or archives, or None for the published numbers alone. `only`: names as
    `catalogue.find` takes them; of a page alone only the files that it links to are written.
    `for_print`: only what a paper includes, PDF without titles and LaTeX. `say`: is told how many
    are made. Raises `UserError` where a folder of runs does not exist, or `only` names nothing
    known.
    """
    (wanted, pages), sources, to = find(only), Sources(runs), Path(to)
    if not (only or runs):  # a study's own pictures are not missed where no study is named
        wanted = [entry for entry in wanted if entry.group != "study"]
    pages = set() if for_print else pages
    entries = _entries(wanted, pages, sources)
    items: list[Item] = []
    missing: list[str] = []
    drawings: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for count, entry in enumerate(entries, 1):
        say(f"drawing figures and tables: {count} of {len(entries)}")
        item = entry.item(sources)
        if item is None:
            if not only or entry.name in only:
                missing.append(f"{entry.title}: needs {entry.lacks}.")
            continue
        items.append(item)
        shown = "report" in pages and page.is_shown(item, sources)
        if shown and isinstance(item, Picture):
            drawings[item.name] = item.drawing()
        made: dict[str, bytes] = {}
        if entry in wanted and for_print:
            made = item.for_print()
        elif entry in wanted:
            made = item.files(sources.runs)
        elif shown:
            made = item.for_page()
        files |= {f"{item.name}{suffix}": content for suffix, content in made.items()}
    if "report" in pages:
        files["report.html"] = page.html(sources, items, drawings, to).encode()
    if "reproduction" in pages:
        files["reproduction.md"] = reproduction.markdown(sources, items).encode()
    try:
        to.mkdir(parents=True, exist_ok=True)
        written = [to / name for name, content in files.items() if write_bytes(to / name, content)]
    except OSError as error:
        raise UserError(f"{error.filename or to}: cannot be written ({error.strerror})") from None
    report = to / "report.html" if "report" in pages else None
    return Built(to, sources, tuple(items), tuple(missing), tuple(written), report)


def _entries(wanted: Sequence[Entry], pages: set[str], sources: Sources) -> list[Entry]:
    """Return what is asked for and what a page tells of: the reproduction of everything, a report
    of what runs can have a part in."""
    every = catalogue().values()
    shown = [entry for entry in every if pages and (entry.group != "study" or sources.folders)]
    if pages == {"report"} and sources.folders:
        shown = [entry for entry in shown if entry.needs or entry.lacks]
    return [entry for entry in every if entry in wanted or entry in shown]
