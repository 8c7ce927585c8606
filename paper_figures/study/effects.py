"""Gains with their intervals: the study's own question first, then everything else."""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from tst_study.analysis.summary import verdict_counts
from tst_study.analysis.wording import number, span
from tst_study.paper_figures.answers import message
from tst_study.paper_figures.catalogue import PAIR, figure, submit
from tst_study.paper_figures.drawing import NAMES, Picture, forest, forest_rows
from tst_study.paper_figures.item import Finding, Item
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import PAGE, new_figure

FEW, MOST = 10, 60
"""Rows of the overview, and rows that still print at 7 pt on one page."""
HALF = (4.8, 140.0)
"""Width of the overview in inches and of its names in points: half of a page's first screen."""


@figure("overview", title="What the study found", lacks=PAIR)
def overview(sources: Sources) -> Item | None:
    """Show the primary question and as many rows after it as make a picture of one screen."""
    rows = sources.answers
    rows = rows[rows["gain"].notna()]
    return _picture(sources, rows, FEW, message(rows), *HALF) if len(rows) else None


@figure(
    "effects",
    title="Every gain, with its interval",
    lacks="a setting and its baseline with two or more seeds: "
    f"{submit('seed-noise', 'one-gpu')}, or {submit('laptop', 'laptop')}",
)
def effects(sources: Sources) -> Item | None:
    """Show every question and setting that was repeated with seeds."""
    rows = sources.answers
    rows = rows[rows["seeds"] > 1]
    title = f"{number(len(rows), 'comparison')} repeated with seeds: {verdict_counts(rows)}"
    return _picture(sources, rows, MOST, title, PAGE, NAMES) if len(rows) else None


def _picture(
    sources: Sources, rows: pd.DataFrame, most: int, title: str, width: float, names: float
) -> Picture:
    runs, data = sources.runs, rows.head(most).reset_index(drop=True)
    used = runs["run_id"].isin(data["run_ids"].explode())
    more = f" {len(rows) - most} more rows in the verdicts." if len(rows) > most else ""
    seeds, alone = span(data["seeds"], "seed"), "no run is repeated with another seed"
    counts = f"{number(len(rows), 'row')}: {verdict_counts(rows)}"
    return Picture(
        title=title,
        caption="Held-out next-token loss of the baseline, or of the arm in the heading, minus "
        "the arm's, paired by seed. Bars: 95% intervals, which hold jointly under one heading. "
        f"Seeds: {seeds.split(' seed')[0]}.{more}",
        data=data.drop(columns=["mark", "run_ids"]),
        folders=tuple(sorted(runs["folder"][used].astype(str))),
        draw=partial(_figure, data, width, names),
        finding=Finding(alone, counts, seeds, "not in the paper") if most == MOST else None,
    )


def _figure(data: pd.DataFrame, width: float, names: float) -> Figure:
    headings, rows = forest_rows(data, names)
    lines = max(place for _, place in [*headings, *rows]) + 1
    drawn, ((axes,),) = new_figure(width, 0.8 + 0.165 * lines, 1)
    forest(axes, data, names)
    return drawn
