"""Figure 7: final loss over the peak learning rate, baseline and superposition.

The paper's own sweep is not among the published numbers (a picture without a table), so this is
drawn from runs alone.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.comparison import SETTING
from analysis.run_row import rows_of
from analysis.summary import Summary
from analysis.wording import group_label, number, setting_label, setting_order
from paper_figures.item import Finding, Item, Missing, Verdict, command
from paper_figures.picture import Picture
from paper_figures.sources import Sources
from paper_figures.style import COLUMN, PAGE, bag_size_mark, new_figure

TITLE = "Figure 7. Learning-rate sweeps"
NEEDS = command("learning-rates", "paper")
PUBLISHED = "a sweep shown as a picture; its numbers were not published"
MOST = 6
"""Settings of one panel."""
DATA = ("panel", "setting", "bag_size", "learning_rate", "seeds", "loss", "low", "high", "diverged")


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """One panel per comparison group that has a baseline at two or more rates."""
    data, used = sweep_data(sources.summary)
    if data.empty:
        sentence = (
            "Needs baselines and superposed runs at two or more learning rates: "
            f"`{command('learning-rates', 'one-gpu')}`; at the paper's scale `{NEEDS}`."
        )
        return [Missing("learning_rate_sweep", TITLE, sentence, Finding(PUBLISHED, needs=NEEDS))]
    return [
        Picture(
            "learning_rate_sweep",
            name,
            TITLE,
            "Held-out loss over the peak learning rate (log scale), measured; points: means over "
            "the seeds that all rates of a setting share, bars: their range; crosses at the upper "
            "edge: diverged. "
            f"{number(len(used), 'run')}. The paper's sweep was not published as numbers.",
            data,
            used,
            lambda: _figure(data),
            finding=_finding(data),
        )
    ]


def sweep_data(summary: Summary) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Means by rate, and the run folders they are of; groups in order of name."""
    runs = summary.tables.runs
    ended = runs["folder"].isin(summary.comparison.eligible["folder"])
    found = runs[ended | (runs["state"] == "diverged")]
    rows: list[dict[str, Any]] = []
    folders: dict[tuple[str, str], set[str]] = {}
    for _, members in found.groupby("group", sort=True):
        base = members[members["method"] == "baseline"]
        if base["learning_rate"].nunique() < 2:
            continue
        for _, same in members.groupby(list(SETTING), dropna=False, sort=False):
            first = next(rows_of(same))
            shared = _shared_seeds(same[same["state"] == "done"])
            for rate, at in same.groupby("learning_rate"):
                done = at[(at["state"] == "done") & at["seed"].isin(shared)]
                losses = done["nats_per_token"].astype(float)
                rows.append(
                    {
                        "panel": group_label(members),
                        "setting": setting_label(first),
                        "order": setting_order(first),
                        "bag_size": first["bag_size"],
                        "learning_rate": rate,
                        "seeds": len(losses),
                        "loss": losses.mean() if len(losses) else None,
                        "low": losses.min() if len(losses) else None,
                        "high": losses.max() if len(losses) else None,
                        "diverged": int((at["state"] == "diverged").sum()),
                    }
                )
            folders[setting_label(first), group_label(members)] = set(same["folder"])
    rows = [row for panel in _panels(rows) for row in _shown(panel)]
    rows.sort(key=lambda row: (row["panel"], row["order"], row["learning_rate"]))
    used = {path for row in rows for path in folders[row["setting"], row["panel"]]}
    return pd.DataFrame(rows, columns=list(DATA)), tuple(sorted(used))


def _panels(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    names = dict.fromkeys(row["panel"] for row in rows)
    return [[row for row in rows if row["panel"] == name] for name in names]


def _shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Settings with several rates; where only the baseline has them, one plain setting beside "
    "it."""
    rates = Counter(row["setting"] for row in rows)
    order = {row["setting"]: row["order"] for row in sorted(rows, key=lambda row: row["order"])}
    swept = [setting for setting in order if rates[setting] > 1][:MOST]
    single = [setting for setting in order if rates[setting] == 1 and not order[setting][0]]
    kept = swept if len(swept) > 1 else swept + single[:1]
    return [row for row in rows if row["setting"] in kept]


def _shared_seeds(done: pd.DataFrame) -> set[int]:
    """Seeds that every rate has: means over different seeds would compare luck. All, if none is."""
    by_rate = [set(rows["seed"]) for _, rows in done.groupby("learning_rate")]
    shared = set.intersection(*by_rate) if by_rate else set()
    return shared or set(done["seed"])


def _figure(data: pd.DataFrame) -> Figure:
    panels = list(dict.fromkeys(data["panel"]))[:2]
    figure, row = new_figure(PAGE if len(panels) > 1 else COLUMN, 2.4, len(panels))
    for axes, panel in zip(row, panels, strict=True):
        _draw(axes, data[data["panel"] == panel])
        axes.set_title(panel)
    row[0].set_ylabel("held-out loss (nats per token)")
    return figure


def _draw(axes: Axes, data: pd.DataFrame) -> None:
    for setting, rows in data.groupby("setting", sort=False):
        mark = bag_size_mark(int(rows["bag_size"].iloc[0]))
        known = rows[rows["loss"].notna()]
        line: dict[str, Any] = {"color": mark.colour, "linestyle": mark.dash, "label": setting}
        axes.plot(known["learning_rate"], known["loss"], mark.marker, linewidth=0.9, **line)
        axes.vlines(known["learning_rate"], known["low"], known["high"], color=mark.colour, lw=1.0)
        lost = rows[rows["diverged"] > 0]["learning_rate"]
        axes.plot(
            lost,
            [1.0] * len(lost),
            "x",
            color=mark.colour,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
        )
    rates = sorted(set(data["learning_rate"]))
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.set_xlabel("peak learning rate (log scale)")
    axes.legend(loc="best")


def _finding(data: pd.DataFrame) -> Finding:
    said = []
    verdict: Verdict = "undecided"
    for panel, rows in data[data["loss"].notna()].groupby("panel", sort=False):
        best = {
            str(setting): float(part.sort_values("loss")["learning_rate"].iloc[0])
            for setting, part in rows.groupby("setting", sort=False)
        }
        said.append(f"{panel}: " + ", ".join(f"{name} best at {at:g}" for name, at in best.items()))
    return Finding(PUBLISHED, "; ".join(said), f"{int(data['seeds'].max())} seeds at most", verdict)
