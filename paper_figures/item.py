"""What this package makes: pictures and tables, each with what it was made from, and what lacks.

The data comes first and is cheap; the drawing is made only when data, caption or code changed.
All files of an item are the same bytes for the same inputs.
"""

from __future__ import annotations

import functools
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

import tst_study
from analysis.run_row import rows_of
from paper_figures.published_numbers import file_digest
from tst_study.atomic_files import written_atomically

Verdict = Literal[
    "agrees", "disagrees", "undecided", "mechanism only", "not measured", "not in the paper"
]
"""`mechanism only`: measured on made-up language, which cannot speak for the paper's text."""


@dataclass(frozen=True)
class Finding:
    """One line of `docs/reproduction.md`: what the paper shows here, and what these runs show."""

    published: str
    measured: str = ""
    """Empty where nothing was measured."""
    scale: str = ""
    """Model, steps and text of the runs, and their seeds."""
    verdict: Verdict = "not measured"
    needs: str = ""
    """The command that makes the runs this needs, where there are none."""


@dataclass(frozen=True)
class Item(ABC):
    """A picture or a table."""

    kind: str
    """The module that makes it."""
    name: str
    """File name without its ending."""
    title: str
    caption: str
    """What is shown, from how many runs and seeds, what is published, how it was smoothed."""
    data: pd.DataFrame
    """Exactly what is shown; saved beside it as CSV."""
    folders: tuple[str, ...]
    """Run folders it was made from."""
    published: tuple[str, ...] = field(default=(), kw_only=True)
    """Files of published numbers it was made from."""
    fits: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """Parameters of the fits in it, with their intervals."""
    finding: Finding | None = field(default=None, kw_only=True)

    @abstractmethod
    def save(self, runs: pd.DataFrame, to: Path) -> list[Path]:
        """Write its files; returns those written, none where all are there and current."""


@dataclass(frozen=True)
class Missing:
    """An item that cannot be made from the runs there are."""

    kind: str
    title: str
    sentence: str
    """Which runs it needs, and the command that makes them."""
    finding: Finding | None = None


def command(study: str, scale: str) -> str:
    """The command line that makes the runs of a study."""
    return f"tst-study submit {study} --scale {scale}"


def trace(item: Item, runs: pd.DataFrame) -> dict[str, Any]:
    """What an item was made from, for the file beside it."""
    used = runs[runs["folder"].isin(item.folders)].sort_values(["run_id", "folder"])
    return {
        "name": item.name,
        "title": item.title,
        "caption": item.caption,
        "runs": [
            {key: row[key] for key in ("run_id", "study", "seed", "fingerprint", "code")}
            for row in rows_of(used)
        ],
        "published": [{"file": name, "sha256": file_digest(name)} for name in item.published],
        "fits": plain(item.fits),
        "data": f"{item.name}.csv",
        "data_sha256": hashlib.sha256(csv_bytes(item.data)).hexdigest(),
        "made_by": {"tst_study": tst_study.__version__, "code_sha256": code_digest()},
    }


def trace_text(item: Item, runs: pd.DataFrame) -> str:
    return json.dumps(trace(item, runs), indent=1, ensure_ascii=False) + "\n"


def plain(value: Any) -> Any:
    """Numbers as JSON has them, to ten digits: the last ones differ between processors."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int):
        return value
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        return None
    return float(f"{number:.10g}")


def csv_bytes(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False, lineterminator="\n", float_format="%.10g").encode()


def is_current(paths: Mapping[str, Path], text: str) -> bool:
    """Whether all files of an item are there and its trace says the same."""
    return all(path.is_file() for path in paths.values()) and (
        paths[".json"].read_text("utf8") == text
    )


def write_bytes(path: Path, content: bytes) -> bool:
    """Write whole or not at all; False where the very same content is there already."""
    if path.is_file() and path.read_bytes() == content:
        return False
    with written_atomically(path) as file:
        file.write(content)
    return True


@functools.cache
def code_digest() -> str:
    """sha256 of the code that makes items, so that what it changes is made again."""
    digest = hashlib.sha256()
    for folder in (Path(__file__).parent, Path(__file__).parent.parent / "analysis"):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".mplstyle"):
                digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
