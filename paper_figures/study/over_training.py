"""A study over its training: losses of one setting and its baseline, and when gains appear."""

import json
import math
from functools import partial

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import gain, group_details, group_label, signed
from tst_study.paper_figures import curves
from tst_study.paper_figures.catalogue import PAIR, figure
from tst_study.paper_figures.drawing import Picture, arm_key, inside, lines, mark_time
from tst_study.paper_figures.item import Item
from tst_study.paper_figures.sources import Sources
from tst_study.paper_figures.style import (
    BASELINE,
    COLUMN,
    MUTED,
    PAGE,
    Mark,
    marks_of,
    new_figure,
    wrapped,
)

ENDS, NO_CLAIM = {"better": "ahead of", "worse": "behind"}, "with no shown difference from"


@figure("loss_curves", title="Loss against steps", lacks=PAIR)
def loss_curves(sources: Sources) -> Item | None:
    """Show one setting of the comparison that most was asked of, on natural text if there is."""
    groups = [group for group in sources.groups if len(group.plain().rows)]
    if not groups:
        return None
    group = max(groups, key=lambda group: (not group.is_generated, group.weight)).representative()
    data, row = curves.group_curves(group, list(group.rows["setting"])), next(rows_of(group.rows))
    if not data["quantity"].isin(("next_token", "held_out")).any():
        return None  # imported runs need not have a curve
    looks = {"baseline": BASELINE, **marks_of(group.rows, "setting")}
    held_out = bool((data["quantity"] == "held_out").any())
    what = "held-out loss" if held_out else "training loss, a running mean over 5% of the steps"
    return Picture(
        title=f"{row['setting']} ends {ENDS.get(row['verdict'], NO_CLAIM)} its baseline: "
        f"{group_label(group.members)}{group.rate}",
        caption=f"{group_details(group.members)}. Mean {what} over {group.seeds}; shading: range "
        f"over seeds. Final gain in held-out loss: {gain(row)} nats, {row['verdict']}. Every step "
        "costs the same FLOPs. Before the switch superposition trains on the loss of bags, another "
        "quantity, which is not drawn.",
        data=data,
        folders=group.folders,
        draw=partial(_draw_losses, data, looks),
    )


def _draw_losses(data: pd.DataFrame, looks: dict[str, Mark]) -> Figure:
    drawn, ((axes,),) = new_figure(COLUMN, 2.5, 1)
    curves.draw(axes, data, looks, (0.0, curves.end_of(data)))
    names = curves.legend_looks(data, looks) if "end" in set(data["quantity"]) else looks
    arm_key(axes, "", names)
    return drawn


OFTEN = 5
"""Evaluations from which on a line is drawn."""
COLUMNS = 4
DEEP = 3
"""A curve begins where its interval is above minus so many times the largest final gain: far below
that an arm has only just been switched."""


@figure(
    "gain_over_training",
    title="When the gains appear",
    lacks="a study with planned questions whose runs were evaluated on the way: "
    "`tst-study submit what-does-the-work --scale desktop`",
)
def gain_over_training(sources: Sources) -> Item | None:
    """Show a panel for each arm: its gain, with its interval, at every evaluation."""
    summary = sources.summary
    primary = next((question for question in summary.questions if question.primary), None)
    if primary is None:
        return None
    asked = {
        question.arm.name: (question.family, question.name)
        for question in summary.questions
        if (question.within, question.against) == (primary.within, primary.against)
    }
    data, answers = (
        table.set_index(["family", "question"]).loc[lambda rows: rows.index.isin(asked.values())]
        for table in (summary.gains_over_training, sources.answers)
    )
    data = data[data.groupby("arm")["share"].transform("size") >= OFTEN]
    if data.empty:
        return None
    ends = data.groupby("arm", sort=False)["gain"].last()
    near = inside(ends)
    far = [f"{arm} {signed(gain)}" for arm, gain in ends[~near].items()]
    answers = answers[answers["arm"].isin(ends.index)]
    used = sources.runs[sources.runs["run_id"].isin(answers["run_ids"].explode())]
    looks = dict(zip(answers["arm"], answers["mark"], strict=True))
    late = [_lead_since(rows) for _, rows in data.groupby("arm") if rows["gain"].iloc[-1] > 0]
    last = sum(share >= 0.5 for share in late)
    return Picture(
        title=f"Gains come late: {last} of {len(late)} arms that end ahead take the lead in "
        "the second half of the steps",
        caption="Baseline minus arm, held-out next-token loss after the same share of the "
        "steps, mean over paired seeds; bands: 95% intervals, each by itself. Above zero, the "
        "arm is ahead. Dotted: the switch and the start of the decay. Losses right after the "
        "switch are below the frame. No question plans these; only the last point is judged."
        + (f" Not drawn: {', '.join(far)}." if far else ""),
        data=data.drop(columns="against").reset_index(drop=True),
        folders=tuple(sorted(set(used["folder"].astype(str)))),
        draw=partial(_draw_gains, data[data["arm"].isin(ends[near].index)], looks, _times(used)),
    )


def _lead_since(rows: pd.DataFrame) -> float:
    """Return the share of the steps from which on an arm leads for good."""
    behind = rows["share"][rows["gain"] <= 0].max()
    return float(rows["share"][~(rows["share"] <= behind)].min())


def _times(runs: pd.DataFrame) -> dict[str, float]:
    """Return when the arms are switched and when their learning rate begins to decay."""
    switches = set(runs["step_ratio"][runs["bag_size"] > 1].astype(float).round(3))
    schedules = [json.loads(config).get("schedule", {}) for config in runs["config"].dropna()]
    decays = {1 - values["decay_ratio"] for values in schedules if values.get("decay_ratio")}
    times = {"switch": switches, "decay": decays}
    return {words: float(max(values)) for words, values in times.items() if len(values) == 1}


def _draw_gains(data: pd.DataFrame, looks: dict[str, Mark], times: dict[str, float]) -> Figure:
    arms = list(dict.fromkeys(data["arm"]))
    ends = data.groupby("arm")["gain"].last()
    floor = -DEEP * float(ends.abs().max())
    shown = data[data["low"] >= floor]
    top = float(shown["high"].max())
    rows = math.ceil(len(arms) / COLUMNS)
    drawn, panels = new_figure(PAGE, 1.75 * rows, COLUMNS, rows)
    for axes in panels.flat[len(arms) :]:
        axes.remove()
    for place, (axes, arm) in enumerate(zip(panels.flat, arms, strict=False)):
        axes.axhline(0, color=MUTED, linewidth=0.7)
        lines(axes, shown[shown["arm"] == arm], looks, x="share", y="gain", by="arm")
        axes.set_ylim(1.05 * floor, 1.1 * top)
        axes.set_xlim(min(times.get("switch", 1.0), float(data["share"].min())) - 0.02, 1)
        for words, share in times.items():
            mark_time(axes, share, words if place == 0 else "")
        axes.set_title(wrapped(f"{arm}: {signed(ends[arm])}", 110))
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_formatter(PercentFormatter(1, 0))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        if place % COLUMNS:
            axes.tick_params(labelleft=False)
        else:
            axes.set_ylabel("gain (nats)")
        if place + COLUMNS >= len(arms):
            axes.set_xlabel("share of the steps")
    return drawn
