"""Gain over the baseline against the number of steps: from where on does superposition win?"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.summary import Summary
from analysis.wording import number
from paper_figures.item import Item, Missing, command
from paper_figures.picture import Picture
from paper_figures.sources import Sources
from paper_figures.study.selection import file_part, folders_of, plain_rows
from paper_figures.style import COLUMN, MUTED, bag_size_mark, new_figure, thousands

KIND = "loss_over_length"
TITLE = "Gain against the number of steps"


def items(sources: Sources, name: str = KIND) -> list[Item | Missing]:
    """One per corpus, model and learning rate with the same setting at two or more lengths."""
    summary = sources.summary
    found: list[Item | Missing] = []
    table = plain_rows(summary.comparison.table)
    for _, rows in table.groupby(["family", "learning_rate", "eval_set"], sort=False):
        lengths = rows.groupby("setting")["steps"].transform("nunique")
        several = rows[lengths >= 2]
        if len(several):
            found.append(_picture(summary, several))
    return found or [
        Missing(
            KIND,
            TITLE,
            "Needs one setting and its baseline at two or more numbers of steps: "
            f"`{command('laptop', 'desktop')}`.",
        )
    ]


def _picture(summary: Summary, rows: pd.DataFrame) -> Picture:
    columns = ["setting", "bag_size", "step_ratio", "steps", "seeds", "gain", "low", "high"]
    data = rows.sort_values(["step_ratio", "bag_size", "steps"])[columns].reset_index(drop=True)
    corpus = str(rows["corpus"].iloc[0])
    return Picture(
        KIND,
        f"loss_over_length-{file_part(corpus)}",
        f"Gain against the number of steps, {corpus}",
        f"{'; '.join(data['setting'].unique())}. "
        "Baseline minus superposition at equal FLOPs, held-out next-token loss, each point a run "
        "of its own whose learning rate was annealed; above zero, superposition is better. Bars: "
        f"95% interval over paired seeds (up to {number(int(rows['seeds'].max()), 'seed')}).",
        data,
        folders_of(summary, rows),
        lambda: _figure(data),
    )


def draw(axes: Axes, data: pd.DataFrame) -> None:
    axes.axhline(0, color=MUTED, linewidth=0.7)
    settings = list(data["setting"].unique())
    for index, setting in enumerate(settings):
        rows = data[data["setting"] == setting]
        mark = bag_size_mark(int(rows["bag_size"].iloc[0]))
        x = rows["steps"] * 2 ** (0.05 * (index - (len(settings) - 1) / 2))
        line: dict[str, Any] = {"linestyle": mark.dash, "linewidth": 0.9, "label": setting}
        axes.plot(x, rows["gain"], mark.marker, color=mark.colour, **line)
        axes.vlines(x, rows["low"], rows["high"], color=mark.colour, linewidth=1.0)
    inner = [0.0, *data["gain"]]
    span = max(max(inner) - min(inner), 1e-3)
    ends = [*inner, *data["low"].dropna(), *data["high"].dropna()]
    axes.set_ylim(
        max(min(ends), min(inner) - 1.5 * span) - 0.06 * span,
        min(max(ends), max(inner) + 1.5 * span) + 0.06 * span,
    )
    steps = sorted(data["steps"].unique())
    axes.set_xscale("log")
    axes.set_xticks(steps, [thousands(step) for step in steps])
    axes.minorticks_off()
    axes.set_xlabel("steps (log scale)")
    axes.set_ylabel("gain (nats per token)")
    if len(settings) > 1:
        axes.legend(loc="best")


def _figure(data: pd.DataFrame) -> Figure:
    figure, (axes,) = new_figure(COLUMN, 2.4)
    draw(axes, data)
    return figure
