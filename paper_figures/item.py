"""The base class of pictures and tables: data, caption, sources and what was found.

All files of an item are the same bytes for the same inputs.
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
from tst_study.analysis.tables.columns import rows_of
from tst_study.atomic_files import written_atomically
from tst_study.text import in_csv

Verdict = Literal[
    "agrees", "disagrees", "undecided", "mechanism only", "not measured", "not in the paper"
]
"""`mechanism only`: measured on generated language, which cannot speak for the paper's text."""


@dataclass(frozen=True)
class Finding:
    """One line of `docs/reproduction.md`: what the paper shows here, and what these runs show."""

    published: str
    measured: str = ""
    """Empty where nothing was measured; `scale` and `verdict` are then ignored."""
    scale: str = ""
    """Model, steps and text of the runs, and their seeds."""
    verdict: Verdict = "not measured"
    needs: str = ""
    """The command that would make the runs, where nothing was measured; the catalogue sets it."""


def judged(verdicts: Iterable[str]) -> Verdict:
    """Return whether the verdicts on settings agree with the paper's claim that superposition is
    better: `agrees` with a win and no loss, `disagrees` with more losses than wins."""
    counted = list(verdicts)
    wins, losses = counted.count("better"), counted.count("worse")
    return "agrees" if wins and not losses else "disagrees" if losses > wins else "undecided"


@dataclass(frozen=True, kw_only=True)
class Item(ABC):
    """A picture or a table; its entry in the catalogue completes what is empty here."""

    data: pd.DataFrame
    """All that is shown, and at times more than that; saved beside it as CSV."""
    caption: str
    """A description: quantity, runs and seeds, published sources, smoothing."""
    measured: str = ""
    """The part of the caption about what was measured; left out where nothing was."""
    title: str = ""
    name: str = ""
    """Name of its entry, and of its files without their ending."""
    group: str = ""
    folders: tuple[str, ...] = ()
    """Run folders it was made from."""
    published: Sequence[str] = ()
    """Files of published numbers it was made from."""
    fits: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the fits in it, with their intervals."""
    finding: Finding | None = None

    def files(self, runs: pd.DataFrame) -> dict[str, bytes]:
        """Return all its files, by ending."""
        trace = self.trace(runs).encode()
        return {**self.contents(), ".csv": csv_bytes(self.data), ".json": trace}

    def contents(self) -> dict[str, bytes]:
        """Return the table or picture itself, by ending: neither its data nor its trace."""
        return {**self.for_page(), **self.for_print()}

    def for_page(self) -> dict[str, bytes]:
        """Return the files that a page links to, by ending."""
        return {".csv": csv_bytes(self.data)}

    @abstractmethod
    def for_print(self) -> dict[str, bytes]:
        """Return the file that a paper includes, by ending."""

    def trace(self, runs: pd.DataFrame) -> str:
        """Return its runs, published files, fits and caption as JSON, for the file beside it."""
        used = runs[runs["folder"].isin(self.folders)].sort_values(["run_id", "folder"])
        files = published.fingerprints(*self.published)
        sources = {
            "name": self.name,
            "title": self.title,
            "caption": self.caption,
            "runs": list(rows_of(used[["run_id", "study", "seed", "fingerprint", "code"]])),
            "published": [{"file": name, "sha256": digest} for name, digest in files.items()],
            "fits": plain_numbers(self.fits),
            "data": f"{self.name}.csv",
            "data_sha256": hashlib.sha256(csv_bytes(self.data)).hexdigest(),
            "made_by": {"tst_study": tst_study.__version__},
        }
        return json.dumps(sources, indent=1, ensure_ascii=False) + "\n"


def plain_numbers(value: Any) -> Any:
    """Round numbers, in mappings too, to ten digits: the last ones differ between processors. NaN
    and infinities become None, since JSON has neither."""
    if isinstance(value, Mapping):
        return {str(key): plain_numbers(inner) for key, inner in value.items()}
    if isinstance(value, bool | str | int) or value is None:
        return value
    number = float(f"{float(value):.10g}")
    return number if abs(number) < float("inf") else None


def csv_bytes(table: pd.DataFrame, numbers: str | None = "%.10g") -> bytes:
    """Return a table as CSV in which no text can run as a formula.

    `numbers`: the format of floats, None for every digit.
    """
    texts = table.select_dtypes(exclude="number")
    safe = table.assign(**texts.map(lambda cell: in_csv(cell) if isinstance(cell, str) else cell))
    return safe.to_csv(index=False, lineterminator="\n", float_format=numbers).encode()


def write_bytes(path: Path, content: bytes) -> bool:
    """Write a file whole or not at all; return False if the same content is there already."""
    if path.is_file() and path.read_bytes() == content:
        return False
    with written_atomically(path) as file:
        file.write(content)
    return True
