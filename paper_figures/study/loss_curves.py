"""Loss against steps, the switch marked, held-out loss at the end.

The loss of the superposition phase is that of bags: another quantity, drawn thin and pale and
named so. Everything else is next-token loss.
"""

from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tst_study.analysis.wording import group_details
from tst_study.paper_figures import curves
from tst_study.paper_figures.catalogue import PAIR, figure
from tst_study.paper_figures.drawing import key_above
from tst_study.paper_figures.groups import Group
from tst_study.paper_figures.item import Item
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import BASELINE, COLUMN, MUTED, Mark, new_figure, setting_marks

NEAR_END, INSET = 0.75, 2
"""Share of the steps after which an inset shows the curves again, if they are not more than so
many."""
INSET_FROM, INSET_ABOVE = 0.4, 0.34
"""Shares of the axes where its ticks begin: no inset where curves lie there."""


@figure("loss_curves", title="Loss against steps", lacks=PAIR)
def loss_curves(sources: Sources) -> list[Item]:
    """Per corpus and model, at its main length."""
    chosen = (group.representative() for group in sources.main_groups)
    return [_picture(group) for group in chosen if len(group.rows)]


def _picture(group: Group) -> Picture:
    data, looks = curves_of(group)
    return Picture(
        name=f"loss_curves-{group.slug}",
        title=f"Loss, {group.label}",
        caption=f"{group_details(group.members)}; {_in_common(group)}. Mean over {group.seeds}, "
        f"{curves.OWN_SMOOTHING}; shading: range over seeds. Every step costs the same FLOPs. The "
        "pale part before the switch is the loss of bags, a different quantity that is not to be "
        f"compared with next-token loss; {curves.ENDS}.",
        data=data,
        folders=group.folders,
        draw=partial(_whole, data, looks),
    )


def curves_of(group: Group) -> tuple[pd.DataFrame, dict[str, Mark]]:
    """Curves of a group's settings, and the looks of their labels."""
    names = _names(group)
    looks = setting_marks(group.rows.assign(name=names), "name")
    return curves.group_curves(group, names), {"baseline": BASELINE, **looks}


def _names(group: Group) -> list[str]:
    """Several settings share their r or their s, which the caption names."""
    if len(group.rows) == 1:
        return list(group.rows["setting"])
    if group.rows["step_ratio"].nunique() == 1:
        return [f"s = {size}" for size in group.rows["bag_size"]]
    return [f"r = {ratio:.3g}" for ratio in group.rows["step_ratio"]]


def _in_common(group: Group) -> str:
    first = group.rows.iloc[0]
    if group.rows["step_ratio"].nunique() == 1:
        return f"r = {first['step_ratio']:.3g}"
    return f"s = {first['bag_size']}"


def has_inset(data: pd.DataFrame, looks: dict[str, Mark]) -> bool:
    """Whether `draw_whole` shows the end once more: few curves, none where it would lie."""
    low, high = _shown_losses(data)
    reaches = data[data["step"] > INSET_FROM * curves.end_of(data)]["loss"].max()
    return len(looks) <= INSET and bool(reaches < low + INSET_ABOVE * (high - low))


def _shown_losses(data: pd.DataFrame) -> tuple[float, float]:
    """Lowest and highest loss, the steepest part left out."""
    late = data[data["step"] > 0.04 * curves.end_of(data)]
    return float(data["loss"].min()), float(late["loss"].max())


def draw_whole(
    axes: Axes, data: pd.DataFrame, looks: dict[str, Mark], title: str = "", columns: int = 1
) -> None:
    """All of the run, bag losses pale; the axis starts where the steepest part is over."""
    steps = curves.end_of(data)
    low, high = _shown_losses(data)
    pad = 0.06 * (high - low)
    curves.draw(axes, data, looks, (0, steps), (low - pad, high + pad))
    pale = "\npale: loss of bags, another quantity"
    bags = bool((data["quantity"] == "bag_loss").any())
    axes.set_ylabel(f"loss (nats per token){pale if bags else ''}")
    if has_inset(data, looks):
        inset = axes.inset_axes((0.5, 0.42, 0.47, 0.52))
        end = data[data["quantity"] != "bag_loss"]
        window = (NEAR_END * steps, steps)
        curves.draw(inset, end, looks, window, curves.limits(end, window, 0.0))
        inset.set_xlabel("")
        inset.locator_params(nbins=2)
        inset.tick_params(colors=MUTED)
    key_above(axes, title, curves.legend_looks(data, looks), columns)


def _whole(data: pd.DataFrame, looks: dict[str, Mark]) -> Figure:
    drawn, ((axes,),) = new_figure(COLUMN, 2.4 + 0.14 * len(looks), 1)
    draw_whole(axes, data, looks)
    return drawn
