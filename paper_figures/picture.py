"""A picture: an item that is drawn, as PDF, SVG and PNG."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from paper_figures.item import Item
from paper_figures.style import styled

_METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
_SAID = "said: "


@dataclass(frozen=True, kw_only=True)
class Picture(Item):
    suffixes: ClassVar[tuple[str, ...]] = (".pdf", ".svg", ".png", ".csv", ".json")

    draw: Callable[[], Figure]

    def figure(self) -> Figure:
        with styled():
            figure = self.draw()
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # found once, kept for every format
        return figure

    def contents(self) -> dict[str, bytes]:
        figure = self.figure()
        return {f".{kind}": rendered(figure, kind) for kind in _METADATA}


def say(artist: Artist, words: str) -> None:
    """Words that an SVG shows while the pointer is on the artist."""
    artist.set_gid(_SAID + words)


def rendered(figure: Figure, kind: str) -> bytes:
    """The figure as a file's bytes, free of dates and program names."""
    file = io.BytesIO()
    with styled():
        figure.savefig(file, format=kind, metadata=_METADATA[kind])
    if kind != "svg":
        return file.getvalue()
    # matplotlib ends lines of path data with a space; nothing else may be touched.
    text = re.sub(r"[ \t]+\n", "\n", file.getvalue().decode())
    return re.sub(rf'<g id="{_SAID}([^"]*)">', r'<g class="said"><title>\1</title>', text).encode()
