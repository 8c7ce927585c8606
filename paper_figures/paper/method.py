"""Figure 2: what one step of each phase reads and predicts.

The drawing is ours. It takes the number of tokens per position from `PhasePlan`, which training
uses too.
"""

from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from tst_study.analysis.tables.columns import rows_of
from tst_study.config.phase_plan import PhasePlan
from tst_study.paper_figures.catalogue import figure
from tst_study.paper_figures.drawing import Picture
from tst_study.paper_figures.item import Finding
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import FAINT, INK, MUTED, PAGE, Look, new_figure
from tst_study.superposition.steps import Phase

PLAN = PhasePlan(steps=10, superposed_steps=3, bag_size=3, sequences=1, sequence_length=4)
"""The run that is drawn: bags of three tokens, four positions."""
PHASES: dict[Phase, tuple[str, str, str]] = {
    "superposition": (
        "superposition: the first share r of the steps",
        "mean of\nembeddings",
        "predicts the\nnext bag",
    ),
    "recovery": ("recovery: the rest", "embedding", "predicts the\nnext token"),
}
"""Title of each phase, what enters the model, and what leaves it."""
WIDTH, HEIGHT, NAMES = 12.0, 0.62, 3.2
"""Width of a phase, height of a box, and width of the names to the left of a phase, in the units of
the axes."""
ARROW: Look = {"arrowstyle": "-|>", "color": MUTED, "lw": 0.8, "shrinkA": 0, "shrinkB": 0}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
"""The colour of the tokens of each position; the last one is for the targets of the last position.
In this figure a colour does not stand for an arm."""


@figure(
    "figure2",
    title="Figure 2. A bag predicts the next bag, then a token the next token, at the same cost",
)
def method(_sources: Sources) -> Picture:
    """Draw one step of each phase, side by side."""
    data = shapes(PLAN)
    return Picture(
        caption=f"With bags of s = {PLAN.bag_size} tokens and L = {PLAN.sequence_length} latent "
        "positions. Before the switch a position reads the mean embedding of a bag and predicts "
        "all tokens of the next one, by one multi-hot cross-entropy; after it, it reads one token "
        "and predicts the next. The model runs L positions either way, so a step costs the same "
        "FLOPs. Numbers: places in the text; what lies beyond its end is not a target.",
        data=data,
        draw=partial(_figure, data),
        finding=Finding("a drawing of the method; drawn here from the shapes that training uses"),
    )


def shapes(plan: PhasePlan) -> pd.DataFrame:
    """Return which tokens each latent position reads and predicts, a row for each phase and
    position.

    The columns `reads` and `predicts` hold the tokens' places in the text, separated by spaces.
    """
    rows = []
    for phase in PHASES:
        stride, end = plan.tokens_per_position(phase), plan.tokens_per_sequence(phase)
        for position in range(plan.sequence_length):
            start = position * stride
            ahead = range(start + stride, min(start + 2 * stride, end + 1))
            row = {"phase": phase, "position": position, "predicts": _places(ahead)}
            rows.append({**row, "reads": _places(range(start, start + stride))})
    return pd.DataFrame(rows)


def _places(tokens: range) -> str:
    return " ".join(map(str, tokens))


def _figure(data: pd.DataFrame) -> Figure:
    drawn, ((axes,),) = new_figure(PAGE, 2.5, 1)
    axes.set(xlim=(-NAMES, 2 * WIDTH + NAMES), ylim=(-0.9, 5.4))
    axes.set_axis_off()
    for place, (phase, words) in enumerate(PHASES.items()):
        _draw(axes, data[data["phase"] == phase], place * (WIDTH + NAMES), *words)
    at_switch = "at the switch: the same weights, optimizer state and learning-rate schedule"
    axes.text(WIDTH, -0.6, at_switch, fontsize=7, color=MUTED, ha="center", va="center")
    return drawn


def _draw(
    axes: Axes, data: pd.DataFrame, left: float, title: str, enters: str, leaves: str
) -> None:
    slot = WIDTH / len(data)
    axes.text(left, 5.2, title)
    for place, name in enumerate(("raw tokens", enters, "model", leaves)):
        y = 1.4 * place + HEIGHT / 2
        axes.text(left - 0.3, y, name, fontsize=7, color=MUTED, ha="right", va="center")
    for row in rows_of(data):
        centre, colour = left + slot * (row["position"] + 0.5), COLOURS[row["position"]]
        ahead = COLOURS[row["position"] + 1]
        _tokens(axes, centre, slot, 0.0, row["reads"], colour)
        _box(axes, centre, 1.4, 0.8 * slot, "", colour)
        _tokens(axes, centre, slot, 4.2, row["predicts"], ahead)
        for y in (0.0, 1.4, 2.8):
            start = (centre, y + HEIGHT + 0.04)
            axes.annotate("", (centre, y + 1.37), xytext=start, arrowprops=ARROW)
    words = f"L = {len(data)} positions, the same FLOPs"
    _box(axes, left + WIDTH / 2, 2.8, 0.97 * WIDTH, words, FAINT)


def _tokens(axes: Axes, centre: float, slot: float, y: float, places: str, colour: str) -> None:
    tokens = places.split()
    width = 0.86 * slot / PLAN.bag_size
    for i, token in enumerate(tokens):
        x = centre + width * (i - (len(tokens) - 1) / 2)
        _box(axes, x, y, 0.86 * width, token, colour)


def _box(axes: Axes, x: float, y: float, width: float, words: str, colour: str) -> None:
    look: Look = {"boxstyle": "round,pad=0,rounding_size=0.12", "lw": 0.8, "ec": colour}
    axes.add_patch(FancyBboxPatch((x - width / 2, y), width, HEIGHT, fc=(colour, 0.3), **look))
    axes.text(x, y + HEIGHT / 2, words, ha="center", va="center_baseline", fontsize=7, color=INK)
