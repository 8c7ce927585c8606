"""Tables, figures and the report, written to one folder; only what changed is made again."""

import gc
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pandas as pd

from tst_study.analysis.tables.source import Folders
from tst_study.errors import UserError
from tst_study.paper_figures.catalogue import Entry, catalogue, find
from tst_study.paper_figures.item import Item, Missing, write_bytes
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.report import page, reproduction
from tst_study.paper_figures.sources import Sources

Made = tuple[list[Item | Missing], list[Path], dict[str, str]]
"""An entry's items, the files of it that were written, and SVGs for the page by name."""
PATIENCE = 2.0
"""Seconds between two lines that say how far the drawing is."""


@dataclass(frozen=True)
class Built:
    """The items that `build` made, and the files that it wrote."""

    to: Path
    sources: Sources
    items: tuple[Item, ...]
    missing: tuple[Missing, ...]
    """Items that were asked for and lack runs; each says which."""
    written: tuple[Path, ...]
    """Files whose content is new; empty where nothing changed."""
    report: Path | None
    seconds: float

    def lines(self) -> list[str]:
        lines = [f"{missing.title}: {missing.sentence}" for missing in self.missing]
        lines.append(f"{len(self.written)} files written to {self.to} in {self.seconds:.1f} s.")
        return [*lines, f"Report: {self.report}"] if self.report else lines


# Wide tables are cut into small ones thousands of times: with Arrow's strings this takes a tenth of
# the whole time.
@pd.option_context("mode.string_storage", "python")
def build(
    runs: Folders | None,
    to: Path | str,
    only: Sequence[str] | None = None,
    for_print: bool = False,
    progress: bool = False,
) -> Built:
    """Write tables (Markdown, LaTeX, CSV), figures (PDF, SVG, PNG, CSV), a trace beside each, and
    the pages `report.html` and `reproduction.md`.

    `runs`: folders of runs or archives, or None for the published numbers alone. `only`: names as
    `catalogue.find` takes them; of a page alone only the files that it links to are written.
    `for_print`: only what a paper includes, PDF without titles and LaTeX. `progress`:
    say on stderr how many are made, while it takes longer than two seconds. Raises `UserError`
    where a folder of runs does not exist, or `only` names nothing known.
    """
    began = time.perf_counter()
    (wanted, pages), sources, to = find(only), Sources(runs), Path(to)
    if not (only or runs):  # a study's own pictures are not missed where no study is named
        wanted = [entry for entry in wanted if entry.group != "study"]
    pages = set() if for_print else pages
    work = _Work(sources, {entry.name for entry in wanted}, "report" in pages, for_print, to)
    try:
        to.mkdir(parents=True, exist_ok=True)
        entries = _entries(wanted, pages, sources)
        done = list(_counted(_side_by_side(work, entries), len(entries) if progress else 0))
        written = [path for _, paths, _ in done for path in paths]
        every = [item for entry_items, _, _ in done for item in entry_items]
        drawings = {name: svg for *_, drawn in done for name, svg in drawn.items()}
        items = [item for item in every if isinstance(item, Item)]
        missing = [item for item in every if isinstance(item, Missing)]
        names = [item.name for item in items]
        if len(set(names)) < len(names):
            raise ValueError(f"two items have one name: {sorted(names)}")
        made = {}
        if "report" in pages:
            made[to / "report.html"] = page.html(sources, items, drawings, to)
        if "reproduction" in pages:
            made[to / "reproduction.md"] = reproduction.markdown(sources, items)
        written += [path for path, text in made.items() if write_bytes(path, text.encode())]
    except OSError as error:
        raise UserError(f"{error.filename or to}: cannot be written ({error.strerror})") from None
    return Built(
        to=to,
        sources=sources,
        items=tuple(items),
        missing=tuple(item for item in missing if not only or item.kind in only),
        written=tuple(written),
        report=to / "report.html" if "report" in pages else None,
        seconds=time.perf_counter() - began,
    )


def _entries(wanted: Sequence[Entry], pages: set[str], sources: Sources) -> list[Entry]:
    """Return what is asked for and what a page tells of.

    The reproduction tells of everything, a report of what runs can have a part in; runs that no
    entry asks for have their own pictures alone.
    """
    every = catalogue().values()
    shown = [entry for entry in every if pages and (entry.group != "study" or sources.folders)]
    if pages == {"report"} and sources.folders:
        known = any(set(sources.runs["study"]) & entry.studies for entry in every)
        shown = [entry for entry in shown if entry.from_runs and (known or entry.group == "study")]
        if sources.accuracies.empty:  # tables of accuracies would show published ones alone
            shown = [entry for entry in shown if "downstream_grid" not in entry.published]
    return [entry for entry in every if entry in wanted or entry in shown]


@dataclass(frozen=True)
class _Work:
    """Makes the items of one entry, and writes those that are wanted or shown on the page."""

    sources: Sources
    wanted: set[str]
    report: bool
    for_print: bool
    to: Path

    def __call__(self, entry: Entry) -> Made:
        items, paths, drawings = entry.items(self.sources), list[Path](), dict[str, str]()
        for item in items:
            if not isinstance(item, Item):
                continue
            shown = self.report and page.is_shown(item, self.sources)
            if entry.name in self.wanted and self.for_print:
                paths += item.write(item.for_print(), self.to)
            elif entry.name in self.wanted:
                paths += item.save(self.sources.runs, self.to)
            elif shown:
                paths += item.write(item.for_page(), self.to)
            if shown and isinstance(item, Picture):
                drawings[item.name] = item.drawing()
        return items, paths, drawings


def _counted(made: Iterable[Made], total: int) -> Iterator[Made]:
    """Pass on what is made, and say every two seconds how much of the total that is, if there is
    one."""
    last_said = time.monotonic()
    for count, result in enumerate(made, 1):
        yield result
        if total and time.monotonic() > last_said + PATIENCE:
            end = "\r" if sys.stderr.isatty() else "\n"
            print(f"{count} of {total} figures and tables", end=end, file=sys.stderr, flush=True)
            last_said = time.monotonic()


def _side_by_side(work: _Work, entries: Sequence[Entry]) -> Iterator[Made]:
    """Do the work of all entries, in their order, on all processors where a process can be forked
    with the runs that it needs in memory."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if min(cores, len(entries)) < 2:
        yield from map(work, entries)
        return
    # Computed once, before the processes part: several pictures and the page need them.
    _ = work.sources.answers, work.sources.summary.verdicts, work.sources.summary.matches
    # What waits for its own threads when it is freed, as groups of ranks do, would wait for ever in
    # a child, which has none of them.
    gc.collect()
    gc.freeze()
    try:
        with ProcessPoolExecutor(cores, get_context("fork"), _begin, (work,)) as pool:
            yield from pool.map(_in_child, [entry.name for entry in entries])
    finally:
        gc.unfreeze()


_FORKED: list[_Work] = []
"""The work of a forked process; it is the last one."""


def _begin(work: _Work) -> None:
    """Prepare a forked process, which ends before collecting garbage would gain anything."""
    gc.disable()
    _FORKED.append(work)


def _in_child(name: str) -> Made:
    return _FORKED[-1](catalogue()[name])
