"""Tables, figures and the report, written to one folder; only what changed is made again."""

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from paper_figures.catalogue import CATALOGUE, KNOWN_STUDIES, Selection, find
from paper_figures.item import Item, Missing, write_bytes
from paper_figures.registration import REGISTERED, Entry
from paper_figures.report import page, reproduction
from paper_figures.sources import Sources
from tst_study.errors import UserError


@dataclass(frozen=True)
class Built:
    """What `build` found and did."""

    to: Path
    sources: Sources
    items: tuple[Item, ...]
    missing: tuple[Missing, ...]
    """What cannot be made from these runs, each with the command that would make them."""
    written: tuple[Path, ...]
    """Files whose content is new; empty where nothing changed."""
    report: Path | None
    seconds: float

    def lines(self) -> list[str]:
        said = [f"{missing.title}: {missing.sentence}" for missing in self.missing]
        said.append(f"{len(self.written)} files written to {self.to} in {self.seconds:.1f} s.")
        return [*said, f"Report: {self.report}"] if self.report else said


def build(runs: Path | str | None, to: Path | str, only: Sequence[str] | None = None) -> Built:
    """Write tables (Markdown, LaTeX, CSV), figures (PDF, SVG, PNG, CSV), a trace beside each, and
    the pages `report.html` and `reproduction.md`.

    `runs`: a folder of run folders, or None for the published numbers alone. `only`: names as
    `catalogue.find` takes them. Raises `UserError` where the folder of runs does not exist, or
    `only` names nothing known.
    """
    began = time.perf_counter()
    wanted, sources, to = find(only), Sources(runs), Path(to)
    own = bool(only) and runs is not None and _are_own(sources)
    entries = _entries(wanted, only, runs is None, own)
    try:
        to.mkdir(parents=True, exist_ok=True)
        every, written = _made(entries, _Work(sources, wanted, to))
    except OSError as error:
        raise _unwritable(error, to) from None
    items = [item for item in every if isinstance(item, Item)]
    missing = [item for item in every if isinstance(item, Missing)]
    names = [item.name for item in items]
    if len(set(names)) < len(names):
        raise ValueError(f"two items have one name: {sorted(names)}")
    if own:  # no study of the package is asked for, unless by its figure's name
        missing = [item for item in missing if item.kind in (only or ())]
    for name, entry in wanted.pictures.items():
        if name not in names:
            there = ", ".join(sorted(item.name for item in items if item.kind == entry.name))
            there = there or "none from these runs"
            raise UserError(f"--only {name}: no such picture; there are {there}")
    try:
        pages = {}
        if "report" in wanted.pages:
            pages[to / "report.html"] = page.html(sources, items, missing, to)
        if "reproduction" in wanted.pages:
            pages[to / "reproduction.md"] = reproduction.markdown(sources, items, missing)
        written += [path for path, text in pages.items() if write_bytes(path, text.encode())]
    except OSError as error:
        raise _unwritable(error, to) from None
    return Built(
        to=to,
        sources=sources,
        items=tuple(items),
        missing=tuple(missing),
        written=tuple(written),
        report=to / "report.html" if "report" in wanted.pages else None,
        seconds=time.perf_counter() - began,
    )


@dataclass(frozen=True)
class _Work:
    """What is done for one entry of the catalogue: its items are made, those asked for saved."""

    sources: Sources
    wanted: Selection
    to: Path

    def __call__(self, entry: Entry) -> tuple[list[Item | Missing], list[Path]]:
        found, runs = entry.items(self.sources), self.sources.runs
        chosen = [item for item in found if isinstance(item, Item) and self._is_chosen(item)]
        return found, [path for item in chosen for path in item.save(runs, self.to)]

    def _is_chosen(self, item: Item) -> bool:
        asked = item.kind in {entry.name for entry in self.wanted.entries}
        in_report = "report" in self.wanted.pages and page.is_shown(item, self.sources)
        return asked or item.name in self.wanted.pictures or in_report


def _made(entries: Sequence[Entry], work: _Work) -> tuple[list[Item | Missing], list[Path]]:
    """Entries side by side on all processors, where a process can be forked with the runs that it
    needs in memory; in the order of `entries`."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if min(cores, len(entries)) < 2:
        done = list(map(work, entries))
    else:
        _ = work.sources.summary  # read once, before the processes part
        first = sorted(
            entries, key=lambda entry: entry.group != "extensions"
        )  # their fits are slow
        with ProcessPoolExecutor(
            min(cores, len(entries)), get_context("fork"), _begin, (work,)
        ) as pool:
            found = dict(zip(first, pool.map(_in_child, [e.name for e in first]), strict=True))
        done = [found[entry] for entry in entries]
    return [item for items, _ in done for item in items], [path for _, p in done for path in p]


_WORK: list[_Work] = []
"""Of a forked process."""


def _begin(work: _Work) -> None:
    _WORK[:] = [work]


def _in_child(name: str) -> tuple[list[Item | Missing], list[Path]]:
    return _WORK[0](REGISTERED[name])


def _unwritable(error: OSError, to: Path) -> UserError:
    return UserError(f"{error.filename or to}: cannot be written ({error.strerror})")


def _are_own(sources: Sources) -> bool:
    """Whether all runs are of a study that no figure knows: one's own."""
    studies = set(sources.runs["study"])
    return bool(studies) and not studies & KNOWN_STUDIES


def _entries(
    wanted: Selection, only: Sequence[str] | None, no_runs: bool, own: bool
) -> list[Entry]:
    """A page tells of everything; that of a study of what runs can have a part in.

    A study's own pictures need runs, and are not missed without.
    """
    entries = [entry for entry in CATALOGUE if wanted.pages or entry in wanted.makers]
    if wanted.pages == {"report"} and not no_runs:
        told = [e for e in entries if e.from_runs and (e.group == "study" or not own)]
        entries = [entry for entry in entries if entry in told or entry in wanted.makers]
    return [entry for entry in entries if not (no_runs and entry.group == "study") or only]
