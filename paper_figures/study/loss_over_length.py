"""Gain over the baseline against the number of steps: from where on does superposition win?"""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis.compare.comparison import SAME_BUT_LENGTH
from analysis.wording import gain
from paper_figures.drawing import log_axis, means
from paper_figures.groups import Group, file_part, span, told_apart
from paper_figures.item import Item
from paper_figures.picture import Picture
from paper_figures.registration import figure, submit
from paper_figures.sources import Sources
from paper_figures.style import COLUMN, MUTED, bag_size_mark, new_figure

TITLE = "Gain against the number of steps"


@figure(
    "loss_over_length",
    title=TITLE,
    lacks="one setting and its baseline at two or more numbers of steps: "
    f"{submit('laptop', 'desktop')}",
)
def loss_over_length(sources: Sources) -> list[Item]:
    """One per corpus, model and learning rate with the same setting at two or more lengths."""
    every = Group(sources.summary, sources.summary.comparison.table).plain()
    found: list[Group] = []
    for _, rows in every.rows.groupby(list(SAME_BUT_LENGTH), sort=False):
        lengths = rows.groupby("setting")["steps"].transform("nunique")
        if (lengths >= 2).any():
            found.append(every.only(rows[lengths >= 2]))
    firsts = [group.rows.iloc[0] for group in found]
    names = told_apart(
        [file_part(first["corpus"]) for first in firsts],
        [group.model.split()[0] for group in found],
        [f"lr{first['learning_rate']:g}" for first in firsts],
        [file_part(first["eval_set"]) for first in firsts],
        [first["family"][:6] for first in firsts],
    )
    return [_picture(*one) for one in zip(found, names, strict=True)]


def _picture(group: Group, name: str) -> Picture:
    columns = ["setting", "bag_size", "step_ratio", "steps", "seeds", "gain", "low", "high"]
    rows = group.rows.sort_values(["step_ratio", "bag_size", "steps"], ignore_index=True)
    data, corpus = rows[[*columns, "verdict"]], str(rows["corpus"].iloc[0])
    return Picture(
        name=f"loss_over_length-{name}",
        title=f"{TITLE}, {corpus}",
        caption=f"{'; '.join(data['setting'].unique())}. Baseline minus superposition at equal "
        "FLOPs, held-out next-token loss, each point a run of its own whose learning rate was "
        "annealed; above zero, superposition is better. Bars: 95% interval over paired seeds; "
        "hollow: it includes zero, or one seed and no claim.",
        data=data,
        folders=group.folders,
        draw=lambda: _figure(data),
    )


def _figure(data: pd.DataFrame) -> Figure:
    drawn, ((axes,),) = new_figure(COLUMN, 2.5)
    axes.axhline(0, color=MUTED, linewidth=0.7)
    settings = list(data["setting"].unique())
    for index, setting in enumerate(settings):
        rows = data[data["setting"] == setting]
        mark = bag_size_mark(int(rows["bag_size"].iloc[0]))
        shift = 2 ** (0.05 * (index - (len(settings) - 1) / 2))
        rows = rows.assign(x=rows["steps"] * shift)
        means(axes, rows, {setting: mark}, _said, x="x", y="gain", by="setting")
        axes.plot([], [], mark.marker, color=mark.colour, label=setting)
    by_steps = data.groupby("steps")["seeds"].agg(list)
    texts = [f"{steps:,}\n{span(seeds, 'seed')}" for steps, seeds in by_steps.items()]
    log_axis(axes, "x", list(by_steps.index), texts)
    axes.margins(x=0.08)
    axes.set_xlabel("steps (log scale)")
    axes.set_ylabel("gain (nats per token)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    return drawn


def _said(row: dict[str, Any]) -> str:
    return f"{row['setting']}, {row['steps']:,} steps: {gain(row)} nats, {row['verdict']}"
