"""A picture: an item that is drawn, as PDF, SVG and PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from paper_figures.item import Item, csv_bytes, is_current, trace_text, write_bytes
from paper_figures.style import styled

SUFFIXES = (".pdf", ".svg", ".png", ".csv", ".json")
_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


@dataclass(frozen=True)
class Picture(Item):
    draw: Callable[[], Figure]

    def figure(self) -> Figure:
        """Drawn and laid out."""
        with styled():
            figure = self.draw()
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # found once, kept for every format
        return figure

    def save(self, runs: pd.DataFrame, to: Path) -> list[Path]:
        """Write PDF, SVG, PNG, CSV and trace; returns what was written, nothing if all is there.

        The trace is written last, so a picture interrupted halfway is drawn again.
        """
        text = trace_text(self, runs)
        paths = {suffix: to / f"{self.name}{suffix}" for suffix in SUFFIXES}
        if is_current(paths, text):
            return []
        figure = self.figure()
        for kind in ("pdf", "svg", "png"):
            write_bytes(paths[f".{kind}"], rendered(figure, kind))
        write_bytes(paths[".csv"], csv_bytes(self.data))
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
