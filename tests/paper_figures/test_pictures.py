"""Every picture can be read, and an arm looks the same in all of them."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tst_study.paper_figures.catalogue import catalogue
from tst_study.paper_figures.drawing import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import PAGE, styled

RECORDS = Path(__file__).parents[2] / "docs/records"
CAMPAIGNS = ("campaign", "what-does-the-work")


@pytest.mark.parametrize("which", ["published", "study", *CAMPAIGNS])
def test_no_word_is_cut_or_covered_and_an_arm_looks_the_same_everywhere(which, study, monkeypatch):
    """The renderer's boxes say so, in all pictures of a study and of the published numbers."""
    given = RECORDS / which if which in CAMPAIGNS else None
    if which == "study":
        given = study
    sources = Sources(given)
    entries = [entry for entry in catalogue().values() if entry.needs or entry.lacks or not given]
    items = [entry.item(sources) for entry in entries]
    drawn = [item for item in items if isinstance(item, Picture)]
    drawn = [item for item in drawn if item.folders or not given]
    assert len(drawn) >= 6
    found: dict[str, list[str]] = {}
    colours: dict[str, set[str]] = {}
    for item in drawn:
        figure = item.figure()
        looks = _looks(figure)
        found[item.name] = [*_problems(figure, monkeypatch), *_alike(looks)]
        found[item.name] += [brace for brace in "{}" if brace in item.title + item.caption]
        for arm, _, colour, _ in looks:
            colours.setdefault(arm, set()).add(colour)
    assert {name: problems for name, problems in found.items() if problems} == {}
    assert {arm: every for arm, every in colours.items() if len(every) > 1} == {}
    assert len(colours) >= 3


def _looks(figure: Figure) -> set[tuple[str, str, str, str]]:
    """Arm, curve or mark, colour, and dashes or marker of all that is drawn for an arm."""
    found = set()
    for line in figure.findobj(Line2D):
        arm = str(line.get_label())
        if arm.startswith("_arm "):
            pattern = str(line._unscaled_dash_pattern)  # type: ignore[attr-defined]
            point = len(line.get_xdata()) == 1  # type: ignore[arg-type]
            kind = ("mark", str(line.get_marker())) if point else ("curve", pattern)
            found.add((arm.removeprefix("_arm "), kind[0], to_hex(line.get_color()), kind[1]))
    return found


def _alike(looks: set[tuple[str, str, str, str]]) -> Iterator[str]:
    for (one, *a), (other, *b) in itertools.combinations(sorted(looks), 2):
        if one != other and a == b:
            yield f"{one} and {other} are both {a}"


def _problems(figure: Figure, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    texts = _drawn_texts(figure, monkeypatch)
    assert texts
    if figure.get_figwidth() > PAGE:
        yield f"{figure.get_figwidth()} inches wide"
    for words, size, box in texts:
        if size < 7:
            yield f"{words!r} is set in {size} points"
        if not (box.x0 > -1 and box.y0 > -1 and box.x1 < figure.bbox.x1 + 1):
            yield f"{words!r} is cut at the edge"
        if box.y1 > figure.bbox.y1 + 1:
            yield f"{words!r} is cut at the top"
    x0, y0, x1, y1 = np.array([box.extents for *_, box in texts]).T
    width = np.minimum.outer(x1, x1) - np.maximum.outer(x0, x0)
    height = np.minimum.outer(y1, y1) - np.maximum.outer(y0, y0)
    for one, other in np.argwhere(np.triu((width > 2) & (height > 2), 1)):
        yield f"{texts[one][0]!r} lies on {texts[other][0]!r}"
    for axes in figure.axes:
        yield from _leaving(axes)
    panels = [a for a in figure.axes if a.get_subplotspec() and a.axison]
    for axes in panels:
        yield from _over_its_key(axes)


def _leaving(axes: Axes) -> Iterator[str]:
    """Words that begin in a panel and end outside; those of a row's end begin beside it."""
    for text in axes.texts:
        box = text.get_window_extent()
        inside = axes.bbox.x0 <= box.x0 < axes.bbox.x1 - 1
        if inside and text.get_text().strip() and box.x1 > axes.bbox.x1 + 2:
            yield f"{text.get_text()!r} leaves its panel"


def _over_its_key(axes: Axes) -> Iterator[str]:
    legend = axes.get_legend()
    if legend is None:
        return
    box = legend.get_window_extent()
    for line in axes.lines:
        path = line.get_path().transformed(line.get_transform()).clip_to_bbox(axes.bbox)
        if len(path.vertices) and path.intersects_bbox(box, filled=False):
            yield f"a line lies on the key {[text.get_text() for text in legend.get_texts()]}"


def _drawn_texts(figure: Figure, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, Bbox]]:
    """Words, size and place of every text that is drawn: ticks beyond the limits are not."""
    found: list[tuple[str, float, Bbox]] = []
    draw = Text.draw

    def noted(text: Text, renderer: object) -> None:
        if text.get_visible() and text.get_text().strip():
            box = Text.get_window_extent(text, renderer)  # type: ignore[arg-type]
            found.append((text.get_text(), text.get_fontsize(), box))
        draw(text, renderer)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Text, "draw", noted)
        with styled():
            FigureCanvasAgg(figure).draw()
    return found
