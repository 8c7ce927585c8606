"""What came out at the end, over bag size (paper, Figure 4) and over the number of steps: from
where on does superposition win?
"""

from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis.verdict.comparison import SAME_BUT_LENGTH
from analysis.wording import gain, group_details, span, told_apart
from paper_figures.catalogue import figure, submit
from paper_figures.curves import said
from paper_figures.drawing import DOTTED, key_above, level_line, log_axis, side_by_side
from paper_figures.groups import Group, file_part
from paper_figures.item import Item
from paper_figures.picture import Picture
from paper_figures.sources import Sources
from paper_figures.style import COLUMN, INK, MUTED, cycle_mark, new_figure, setting_marks

READING = (
    "Each point is the baseline's mean less the mean gain over paired seeds, its bar the 95% "
    "interval of that gain; hollow: a bar that reaches the baseline's line shows no difference, "
    "and without a bar it is one seed and no claim. Shading: range of the baseline over seeds, "
    "which pairing takes out."
)
LENGTHS = "Gain against the number of steps"


@figure(
    "loss_over_bag_size",
    title="Held-out loss over bag size",
    lacks="two or more bag sizes beside their baseline: generated language has them at "
    f"{submit('laptop', 'quick')}, prose at {submit('laptop', 'desktop')}",
)
def loss_over_bag_size(sources: Sources) -> list[Item]:
    """One per comparison group that has two or more bag sizes of the plain method."""
    found = sources.plain_groups
    return [_of_sizes(group) for group in found if group.rows["bag_size"].nunique() >= 2]


def _of_sizes(group: Group) -> Picture:
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
        draw=partial(_draw_sizes, data, best),
    )


def _draw_sizes(data: pd.DataFrame, optimum: float | None) -> Figure:
    drawn, ((axes,),) = new_figure(COLUMN, 2.4)
    first, names = data.iloc[0], data["step_ratio"].map("r = {:.3g}".format)
    looks = {name: cycle_mark(place) for place, name in enumerate(names.unique())}
    axes.axhspan(first["baseline_low"], first["baseline_high"], color=INK, alpha=0.08, lw=0)
    level_line(axes, first["baseline"], "baseline")
    side_by_side(axes, data.assign(label=names), looks, _loss, x="bag_size")
    low, high = axes.get_ylim()
    if optimum is not None and low - optimum < 2 * (high - low):
        level_line(axes, optimum, "entropy of the language", MUTED, linestyle=DOTTED)
    sizes = sorted(data["bag_size"].unique())
    log_axis(axes, "x", sizes)
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    axes.set_xlabel("bag size s (log scale)" + (f", at {names[0]}" if len(looks) == 1 else ""))
    axes.set_ylabel("held-out loss (nats per token)")
    if len(looks) > 1:
        key_above(axes, "", looks, 4, markers=True)
    return drawn


def _loss(row: dict[str, Any]) -> str:
    return said({**row, "label": row["setting"]})


@figure(
    "loss_over_length",
    title=LENGTHS,
    lacks="one setting and its baseline at two or more numbers of steps: "
    f"{submit('laptop', 'desktop')}",
)
def loss_over_length(sources: Sources) -> list[Item]:
    """One per corpus, model and learning rate with the same setting at two or more lengths."""
    every = sources.all_settings.plain()
    found: list[Group] = []
    for _, rows in every.rows.groupby(list(SAME_BUT_LENGTH), sort=False):
        lengths = rows.groupby("setting")["steps"].transform("nunique")
        if (lengths >= 2).any():
            found.append(every.only(rows[lengths >= 2]))
    firsts = [group.rows.iloc[0] for group in found]
    sizes = [group.model.split()[0] for group in found]
    rates = [f"{first['learning_rate']:g}" for first in firsts]
    names = told_apart(
        [file_part(first["corpus"]) for first in firsts],
        sizes,
        [f"lr{rate}" for rate in rates],
        [file_part(first["eval_set"]) for first in firsts],
        [first["family"][:6] for first in firsts],
        by="-",
    )
    titles = told_apart(
        [first["corpus"] for first in firsts],
        [f"{size} parameters" for size in sizes],
        [f"learning rate {rate}" for rate in rates],
    )
    return [_of_lengths(*one) for one in zip(found, names, titles, strict=True)]


def _of_lengths(group: Group, name: str, title: str) -> Picture:
    columns = ["setting", "bag_size", "step_ratio", "steps", "seeds", "gain", "low", "high"]
    rows = group.rows.sort_values(["step_ratio", "bag_size", "steps"], ignore_index=True)
    data, rate = rows[[*columns, "verdict"]], rows["learning_rate"].iloc[0]
    return Picture(
        name=f"loss_over_length-{name}",
        title=f"{LENGTHS}, {title}",
        caption=f"{'; '.join(data['setting'].unique())}; {group.model}, learning rate {rate:g}. "
        "Baseline minus superposition at equal FLOPs, held-out next-token loss, each point a run "
        "of its own whose learning rate was annealed; above zero, superposition is better. Bars: "
        "95% interval over paired seeds; hollow: it includes zero, or one seed and no claim.",
        data=data,
        folders=group.folders,
        draw=partial(_draw_lengths, data),
    )


def _draw_lengths(data: pd.DataFrame) -> Figure:
    drawn, ((axes,),) = new_figure(COLUMN, 2.5)
    axes.axhline(0, color=MUTED, linewidth=0.7)
    looks = setting_marks(data, "setting")
    side_by_side(axes, data, looks, _gain, x="steps", y="gain", by="setting")
    by_steps = data.groupby("steps")["seeds"].agg(list)
    texts = [f"{steps:,}\n{span(seeds, 'seed')}" for steps, seeds in by_steps.items()]
    log_axis(axes, "x", list(by_steps.index), texts)
    axes.margins(x=0.08)
    axes.set_xlabel("steps (log scale)")
    axes.set_ylabel("gain (nats per token)")
    key_above(axes, "", looks, 3, markers=True)
    return drawn


def _gain(row: dict[str, Any]) -> str:
    return f"{row['setting']}, {row['steps']:,} steps: {gain(row)} nats, {row['verdict']}"
