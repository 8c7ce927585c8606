"""Where on the way gains appear: every arm against what the primary question holds its arm to."""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import signed
from tst_study.paper_figures.catalogue import figure
from tst_study.paper_figures.curves import marks
from tst_study.paper_figures.drawing import end_labels, lines
from tst_study.paper_figures.item import Item
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import MUTED, PAGE, new_figure

OFTEN = 5
"""Evaluations from which on a line is drawn."""
FAR = 5
"""An arm that ends so many times as far from zero as the middle one would squeeze all others."""


@figure(
    "gain_on_the_way",
    title="Gain at every evaluation after the switch",
    lacks="a study with planned questions whose runs were evaluated on the way: "
    "`tst-study submit what-does-the-work --scale desktop`",
)
def gain_on_the_way(sources: Sources) -> list[Item]:
    summary = sources.summary
    main = [(one.within, one.against) for one in summary.questions if one.primary][:1]
    asked = {
        (one.family, one.name) for one in summary.questions if (one.within, one.against) in main
    }
    way, verdicts = (
        rows[pd.Series(zip(rows["family"], rows["question"], strict=True), rows.index).isin(asked)]
        for rows in (summary.on_the_way, summary.verdicts)
    )
    data = way.drop_duplicates(["arm", "share"]).drop(columns=["family", "question", "against"])
    data = data[data.groupby("arm")["share"].transform("size") >= OFTEN]
    if data.empty:
        return []
    ends = data.groupby("arm", sort=False)["gain"].last()
    near = ends.abs() <= FAR * ends.abs().median()
    outside = [f"{arm} {signed(gain)}" for arm, gain in ends[~near].items()]
    ids = {one for ids in verdicts["run_ids"] for one in ids}
    runs = summary.tables.runs
    return [
        Picture(
            caption="Baseline minus arm, held-out next-token loss after the same share of the "
            "steps, mean over paired seeds; above zero, the arm is ahead. In the data: 95% "
            "intervals, each by itself. No question plans these; only the last point is judged."
            + (f" Outside the frame: {', '.join(outside)}." if outside else ""),
            data=data.reset_index(drop=True),
            folders=tuple(sorted(runs["folder"][runs["run_id"].isin(ids)])),
            draw=partial(_draw, data[data["arm"].isin(ends[near].index)]),
        )
    ]


def _draw(data: pd.DataFrame) -> Figure:
    looks = marks(list(data["arm"]))
    drawn, ((axes,),) = new_figure(PAGE, 3.0, 1)
    axes.axhline(0, color=MUTED, linewidth=0.7)
    lines(axes, data, looks, x="share", y="gain", by="arm", band=False)
    late = data["gain"][data["share"] >= 0.5]
    room = 0.08 * (late.max() - late.min())
    axes.set_ylim(late.min() - room, late.max() + room)
    axes.set_xlim(data.groupby("arm")["share"].min().max(), 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1, 0))
    axes.set_xlabel("share of the steps")
    axes.set_ylabel("gain (nats per token)")
    ends = rows_of(data.drop_duplicates("arm", keep="last"))
    said = ((one["arm"], one["gain"], f"{one['arm']}: {signed(one['gain'])}") for one in ends)
    end_labels(axes, [(1.0, gain, words, looks[arm].colour) for arm, gain, words in said])
    return drawn
