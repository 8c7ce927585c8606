"""A picture: an item that is drawn, as PDF, SVG and PNG."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from tst_study.paper_figures.item import Item, csv_bytes
from tst_study.paper_figures.style import Look, available_width, styled, wrapped

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

    def figure(self, titled: bool = True) -> Figure:
        """Draw it, with its message above the panels unless a page or a paper prints it there."""
        with styled():
            figure = self.draw()
            if titled:
                words = wrapped(self.title, 72 * figure.get_figwidth() / 1.2 - 8, 8)
                place: Look = {"ha": "left", "fontsize": 8, "fontweight": "bold"}
                figure.suptitle(words, x=4 / 72 / figure.get_figwidth(), **place)
                figure.set_figheight(figure.get_figheight() + 0.2 * (words.count("\n") + 1))
            for axes in figure.axes:
                if axes.get_title(loc="left") and axes.get_subplotspec() is not None:
                    title = wrapped(axes.get_title(loc="left"), available_width(axes), 7.5)
                    axes.set_title(title)
            # Executed here, once for all formats: as the figure's own engine it would run at each
            # draw, and every file would be drawn twice.
            layout = ConstrainedLayoutEngine()
            layout.execute(figure)
            if (more := _height_above(figure)) > 0:
                figure.set_figheight(figure.get_figheight() + more)
                layout.execute(figure)
        return figure

    def contents(self) -> dict[str, bytes]:
        figure = self.figure()
        return {f".{kind}": rendered(figure, kind) for kind in _METADATA}

    def for_page(self) -> dict[str, bytes]:
        return {".csv": csv_bytes(self.data)}

    def for_print(self) -> dict[str, bytes]:
        return {".pdf": rendered(self.figure(titled=False), "pdf")}

    def drawing(self) -> str:
        """Return the SVG of the picture without its title, which a page prints itself."""
        return rendered(self.figure(titled=False), "svg").decode()


def _height_above(figure: Figure) -> float:
    """Return the inches that titles and keys of more than two lines take from their panels."""
    taken: dict[float, float] = {}
    for axes in figure.axes:
        own = [text for text in (axes.title, axes._left_title) if text.get_text()]  # type: ignore[attr-defined]
        above = [*own, *filter(None, [axes.get_legend()])]
        for artist in above:
            bottom = axes.bbox.y1 - 1
            box = artist.get_window_extent()
            if box.y0 >= bottom:
                row = round(axes.bbox.y0, 1)
                taken[row] = max(taken.get(row, 0.0), (box.y1 - bottom) / figure.dpi - 0.36)
    return sum(max(0.0, inches) for inches in taken.values())


def say(artist: Artist, words: str) -> None:
    """Give an artist words that an SVG shows while the pointer is on it."""
    artist.set_gid(_SAID + words)


def rendered(figure: Figure, kind: str) -> bytes:
    """Return the figure as a file's bytes, free of dates and program names."""
    file = io.BytesIO()
    with styled():
        figure.savefig(file, format=kind, metadata=_METADATA[kind])
    if kind != "svg":
        return file.getvalue()
    # matplotlib ends lines of path data with a space; nothing else may be touched.
    text = re.sub(r"[ \t]+\n", "\n", file.getvalue().decode())
    return re.sub(rf'<g id="{_SAID}([^"]*)">', r'<g class="said"><title>\1</title>', text).encode()
