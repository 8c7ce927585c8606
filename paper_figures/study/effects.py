"""The effect of superposition, with its interval, for every pair that was repeated with seeds."""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from tst_study.analysis.summary import verdict_counts
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import number, told_apart_by_set_up
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import forest
from tst_study.paper_figures.groups import Group
from tst_study.paper_figures.item import Finding, Item
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import PAGE, new_figure
from tst_study.text import big

MOST = 60
"""Rows that still print at 7 pt on one page; of more, those with most seeds, then longest."""
DATA = ["label", "setting", "bag_size", "seeds", "gain", "low", "high", "deviation"]
DATA += ["smallest_detectable", "comparisons", "p_adjusted", "verdict"]


@figure(
    "effects",
    title="Effect of superposition, every pair repeated with seeds",
    lacks="a setting and its baseline with two or more seeds: "
    f"{submit('seed-noise', 'one-gpu')}, or {submit('laptop', 'laptop')}",
)
def effects(sources: Sources) -> list[Item]:
    every = sources.all_settings
    group = every.only(every.rows[every.rows["seeds"] > 1])
    table = group.rows
    if table.empty:
        return []
    runs = group.members.drop_duplicates("group").set_index("group")["parameters"]
    order = table.assign(parameters=table["group"].map(runs))
    by = ["corpus", "parameters", "steps"]
    order = order.sort_values(by, kind="stable", ignore_index=True)
    sizes, steps = order["parameters"].map(big), order["steps"].map("{:,}".format)
    names = sizes + " parameters, " + order["corpus"] + ", " + steps + " steps"
    order["label"] = told_apart_by_set_up(list(names), list(rows_of(order)))
    kept = order.sort_values(["seeds", "flops"], ascending=False, kind="stable").head(MOST)
    data = kept.sort_index()[DATA].reset_index(drop=True)
    more = len(table) - len(data)
    left_out = f" {number(more, 'row')} more stand in the report." if more else ""
    return [
        Picture(
            caption="Baseline minus superposition, held-out next-token loss at equal FLOPs, paired "
            "by seed: right of zero, superposition is better. Bars: 95% intervals over seeds, of "
            "planned questions for each family, of others for all together; filled: the interval "
            "excludes zero; the small tick: the smallest effect that so many "
            f"seeds would show four times in five. {number(len(table), 'pair')}, {group.seeds}."
            f"{left_out}",
            data=data,
            folders=group.folders,
            draw=partial(_figure, data),
            finding=_finding(group),
        )
    ]


def _figure(data: pd.DataFrame) -> Figure:
    height = 0.75 + 0.17 * (len(data) + data["label"].nunique())
    drawn, ((axes,),) = new_figure(PAGE, height, 1)
    seeds = [f"{row['setting']}, {number(row['seeds'], 'seed')}" for row in rows_of(data)]
    ticks = pd.Series([[smallest] for smallest in data["smallest_detectable"]], index=data.index)
    words = "smallest effect that would show"
    forest(axes, data.assign(setting=seeds, ticks=ticks), "label", words, 3)
    return drawn


def _finding(group: Group) -> Finding:
    counts = verdict_counts(group.rows)
    measured = f"{number(len(group.rows), 'pair')}: {counts}"
    said = "no run is repeated with another seed"
    return Finding(said, measured, group.seeds, "not in the paper")
