"""The effect of superposition, with its interval, for every pair that was repeated with seeds."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.run_row import rows_of
from analysis.summary import Summary
from analysis.wording import big, number
from paper_figures.item import Finding, Item, Missing, command
from paper_figures.picture import Picture
from paper_figures.sources import Sources
from paper_figures.style import MUTED, PAGE, bag_size_mark, new_figure

TITLE = "Effect of superposition, every pair repeated with seeds"
PUBLISHED = "no run is repeated with another seed"
MOST = 60
"""Rows that still print at 7 pt on one page; of more, those with most seeds, then longest."""
DATA = (
    "label",
    "setting",
    "bag_size",
    "seeds",
    "gain",
    "low",
    "high",
    "deviation",
    "smallest_detectable",
    "p_value",
    "p_adjusted",
    "verdict",
)


def items(sources: Sources, name: str) -> list[Item | Missing]:
    table = _repeated(sources.summary)
    if table.empty:
        sentence = (
            f"Needs a setting and its baseline with two or more seeds: "
            f"`{command('seed-noise', 'one-gpu')}`, or `{command('laptop', 'laptop')}`."
        )
        needs = command("seed-noise", "one-gpu")
        return [Missing("effects", TITLE, sentence, Finding(PUBLISHED, needs=needs))]
    data = _shown(table)
    tested = len(table)
    left_out = (
        f" {number(tested - len(data), 'row')} more stand in the report."
        if tested > len(data)
        else ""
    )
    return [
        Picture(
            "effects",
            name,
            TITLE,
            "Baseline minus superposition, held-out next-token loss at equal FLOPs, paired by "
            "seed: "
            "right of zero, superposition is better. Bars: 95% t-intervals over seeds; filled: the "
            "interval excludes zero; the small tick: the smallest effect that so many seeds would "
            f"show four times in five. {number(tested, 'pair')} of {_range(table)} "
            f"seeds.{left_out}",
            data,
            _folders(sources.summary, table),
            lambda: _figure(data),
            finding=_finding(table),
        )
    ]


def _repeated(summary: Summary) -> pd.DataFrame:
    table = summary.comparison.table
    found = table[table["seeds"] > 1]
    runs = summary.tables.runs.drop_duplicates("group").set_index("group")
    label = [
        f"{big(runs.loc[row['group'], 'parameters'])}, {row['corpus']}, {row['steps']:,} steps"
        for row in rows_of(found)
    ]
    return found.assign(label=label)


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    kept = table.sort_values(["seeds", "flops"], ascending=False, kind="stable").head(MOST)
    return table.loc[kept.index.sort_values()][list(DATA)].reset_index(drop=True)


def _range(table: pd.DataFrame) -> str:
    least, most = int(table["seeds"].min()), int(table["seeds"].max())
    return str(most) if least == most else f"{least} to {most}"


def _folders(summary: Summary, table: pd.DataFrame) -> tuple[str, ...]:
    ids = {name for names in table["run_ids"] for name in names}
    runs = summary.tables.runs
    return tuple(sorted(runs[runs["run_id"].isin(ids)]["folder"]))


def _figure(data: pd.DataFrame) -> Figure:
    groups = list(dict.fromkeys(data["label"]))
    figure, (axes,) = new_figure(PAGE, 0.6 + 0.17 * (len(data) + len(groups)))
    _draw(axes, data, groups)
    return figure


def _draw(axes: Axes, data: pd.DataFrame, groups: list[str]) -> None:
    axes.axvline(0, color=MUTED, linewidth=0.7)
    place = 0
    places: list[int] = []
    names: list[str] = []
    for group in groups:
        places.append(place)
        names.append(f"{group}:")
        place += 1
        for row in rows_of(data[data["label"] == group]):
            mark = bag_size_mark(int(row["bag_size"]))
            shown = row["verdict"] in ("better", "worse")
            axes.plot([row["low"], row["high"]], [place] * 2, color=mark.colour, linewidth=1.1)
            axes.plot(row["smallest_detectable"], place, "|", color=MUTED, markersize=4, mew=0.8)
            face = mark.colour if shown else "none"
            axes.plot(row["gain"], place, mark.marker, color=mark.colour, mfc=face, mew=0.9)
            places.append(place)
            names.append(f"{row['setting']}, {row['seeds']} seeds")
            place += 1
    axes.set_yticks(places, names)
    for text in axes.get_yticklabels():
        if text.get_text().endswith(":"):
            text.set_fontweight("bold")
    axes.set_ylim(place - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("gain (nats per token)")


def _finding(table: pd.DataFrame) -> Finding:
    wins, losses = (
        int((table["verdict"] == "better").sum()),
        int((table["verdict"] == "worse").sum()),
    )
    held = int((table["p_adjusted"].astype(float) < 0.05).sum())
    measured = (
        f"{number(len(table), 'pair')}: {wins} better, {losses} worse, "
        f"{len(table) - wins - losses} not told apart; {held} hold after correcting for their "
        "number"
    )
    return Finding(PUBLISHED, measured, f"{_range(table)} seeds", "not in the paper")
