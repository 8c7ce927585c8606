"""`Item`, the base class of figures (`drawing.Picture`) and tables (`table.Table`): the data, the
caption, the sources, and what was found.

The same inputs give the same bytes in all files of an item.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

import tst_study
from tst_study.analysis import published
from tst_study.analysis.answer import plain, records
from tst_study.atomic_files import written_atomically
from tst_study.text import in_csv

Verdict = Literal[
    "agrees", "disagrees", "undecided", "mechanism only", "not measured", "not in the paper"
]
"""Whether what was measured agrees with the paper. `mechanism only`: it was measured on a generated
language, which cannot speak for the paper's text."""


@dataclass(frozen=True)
class Finding:
    """One line of `reproduction.md`: what an item shows in the paper, and what these runs show."""

    published: str
    measured: str = ""
    """Empty if nothing was measured; `scale` and `verdict` are then ignored."""
    scale: str = ""
    """Model, steps and text of the runs, and their seeds."""
    verdict: Verdict = "not measured"
    needs: str = ""
    """The commands, in backquotes, that measure it, at the paper's size if they can. The catalogue
    sets it."""


def judged(verdicts: Iterable[str]) -> Verdict:
    """Return whether the verdicts on settings agree with the paper's claim that superposition is
    better: `agrees` if some setting is better and none is worse, `disagrees` if more are worse than
    better, otherwise `undecided`."""
    counted = list(verdicts)
    wins, losses = counted.count("better"), counted.count("worse")
    return "agrees" if wins and not losses else "disagrees" if losses > wins else "undecided"


@dataclass(frozen=True, kw_only=True)
class Item(ABC):
    """A figure or a table. Its entry in the catalogue fills in the name, the group, the published
    files and, if the item has none, the title."""

    data: pd.DataFrame
    """All data that the item shows, and sometimes more. It is saved beside the item as CSV."""
    caption: str
    """A description: quantity, runs and seeds, published sources, smoothing."""
    measured: str = ""
    """The part of the caption about what was measured; left out if nothing was."""
    title: str = ""
    name: str = ""
    """The name of its entry in the catalogue, which is also that of its files, without the
    ending."""
    group: str = ""
    """The subpackage that makes it, one of `FOLDERS`."""
    folders: tuple[str, ...] = ()
    """The run folders that it was made from."""
    published: Sequence[str] = ()
    """The names of the files of published numbers that it was made from, without `.csv`."""
    fits: Mapping[str, Any] = field(default_factory=dict)
    """Results of the fits that it shows, for the trace."""
    finding: Finding | None = None

    def files(self, runs: pd.DataFrame) -> dict[str, bytes]:
        """Return all files of the item, by ending. `runs`: the run table."""
        trace = self.trace(runs).encode()
        return {**self.contents(), ".csv": csv_bytes(self.data), ".json": trace}

    @abstractmethod
    def contents(self) -> dict[str, bytes]:
        """Return the files of the table or figure itself, by ending, without its data and its
        trace."""

    def for_page(self) -> dict[str, bytes]:
        """Return the files that a page links to, by ending."""
        return {".csv": csv_bytes(self.data)}

    def trace(self, runs: pd.DataFrame) -> str:
        """Return, as JSON, what the item was made from: its title and caption, its runs, published
        files and fits, and a checksum of its data. `runs`: the run table."""
        used = runs[runs["folder"].isin(self.folders)].sort_values(["run_id", "folder"])
        files = published.fingerprints(*self.published)
        sources = {
            "name": self.name,
            "title": self.title,
            "caption": self.caption,
            "runs": records(used[["run_id", "study", "seed", "fingerprint", "code"]]),
            "published": [{"file": name, "sha256": digest} for name, digest in files.items()],
            # Further digits differ between processors.
            "fits": plain(self.fits, lambda digits: float(f"{float(digits):.10g}")),
            "data": f"{self.name}.csv",
            "data_sha256": hashlib.sha256(csv_bytes(self.data)).hexdigest(),
            "made_by": {"tst_study": tst_study.__version__},
        }
        return json.dumps(sources, indent=1, ensure_ascii=False) + "\n"


def csv_bytes(table: pd.DataFrame, numbers: str | None = "%.10g") -> bytes:
    """Return a table as CSV in which a spreadsheet takes no text for a formula.

    `numbers`: the format of floats, or None to write every digit.
    """
    texts = table.select_dtypes(exclude="number")
    safe = table.assign(**texts.map(lambda cell: in_csv(cell) if isinstance(cell, str) else cell))
    return safe.to_csv(index=False, lineterminator="\n", float_format=numbers).encode()


def write_bytes(path: Path, content: bytes) -> bool:
    """Write a file, whole or not at all. Returns whether it was written: False if the file already
    had this content."""
    if path.is_file() and path.read_bytes() == content:
        return False
    with written_atomically(path) as file:
        file.write(content)
    return True
