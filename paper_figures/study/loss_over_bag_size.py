"""Final held-out loss over bag size, beside the baseline's level (paper, Figure 4)."""

import pandas as pd
from matplotlib.figure import Figure

from analysis.wording import group_details
from paper_figures.curves import said
from paper_figures.drawing import DOTTED, level_line, log_axis, means
from paper_figures.groups import Group
from paper_figures.item import Item
from paper_figures.picture import Picture
from paper_figures.registration import figure, submit
from paper_figures.sources import Sources
from paper_figures.style import COLUMN, INK, MUTED, cycle_mark, new_figure

READING = (
    "Each point is the baseline's mean less the mean gain over paired seeds, its bar the 95% "
    "interval of that gain; hollow: a bar that reaches the baseline's line shows no difference, "
    "and without a bar it is one seed and no claim. Shading: range of the baseline over seeds, "
    "which pairing takes out."
)


@figure(
    "loss_over_bag_size",
    title="Held-out loss over bag size",
    lacks="two or more bag sizes beside their baseline: generated language has them at "
    f"{submit('laptop', 'quick')}, prose at {submit('laptop', 'desktop')}",
)
def loss_over_bag_size(sources: Sources) -> list[Item]:
    """One per comparison group that has two or more bag sizes of the plain method."""
    plain = (group.plain() for group in sources.groups)
    return [_picture(group) for group in plain if group.rows["bag_size"].nunique() >= 2]


def _picture(group: Group) -> Picture:
    data = group.beside_baseline()
    optimum = group.members["optimal_nats_per_token"].dropna().astype(float)
    best = float(optimum.iloc[0]) if len(optimum) else None
    known = (
        f" The language's own entropy, which no model can beat, is {best:.3f} nats per token."
        if best
        else ""
    )
    return Picture(
        name=f"loss_over_bag_size-{group.slug}",
        title=f"Held-out loss over bag size, {group.label}",
        caption=f"{group_details(group.members)}; {group.seeds}. {READING}{known}",
        data=data,
        folders=group.folders,
        draw=lambda: _figure(data, best),
    )


def _figure(data: pd.DataFrame, optimum: float | None) -> Figure:
    drawn, ((axes,),) = new_figure(COLUMN, 2.4)
    first, ratios = data.iloc[0], sorted(data["step_ratio"].unique())
    axes.axhspan(first["baseline_low"], first["baseline_high"], color=INK, alpha=0.08, lw=0)
    level_line(axes, first["baseline"], "baseline")
    for index, ratio in enumerate(ratios):
        rows, mark = data[data["step_ratio"] == ratio], cycle_mark(index)
        shift = 2 ** (0.06 * (index - (len(ratios) - 1) / 2))  # so that bars do not overlap
        name = f"r = {ratio:.3g}"
        rows = rows.assign(x=rows["bag_size"] * shift, label=name)
        means(axes, rows, {name: mark}, lambda row: said({**row, "label": row["setting"]}), x="x")
        axes.plot([], [], mark.marker, color=mark.colour, label=name)
    low, high = axes.get_ylim()
    if optimum is not None and low - optimum < 2 * (high - low):
        level_line(axes, optimum, "entropy of the language", MUTED, linestyle=DOTTED)
    sizes = sorted(data["bag_size"].unique())
    log_axis(axes, "x", sizes)
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    axes.set_xlabel("bag size s (log scale)" + (f", at {name}" if len(ratios) == 1 else ""))
    axes.set_ylabel("held-out loss (nats per token)")
    if len(ratios) > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4)
    return drawn
