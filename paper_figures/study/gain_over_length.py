"""Gain over the number of steps: from where on does superposition win?"""

from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from tst_study.analysis.verdict.comparison import SAME_BUT_LENGTH
from tst_study.analysis.wording import gain, span, told_apart
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import key_above, log_axis, means
from tst_study.paper_figures.groups import Group, file_part
from tst_study.paper_figures.item import Item
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import COLUMN, MUTED, new_figure, setting_marks

LENGTHS = "Gain against the number of steps"


@figure(
    "gain_over_length",
    title=LENGTHS,
    lacks="one setting and its baseline at two or more numbers of steps: "
    f"{submit('laptop', 'desktop')}",
)
def gain_over_length(sources: Sources) -> list[Item]:
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
        name=f"gain_over_length-{name}",
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
    drawn, ((axes,),) = new_figure(COLUMN, 2.5, 1)
    axes.axhline(0, color=MUTED, linewidth=0.7)
    looks = setting_marks(data, "setting")
    for place, (_, rows) in enumerate(data.groupby("setting", sort=False)):
        # A little aside, so that bars do not overlap.
        aside = 2 ** (0.06 * (place - (data["setting"].nunique() - 1) / 2))
        moved = rows.assign(at=rows["steps"] * aside)
        means(axes, moved, looks, _gain, x="at", y="gain")
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
