"""A picture: what it shows, what it was drawn from, and its files on disk.

The data comes first and is cheap; the drawing is made only when data, caption or code changed.
All files of a picture are the same bytes for the same inputs.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from analysis.run_row import rows_of
from paper_figures.style import styled

SUFFIXES = (".pdf", ".svg", ".png", ".csv", ".json")
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


@dataclass(frozen=True)
class Picture:
    kind: str
    """The module that draws it."""
    name: str
    """File name without its ending."""
    title: str
    caption: str
    """What is drawn, from how many runs and seeds, and how it was smoothed."""
    data: pd.DataFrame
    """Exactly what is drawn; saved beside the picture."""
    folders: tuple[str, ...]
    """Run folders it was drawn from."""
    draw: Callable[[], Figure]

    def figure(self) -> Figure:
        """Drawn and laid out."""
        with styled():
            figure = self.draw()
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # found once, kept for every format
        return figure


@dataclass(frozen=True)
class Missing:
    """A picture that cannot be drawn from the runs there are."""

    kind: str
    title: str
    sentence: str
    """Which runs it needs, and the command that makes them."""


def trace(picture: Picture, runs: pd.DataFrame) -> dict[str, Any]:
    """What a picture was drawn from, for the file beside it."""
    drawn = runs[runs["folder"].isin(picture.folders)].sort_values(["run_id", "folder"])
    return {
        "picture": picture.name,
        "title": picture.title,
        "caption": picture.caption,
        "runs": [
            {key: row[key] for key in ("run_id", "study", "seed", "fingerprint", "code")}
            for row in rows_of(drawn)
        ],
        "data": f"{picture.name}.csv",
        "data_sha256": hashlib.sha256(_csv(picture.data)).hexdigest(),
        "drawn_by": {"code_sha256": code_digest(), "matplotlib": mpl.__version__},
    }


def save(picture: Picture, runs: pd.DataFrame, to: Path) -> list[Path]:
    """Write PDF, SVG, PNG, CSV and trace; returns what was written, nothing if all is there.

    The trace is written last, so a picture interrupted halfway is drawn again.
    """
    text = json.dumps(trace(picture, runs), indent=1, ensure_ascii=False) + "\n"
    paths = {suffix: to / f"{picture.name}{suffix}" for suffix in SUFFIXES}
    if all(path.is_file() for path in paths.values()) and paths[".json"].read_text("utf8") == text:
        return []
    figure = picture.figure()
    for kind in ("pdf", "svg", "png"):
        write_bytes(paths[f".{kind}"], rendered(figure, kind))
    write_bytes(paths[".csv"], _csv(picture.data))
    write_bytes(paths[".json"], text.encode())
    return list(paths.values())


def rendered(figure: Figure, kind: str) -> bytes:
    """The figure as a file's bytes, free of dates and program names."""
    file = io.BytesIO()
    with styled():
        figure.savefig(file, format=kind, metadata=_METADATA[kind])
    if kind != "svg":
        return file.getvalue()
    # matplotlib ends lines of path data with a space; nothing else may be touched.
    return re.sub(rb"[ \t]+\n", b"\n", file.getvalue())


def write_bytes(path: Path, content: bytes) -> bool:
    """Write whole or not at all; False where the very same content is there already."""
    if path.is_file() and path.read_bytes() == content:
        return False
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    os.replace(beside, path)
    return True


@functools.cache
def code_digest() -> str:
    """sha256 of the code that draws, so that a changed figure is drawn again."""
    digest = hashlib.sha256()
    for folder in (Path(__file__).parent, Path(__file__).parent.parent / "analysis"):
        for path in sorted(folder.glob("*")):
            if path.suffix in (".py", ".mplstyle"):
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False, lineterminator="\n").encode()
