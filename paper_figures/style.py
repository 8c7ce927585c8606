"""The look of every figure: colours that survive colour-blindness, marks that survive grey.

Colours are those of Okabe and Ito (2008); each bag size has one colour, marker and dash pattern
in all figures. The names below stand in for themes: the report swaps them for its own light and
dark values.
"""

import contextlib
import functools
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.style
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

COLUMN = 3.4
"""Inches: one column of a two-column page, and a phone's width."""
PAGE = 7.0
"""Inches: the full width of a page."""

INK, MUTED, FAINT = "#1c1c20", "#66666e", "#d4d4da"
PAPER = "#ffffff"

Look = dict[str, Any]
"""Keywords of matplotlib."""

_FILE = Path(__file__).with_name("tst_study.mplstyle")


@dataclass(frozen=True)
class Mark:
    colour: str
    marker: str
    dash: tuple[float, ...]
    """Lengths of strokes and gaps; none: solid."""


BASELINE = Mark(INK, "o", ())
_BY_BAG_SIZE = {
    1: BASELINE,
    2: Mark("#56b4e9", "v", (5, 1.2)),
    3: Mark("#e69f00", "<", (3, 1, 1, 1)),
    4: Mark("#d55e00", "s", (4, 1, 1, 1)),
    6: Mark("#cc79a7", "P", (1, 0.8)),
    8: Mark("#0072b2", "D", (7, 1.5)),
    16: Mark("#009e73", "^", (2, 1)),
}
_CYCLE = tuple(_BY_BAG_SIZE[size] for size in (8, 4, 16, 6, 2, 3))

_BY_TENTH = tuple(
    Mark(f"#{colour}", marker, ())
    for colour, marker in zip(
        ["472a7a", "404588", "365d8d", "2c728e", "24868e", "1e9b8a", "29af7f", "4cc26c", "7ad151"],
        "psD^vP<>X",
        strict=True,
    )
)
"""For step ratios 0.1 … 0.9: viridis, whose lightness grows all the way, so that grey keeps it;
without its dark end and with no circle, which are the baseline's."""

PALETTE = (INK, MUTED, FAINT, PAPER, *sorted({mark.colour for mark in (*_CYCLE, *_BY_TENTH)}))
"""Every colour that a figure may use; `report.css` gives each its light and its dark value."""


def bag_size_mark(bag_size: int) -> Mark:
    """The same for a bag size everywhere; sizes beyond the paper's share the cycle."""
    return _BY_BAG_SIZE.get(bag_size, _CYCLE[bag_size % len(_CYCLE)])


def ratio_mark(step_ratio: float) -> Mark:
    """The same for a step ratio everywhere, to the nearest tenth."""
    return _BY_TENTH[min(max(round(10 * step_ratio), 1), 9) - 1]


def setting_marks(data: pd.DataFrame, by: str) -> dict[str, Mark]:
    """A mark for each value of `by`: of its bag size, or of its step ratio where only that differs.

    Columns `bag_size` and, where it is known, `step_ratio`; the first row of each value counts.
    """
    first = data.drop_duplicates(by).set_index(by)
    looks = {str(name): bag_size_mark(int(size)) for name, size in first["bag_size"].items()}
    bagged = first[first["bag_size"] > 1]
    if "step_ratio" in bagged and bagged["bag_size"].nunique() == 1 and len(bagged) > 1:
        ratios = bagged["step_ratio"].astype(float)
        looks |= {str(name): ratio_mark(ratio) for name, ratio in ratios.items()}
    return looks


def cycle_mark(index: int) -> Mark:
    """For curves that are not bag sizes; when the colours begin again, dashes and markers move."""
    other = _CYCLE[(index + index // len(_CYCLE)) % len(_CYCLE)]
    return replace(other, colour=_CYCLE[index % len(_CYCLE)].colour)


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Draw and save within this: nothing of a user's own matplotlibrc leaks in."""
    settings: dict[Any, Any] = {
        **dict.fromkeys(("text.color", "axes.labelcolor"), INK),
        **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), INK),
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), MUTED),
        **{"figure.facecolor": PAPER, "savefig.facecolor": PAPER, "axes.facecolor": "none"},
    }
    with mpl.rc_context():
        mpl.rcdefaults()
        matplotlib.style.use(_FILE)
        mpl.rcParams.update(settings)
        yield


def new_figure(width: float, height: float, *counts: int) -> tuple[Figure, list[list[Axes]]]:
    """A figure and its panels, sizes in inches: for each row how many, over the whole width; free
    of pyplot's global state."""
    figure = Figure(figsize=(width, height))
    outer = figure.add_gridspec(len(counts), 1)
    inner = [outer[row].subgridspec(1, count) for row, count in enumerate(counts)]
    rows = zip(inner, counts, strict=True)
    return figure, [[figure.add_subplot(grid[0, i]) for i in range(n)] for grid, n in rows]


def room(axes: Axes) -> float:
    """Points right of a panel's left axis in its share of the figure: words above it that are no
    longer than this take no width from any panel."""
    figure, spec = axes.get_figure(root=True), axes.get_subplotspec()
    assert figure is not None
    assert spec is not None
    names = axes.yaxis.get_tightbbox()
    left = axes.bbox.x0 - names.x0 if names is not None else 0.0
    share = figure.get_figwidth() / spec.get_gridspec().ncols
    return float(72 * (share - left / figure.dpi) - 14)


def wrapped(words: str, points: float, size: float = 7.0) -> str:
    """Words in lines of at most so many points; a name that is longer than a line is broken."""
    text = " ".join(words.split())
    for most in range(len(text), 7, -1):
        if most * size * 0.3 <= points or most <= 10:
            lines = textwrap.wrap(text, most, break_on_hyphens=False)
            if max((text_width(line, size) for line in lines), default=0.0) <= points:
                return "\n".join(lines)
    return text


@functools.lru_cache(maxsize=4096)
def text_width(words: str, size: float = 7.0) -> float:
    """Points that a line of words takes."""
    font = FontProperties(family="DejaVu Sans", size=size)  # as in the style's file
    width, _, _ = text_to_path.get_text_width_height_descent(words, font, ismath=False)
    return 1.043 * float(width)  # set on whole pixels, it is a little wider
