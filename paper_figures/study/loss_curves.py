"""Training loss against steps, the switch marked, and held-out loss from the switch on.

The loss of the superposition phase is that of bags: another quantity, drawn thin and pale and
named so. Everything else is next-token loss.
"""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.verdict.intervals import mean_interval
from analysis.wording import group_details
from paper_figures import curves
from paper_figures.catalogue import PAIR, figure
from paper_figures.drawing import key_above, means, step_axis
from paper_figures.groups import Group
from paper_figures.item import Item
from paper_figures.picture import Picture
from paper_figures.sources import Sources
from paper_figures.style import BASELINE, COLUMN, MUTED, Mark, new_figure, setting_marks

NEAR_END, INSET = 0.75, 2
"""Share of the steps after which an inset shows the curves again, if they are not more than so
many: the picture of held-out loss has the others apart."""
INSET_FROM, INSET_ABOVE = 0.4, 0.34
"""Shares of the axes where its ticks begin: no inset where curves lie there."""


@figure("loss_curves", title="Training loss against steps", lacks=PAIR)
def loss_curves(sources: Sources) -> list[Item]:
    """Per corpus and model, at its main length: the whole run, and held-out loss at its end."""
    chosen = (group.representative() for group in sources.main_groups)
    return [picture for group in chosen if len(group.rows) for picture in _pictures(group)]


def _pictures(group: Group) -> list[Picture]:
    data, looks = curves_of(group)
    held_out = held_out_data(group)
    start = f"{group_details(group.members)}; {_in_common(group)}"
    return [
        Picture(
            name=f"loss_curves-{group.slug}",
            title=f"Training loss, {group.label}",
            caption=f"{start}. Mean over {group.seeds}, {curves.OWN_SMOOTHING}; shading: range "
            "over seeds. Every step costs the same FLOPs. The pale part before the switch is the "
            "loss of bags, a different quantity that is not to be compared with next-token loss; "
            f"{curves.ENDS}.",
            data=data,
            folders=group.folders,
            draw=partial(_whole, data, looks),
        ),
        Picture(
            name=f"loss_curves_end-{group.slug}",
            title=f"Held-out loss after the switch, {group.label}",
            caption=f"{start}. Means over {group.seeds}, each setting at the baseline's level less "
            "its paired gain; bars: 95% interval of that gain, hollow where it includes zero. Only "
            "at the last step the learning rate is annealed, and only there arms are compared.",
            data=held_out,
            folders=group.folders,
            draw=partial(_end, held_out, looks),
        ),
    ]


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


def held_out_data(group: Group) -> pd.DataFrame:
    """Held-out loss of the recovery phase by setting and step, at the baseline's mean less the
    paired gain; during superposition a model does not predict next tokens."""
    table, rows = group.summary.tables.held_out, []
    table = table[(table["phase"] == "recovery") & table["eval_set"].isin(group.rows["eval_set"])]
    table = table[table["folder"].isin(group.folders)].astype({"folder": str})
    losses = table.pivot(index="step", columns="folder", values="nats_per_token")
    base = group.baselines["baseline_folder"]
    level = losses[base].mean(axis=1)
    settings = zip(_names(group), group.rows["setting"], group.rows["comparisons"], strict=True)
    for name, setting, comparisons in settings:
        pairs = group.pairs[group.pairs["setting"] == setting]
        arms = (losses[pairs[f"{arm}_folder"]].to_numpy() for arm in ("baseline", "superposed"))
        for step, by_seed in zip(losses.index, np.subtract(*arms), strict=True):
            found = by_seed[~np.isnan(by_seed)]
            if len(found):
                known = mean_interval(found, int(comparisons))
                mean, low, high = known or (found[0], np.nan, np.nan)
                bounds = {"low": level[step] - high, "high": level[step] - low}
                claim = "better" if low > 0 else "worse" if high < 0 else ""
                row = {"step": step, "loss": level[step] - mean, **bounds, "seeds": len(found)}
                rows.append({"label": name, **row, "verdict": claim})
    steps = sorted({row["step"] for row in rows})
    own = [{"label": "baseline", "step": s, "loss": level[s], "seeds": len(base)} for s in steps]
    columns = ["label", "step", "loss", "low", "high", "seeds", "verdict"]
    return pd.DataFrame([*own, *rows], columns=columns)


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
    drawn, ((axes,),) = new_figure(COLUMN, 2.4 + 0.14 * len(looks))
    draw_whole(axes, data, looks)
    return drawn


def _end(data: pd.DataFrame, looks: dict[str, Mark]) -> Figure:
    drawn, ((axes,),) = new_figure(COLUMN, 2.6)
    labels = list(looks)
    spread = 0.012 * (data["step"].max() - data["step"].min() or data["step"].max())
    shift = {name: spread * (i - len(labels) / 2) for i, name in enumerate(labels)}
    data = data.assign(step=data["step"] + data["label"].map(shift))
    means(axes, data, looks, curves.said, linewidth=0.7, alpha=0.6)
    step_axis(axes)
    axes.set_ylabel("held-out loss (nats per token)")
    key_above(axes, "", looks, 3, markers=True)
    return drawn
