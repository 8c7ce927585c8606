"""Gains with their intervals: the study's own question first, then everything else."""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from tst_study.analysis.summary import Summary, verdict_counts
from tst_study.analysis.wording import number, span
from tst_study.paper_figures.answers import message
from tst_study.paper_figures.catalogue import PAIR, figure, submit
from tst_study.paper_figures.drawing import NAMES, forest, forest_rows
from tst_study.paper_figures.item import Finding, Item
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import PAGE, new_figure

FEW, MOST = 10, 60
"""Rows of the overview, and rows that still print at 7 pt on one page."""
HALF = (4.8, 140.0)
"""Width of the overview in inches and of its names in points: half of a page's first screen."""
READING = (
    "Baseline minus arm, or what the heading names minus arm, in held-out next-token loss, paired "
    "by seed. Bars: 95% intervals; those under one heading hold together."
)


@figure("overview", title="What the study found", lacks=PAIR)
def overview(sources: Sources) -> list[Item]:
    """Show the primary question and as many families after it as make a picture of one screen."""
    rows = sources.answers
    rows = rows[rows["gain"].notna()]
    sizes = rows.groupby("heading", sort=False).size()
    kept = sizes[(sizes.cumsum() <= FEW) | (sizes.cumsum() == sizes)]
    data = rows[rows["heading"].isin(kept.index)].head(FEW)
    more = len(rows) - len(data)
    left_out = f" {number(more, 'row')} more in the verdicts." if more else ""
    return _picture(sources.summary, data, message(rows), left_out, *HALF) if len(data) else []


@figure(
    "effects",
    title="Every gain, with its interval",
    lacks="a setting and its baseline with two or more seeds: "
    f"{submit('seed-noise', 'one-gpu')}, or {submit('laptop', 'laptop')}",
)
def effects(sources: Sources) -> list[Item]:
    """Show every question and setting that was repeated with seeds."""
    rows = sources.answers
    rows = rows[rows["seeds"] > 1]
    if rows.empty:
        return []
    data = rows.head(MOST)
    more = len(rows) - len(data)
    left_out = f" {number(more, 'row')} more stand in the report." if more else ""
    title = f"{number(len(rows), 'comparison')} repeated with seeds: {verdict_counts(rows)}"
    return _picture(sources.summary, data, title, left_out)


def _picture(
    summary: Summary,
    data: pd.DataFrame,
    title: str,
    left_out: str,
    width: float = PAGE,
    names: float = NAMES,
) -> list[Item]:
    runs = summary.tables.runs
    ids = {one for ids in data["run_ids"] for one in ids}
    counts = f"{number(len(data), 'row')}: {verdict_counts(data)}"
    seeds = span(data["seeds"], "seed")
    said = "no run is repeated with another seed"
    return [
        Picture(
            title=title,
            caption=f"{READING} {seeds[0].upper()}{seeds[1:]}.{left_out}",
            data=data.drop(columns=["mark", "run_ids"]).reset_index(drop=True),
            folders=tuple(sorted(runs["folder"][runs["run_id"].isin(ids)].astype(str))),
            draw=partial(_figure, data.reset_index(drop=True), width, names),
            finding=Finding(said, counts, seeds, "not in the paper"),
        )
    ]


def _figure(data: pd.DataFrame, width: float, names: float) -> Figure:
    headings, rows = forest_rows(data, names)
    lines = max(place for _, place in [*headings, *rows]) + 1
    drawn, ((axes,),) = new_figure(width, 0.8 + 0.165 * lines, 1)
    forest(axes, data, names)
    return drawn
