"""The look of every figure: one arm has one colour, marker and dash pattern everywhere.

Some of the colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart. In
the report every colour becomes a CSS variable, to which `report.css` gives one value for light
pages and one for dark pages.
"""

import logging
import math
import re
import sys
import warnings
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.style
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, findSystemFonts, fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text
from rich.console import Console
from rich.text import Text as Words

from tst_study.analysis.tables.columns import rows_of
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.text import listed, printable

COLUMN = 3.4
"""Width of one column of a two-column page, and of a phone, in inches."""
PAGE = 7.0
"""Full width of a page, in inches."""

INK, MUTED, FAINT = "#1c1c20", "#66666e", "#d4d4da"
PAPER = "#ffffff"
"""The background. The three colours above it are those of text and lines, from dark to light."""

LETTER = 0.55
"""Mean width of a letter, as a share of the font size."""

Look = dict[str, Any]
"""Keyword arguments for a drawing function of matplotlib."""

_FILE = Path(__file__).with_name("tst_study.mplstyle")


@dataclass(frozen=True)
class Mark:
    """Colour, marker and dash pattern of one arm."""

    colour: str
    marker: str
    line: tuple[float, tuple[float, ...]] | str
    """The dash pattern, as matplotlib's argument `linestyle` takes it."""
    arm: str
    """Name of the arm. Drawn lines carry it, so that a test can find an arm in any picture."""


BASELINE = Mark(INK, "o", "-", "baseline")
OTHER_BASELINE = Mark("#8a8a94", "o", (0, (6, 1.5)), "another baseline")
"""A baseline that a study asks about as an arm, such as one with a better batch."""

_BY_BAG_SIZE = {2: "#f0a64a", 3: "#e8861f", 4: "#d55e00", 6: "#b03a1a", 8: "#8c2a3a"}
_BY_BAG_SIZE |= {12: "#651a45", 16: "#3d0f3f"}
"""Colours of the paper's method by s: one family of warm colours, darker for larger s, which also
shows when they are printed in grey."""
_BY_ABLATION = {
    "output only, power-law weights": "#6a55b5",
    "output only, weighting": "#8a8a00",
    "output only": "#009e73",
    "input only": "#56b4e9",
    "power-law weights": "#0072b2",
    "exponential weights": "#6a55b5",
    "first token only": "#009e73",
    "mutual-information weights": "#56b4e9",
    "label smoothing": "#cc79a7",
    "shuffled targets": "#8a6d4b",
    "re-initialised": "#8a6d4b",
    "optimizer reset": "#8a8a00",
}
"""Colours of ablations, by the beginning of what follows `s = …, r = …, ` in the label."""
_OTHERS = tuple(dict.fromkeys(_BY_ABLATION.values()))
_MARKERS = "s^Dv<>hdpP"
_DASHES = ((4, 1, 1, 1), (7, 1.5), (2, 1), (5, 1.2), (3, 1, 1, 1, 1, 1))

_BY_RATIO = {0.1: "#472a7a", 0.2: "#3b528b", 0.3: "#2c728e", 0.4: "#1e9b8a", 0.5: "#3fbc73"}
_BY_RATIO |= {0.7: "#9bc53d"}
"""Colours of curves over s, by r: lighter for larger r, which also shows in grey."""

PALETTE: tuple[str, ...] = (INK, MUTED, FAINT, PAPER, OTHER_BASELINE.colour)
PALETTE += tuple(sorted({*_BY_BAG_SIZE.values(), *_BY_ABLATION.values(), *_BY_RATIO.values()}))
"""Every colour that a figure may use. For each, `report.css` has one value for light pages and one
for dark pages."""


def arm_mark(setting: SuperpositionSetting) -> Mark:
    """Return the mark of an arm: the same in every picture of every study and of the paper.

    The colour of the paper's method depends on s, that of an ablation on what it changes; marker
    and dash pattern vary with s and r. There are more arms than marks, so two arms may share one.
    """
    if setting.is_baseline:
        return BASELINE
    place = setting.bag_size + 3 * round(10 * setting.step_ratio)
    if setting.is_plain:
        near = min(_BY_BAG_SIZE, key=lambda size: abs(math.log(size / setting.bag_size)))
        colour = _BY_BAG_SIZE[near]
    else:
        known = [hue for start, hue in _BY_ABLATION.items() if setting.variant.startswith(start)]
        colour = known[0] if known else _OTHERS[zlib.crc32(setting.variant.encode()) % len(_OTHERS)]
        place += list(_BY_ABLATION.values()).index(colour)
    marker, dash = _MARKERS[place % len(_MARKERS)], _DASHES[place % len(_DASHES)]
    return Mark(colour, marker, (0, dash), setting.label)


def mark_of(bag_size: int, step_ratio: float, **ablation: Any) -> Mark:
    """Return the mark of the paper's method at this s and r. `ablation`: columns of the run table
    in which the setting differs from that method, with their values."""
    row = {"bag_size": bag_size, "superposed_steps": 1, "step_ratio": step_ratio, **ablation}
    return arm_mark(SuperpositionSetting.of_row(row))


def marks_of(rows: pd.DataFrame, by: str) -> dict[str, Mark]:
    """Return the mark of each value of the column `by`: that of the setting in the first row with
    this value. `rows` have the columns of the run table that tell the setting."""
    named = rows.drop_duplicates(by)
    return {str(row[by]): arm_mark(SuperpositionSetting.of_row(row)) for row in rows_of(named)}


def ratio_colour(step_ratio: float) -> str:
    """Return the colour of a curve over s at one r: that of the nearest r in `_BY_RATIO`."""
    return _BY_RATIO[min(_BY_RATIO, key=lambda known: abs(known - step_ratio))]


def give_fonts(figure: Figure) -> None:
    """Let the texts of a figure take letters that DejaVu Sans lacks, such as Chinese ones, from
    other fonts of this machine."""
    texts, families = figure.findobj(Text), ["DejaVu Sans"]
    letters = {ord(letter) for text in texts for letter in text.get_text() if letter.isprintable()}
    lacking = letters - _letters_of(findfont(families[0]))
    if not lacking:
        return
    # matplotlib's own list of fonts is from its first start, and lacks those installed since.
    for path in {*findSystemFonts()} - {font.fname for font in fontManager.ttflist}:
        with suppress(OSError, RuntimeError):  # a damaged font, or one of coloured pictures
            fontManager.addfont(path)
    upright = {font.name: font.fname for font in fontManager.ttflist if font.style == "normal"}
    upright.pop("Last Resort High-Efficiency", None)  # claims to have every letter, and draws boxes
    found = {name: lacking & _letters_of(path) for name, path in upright.items()}
    for name in sorted(found, key=lambda name: (-len(found[name]), "Sans" not in name, name)):
        if found[name] & lacking:
            lacking -= found[name]
            families.append(name)
    for text in texts:
        text.set_fontfamily(families)


@cache
def _letters_of(path: str) -> frozenset[int]:
    """Return the letters of a font; none if its file is gone or damaged."""
    with suppress(OSError, RuntimeError):
        return frozenset(FT2Font(path).get_charmap())
    return frozenset()


@contextmanager
def boxes_named() -> Iterator[None]:
    """Name in one line the characters that no font has, so that boxes are drawn for them, where
    matplotlib prints a warning for each. Its warnings of fonts without bold letters are left
    out."""
    lacking: dict[str, None] = {}
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            show = warnings.showwarning

            def shown(message: Warning | str, *rest: Any, **more: Any) -> None:
                if found := re.match(r"Glyph (\d+) ", str(message)):
                    lacking[printable(chr(int(found[1])))] = None
                else:
                    show(message, *rest, **more)

            warnings.filterwarnings("always", "Glyph ")
            warnings.showwarning = shown
            yield
    finally:
        logger.setLevel(level)
    if lacking:
        words = "install a font that has them, such as Noto Sans CJK for Chinese and Japanese"
        print(f"boxes are drawn for {listed(list(lacking), 8)}: {words}", file=sys.stderr)


_COLOURS: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), MUTED),
}


def styled(**more: str) -> AbstractContextManager[None]:
    """Apply this package's style and the settings `more` to what is drawn and saved inside, and
    ignore the user's own matplotlibrc."""
    return matplotlib.style.context([_FILE, {**_COLOURS, **more}], after_reset=True)


def new_figure(width: float, height: float, columns: int, rows: int = 1) -> tuple[Figure, Any]:
    """Return a figure of `width` by `height` inches, and the array of its panels: `rows` by
    `columns`.

    pyplot's global state is neither used nor changed.
    """
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(rows, columns, squeeze=False)


def wrapped(words: str, points: float, size: float = 7.0) -> str:
    """Break text into lines about `points` points wide, at the font size `size`."""
    most = max(8, int(points / (LETTER * size)))
    # Unlike textwrap, rich counts a Chinese letter as two.
    return "\n".join(line.plain.rstrip() for line in Words(words).wrap(Console(), most))
