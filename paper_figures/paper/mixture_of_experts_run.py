"""Figure 1: the 10B-A1B runs, baseline and superposition, stopped at about the same loss."""

from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tst_study.analysis import published
from tst_study.analysis.wording import signed
from tst_study.paper_figures import curves
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import arm_key, is_baseline, level_line, note
from tst_study.paper_figures.item import Finding, judged
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Group, Sources
from tst_study.paper_figures.style import (
    BASELINE,
    INK,
    PAGE,
    Look,
    Mark,
    marks_of,
    new_figure,
    plain_mark,
)

RUNS = {"baseline": "moe_10b_a1b_baseline", "TST, s = 16": "moe_10b_a1b_tst_s16"}
SWITCH = 12_483


@figure(
    "figure1",
    published=["loss_curves", "headline_runs"],
    needs=submit("mixture-10b-a1b", "paper"),
)
def mixture_of_experts_run(sources: Sources) -> Picture:
    """Show the published curves, and those of mixtures of experts that were run here."""
    data, group = curves.published_curves(1, RUNS, SWITCH), _group(sources)
    looks = {"baseline": BASELINE, "TST, s = 16": plain_mark(16, SWITCH / 50_000)}
    (long, _), (short, _) = reached(data, True), reached(data, False)
    if group is not None:
        names = [f"TST, {setting}" for setting in group.rows["setting"]]
        data = pd.concat([data, curves.group_curves(group, names)], ignore_index=True)
        looks |= marks_of(group.rows.assign(name=names), "name")
    return Picture(
        title=f"Figure 1. TST reaches the baseline's loss in {long / short:.1f} times fewer steps "
        "(mixture of experts, 10B-A1B)",
        caption="Training loss against steps of equal FLOPs; numbers: the last of each curve. "
        f"{curves.SMOOTHED}; one run each. Before the switch TST trains on the loss of bags, "
        "another quantity, which is not drawn. B200-hours: those of the baseline in Table 1, by "
        "its steps.",
        measured=f"Measured: {group.scale}; {curves.READING}." if group else "",
        data=data,
        folders=group.folders if group else (),
        draw=partial(_figure, data, looks),
        finding=_finding(data, group),
    )


def _group(sources: Sources) -> Group | None:
    """Return one setting of the longest comparison of a mixture of experts."""
    single_settings = [group.representative() for group in sources.groups]
    mixtures = [g for g in single_settings if len(g.rows) and g.members["experts"].notna().all()]
    return max(mixtures, key=lambda group: int(group.members["flops"].iloc[0]), default=None)


def reached(data: pd.DataFrame, baseline: bool) -> tuple[int, float]:
    """Return the last step and training loss of an arm."""
    curve = data[data["label"].map(is_baseline) == baseline]
    return int(curve["step"].max()), curves.last(curve)


def _figure(data: pd.DataFrame, looks: dict[str, Mark]) -> Figure:
    sources = list(dict.fromkeys(data["source"]))
    drawn, (row,) = new_figure(PAGE, 2.6, len(sources))
    for axes, source in zip(row, sources, strict=True):
        mine = data[data["source"] == source]
        curves.draw(axes, mine, looks, (0.0, curves.end_of(mine)))
        arm_key(axes, source, curves.legend_looks(mine, looks), 2)
        if source == "published":
            _draw_saving(axes, mine)
            _hours_below(axes)
    return drawn


def _draw_saving(axes: Axes, data: pd.DataFrame) -> None:
    """Mark the level that superposition reached, and how many steps earlier."""
    (long, _), (short, level) = reached(data, True), reached(data, False)
    level_line(axes, level)
    arrow: Look = {"arrowstyle": "->", "color": INK, "lw": 0.9, "shrinkA": 0, "shrinkB": 2}
    axes.annotate("", (short, level), xytext=(long, level), arrowprops=arrow)
    words = f"{long / short:.1f} times fewer steps"
    note(axes, words, ((short + long) / 2, level), (0, 3), ha="center")


def _hours_below(axes: Axes) -> None:
    """Add B200-hours, at the baseline's hours per step."""
    runs = published.headline_runs().query("params == '10B-A1B' and method == 'baseline'")
    hours = float(runs["b200_hours"].iloc[0] / runs["total_steps"].iloc[0])
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}\n{step * hours:,.0f} h")
    axes.set_xlabel("step, and B200-hours")


def _finding(data: pd.DataFrame, group: Group | None) -> Finding:
    own = data[data["source"] == "published"]
    (long, base), (short, tst) = reached(own, True), reached(own, False)
    theirs = (
        f"TST ends at {tst:.3f} after {short:,} steps, the baseline at {base:.3f} after {long:,}: "
        f"{long / short:.1f} times the steps"
    )
    if group is None:
        return Finding(theirs)
    row = group.rows.iloc[0]
    measured = f"gain of {signed(row['gain'])} nats at equal steps ({row['verdict']})"
    return Finding(theirs, measured, group.scale, judged([row["verdict"]]))
