"""Figures 6 and 9: loss curves of the recovery phase, for arms that differ in one property of the
bags.

In Figure 6 that is the side: superposition at the input only, at the output only, or at both. In
Figure 9 it is the weighting of the tokens within a bag."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import gain
from tst_study.paper_figures import curves
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import Picture
from tst_study.paper_figures.item import Finding, Verdict, judged
from tst_study.paper_figures.sources import Group, Sources, folders_of
from tst_study.paper_figures.style import BASELINE, PAGE, Mark, mark_of, marks_of, new_figure

SWITCH = 20_000
"""Number of superposed steps in the published runs, which have 40,000 steps."""


@dataclass(frozen=True)
class Ablation:
    """One of the two figures."""

    title: str
    figure: int
    column: str
    """The column of the run table in which the arms differ."""
    arms: Mapping[str, tuple[str, str]]
    """For each value of the column, the arm's label and the name of its published run, which is
    empty if there is none."""
    panels: Mapping[str, int]
    """The bag size of each published panel."""
    claim: str = ""
    """Label of the arm that the paper finds better than the baseline and than all other arms. It is
    empty if the figure makes no such claim; then nothing can agree or disagree with it."""

    def published(self) -> pd.DataFrame:
        """Return the published curves of all panels."""
        runs = {"baseline": "baseline"} | {label: run for label, run in self.arms.values() if run}
        parts = []
        for panel, size in self.panels.items():
            panel_curves = curves.published_curves(self.figure, runs, SWITCH, panel)
            parts.append(panel_curves.assign(panel=f"s = {size}, r = 0.5"))
        return pd.concat(parts)

    def measured(self, sources: Sources) -> tuple[list[Group], list[Group]]:
        """Return a group of settings for each measured panel, and those of other comparison groups
        on natural text that have the s and r of one of these. There are at most as many measured
        panels as published ones.

        A panel has two or more settings with the same s and r and with different values of the
        column. If the column is the mode, only settings whose weighting is `uniform` or
        `first_token` count. No setting departs from the paper's method in another way. All panels
        are from one comparison group: the one that fills them with the most settings."""
        best: list[Group] = []
        every: list[Group] = []
        for group in sources.groups:
            rows = group.plain(self.column, "weighting").rows
            allowed = self.arms if self.column == "weighting" else ("uniform", "first_token")
            rows = rows[rows["weighting"].isin(list(allowed))]
            alike = [
                group.only(same.drop_duplicates(self.column))
                for _, same in rows.groupby(["bag_size", "superposed_steps"])
            ]
            several = [one for one in alike if len(one.rows) > 1]
            widest = sorted(several, key=lambda one: -len(one.rows))[: len(self.panels)]
            best = max(best, widest, key=lambda groups: sum(len(one.rows) for one in groups))
            every += [] if group.is_generated else widest
        shown = {_panel(one) for one in best}
        again = [one for one in every if one not in best and _panel(one) in shown]
        return sorted(best, key=lambda group: group.rows["bag_size"].iloc[0]), again

    def looks(self, groups: list[Group]) -> dict[str, dict[str, Mark]]:
        """Return, for each panel, the mark of every arm by its label."""
        marks: dict[str, dict[str, Mark]] = {}
        for size in self.panels.values():
            marks[f"s = {size}, r = 0.5"] = {
                label: mark_of(size, 0.5, **{self.column: value})
                for value, (label, _) in self.arms.items()
            }
        for group in groups:
            own = group.rows.assign(label=self.labels(group.rows))
            marks.setdefault(_panel(group), {}).update(marks_of(own, "label"))
        return {panel: {"baseline": BASELINE, **own} for panel, own in marks.items()}

    def labels(self, rows: pd.DataFrame) -> list[str]:
        """Return the arms' labels for rows that have the figure's column."""
        return [self.arms[value][0] for value in rows[self.column]]


INPUT_AND_OUTPUT = Ablation(
    title="Figure 6. In the paper, bags on both sides end lower than bags on one side",
    figure=6,
    column="mode",
    arms={
        "input_only": ("input only", "input_superposition"),
        "output_only": ("output only", "output_superposition"),
        "full": ("both", "full_superposition"),
    },
    panels={"": 4},
    claim="both",
)
WEIGHTS = Ablation(
    title="Figure 9. In the paper, weights within a bag matter little at s = 4 and much at s = 16",
    figure=9,
    column="weighting",
    arms={
        "uniform": ("uniform", "uniform"),
        "power_law": ("power law", "power_law"),
        "exponential": ("exponential", "exponential"),
        "first_token": ("first token", "first_token"),
        "mutual_information": ("mutual information", ""),
    },
    panels={"a_s4": 4, "b_s16": 16},
)


@figure(
    {"figure6": INPUT_AND_OUTPUT},
    published=["loss_curves"],
    needs=submit("input-output", "paper", "one-gpu"),
)
@figure(
    {"figure9": WEIGHTS}, published=["loss_curves"], needs=submit("weightings", "paper", "one-gpu")
)
def ablation_curves(sources: Sources, which: Ablation) -> Picture:
    """Show the published curves and, if there are any, the measured ones (`Ablation.measured`)."""
    groups, again = which.measured(sources)
    own = [curves.group_curves(group, which.labels(group.rows), _panel(group)) for group in groups]
    data = pd.concat([which.published(), *own], ignore_index=True)
    return Picture(
        title=which.title,
        caption="Training loss from the switch on, at equal FLOPs, r = 0.5, 40,000 steps; numbers: "
        f"the last of each curve. {curves.SMOOTHED}; one run each, of a model that the paper does "
        "not name.",
        measured=f"Measured: {groups[0].scale}; {curves.READING}." if groups else "",
        data=data,
        folders=folders_of(groups),
        draw=partial(_figure, data, which.looks(groups)),
        finding=_finding(which, data, groups, again, sources.answers),
    )


def _panel(group: Group) -> str:
    first = group.rows.iloc[0]
    return f"s = {first['bag_size']}, r = {first['step_ratio']:.3g}"


def _figure(data: pd.DataFrame, looks: Mapping[str, Mapping[str, Mark]]) -> Figure:
    panels = list(data.groupby(["source", "panel"], sort=False))
    columns, rows = min(2, len(panels)), (len(panels) + 1) // 2
    drawn, axes_of = new_figure(PAGE, 2.6 * rows, columns, rows)
    for axes, ((source, panel), part) in zip(axes_of.flat, panels, strict=False):
        start = float(part["switch"].max())
        curves.draw(axes, part, looks[str(panel)], f"{source}: {panel}", start)
    for axes in axes_of.flat[len(panels) :]:
        axes.remove()
    return drawn


def _finding(
    which: Ablation,
    data: pd.DataFrame,
    groups: list[Group],
    again: list[Group],
    asked: pd.DataFrame,
) -> Finding:
    """Rank the arms of every panel, and judge the figure's claim by the first measured panel.
    Groups that are not drawn (`again`) are stated beside these.

    `asked`: the study's answers (`Sources.answers`). The finding also disagrees if a planned
    question compares the arm of the claim with another arm of the figure and the answer is `worse`.
    """
    published = []
    for panel, rows in data[data["source"] == "published"].groupby("panel", sort=False):
        ends = sorted((curves.last(part), label) for label, part in rows.groupby("label"))
        published.append(f"{panel}: " + ", ".join(f"{label} {loss:.3f}" for loss, label in ends))
    theirs = "; ".join(published)
    if not groups:
        return Finding(theirs)
    measured = []
    for group in (*groups, *again):
        ranked = group.rows.sort_values("gain", ascending=False)
        gains = zip(which.labels(ranked), map(gain, rows_of(ranked)), strict=True)
        where = f"again, {group.scale}, " if group in again else ""
        measured.append(f"{where}{_panel(group)}: " + ", ".join(map(" ".join, gains)))
    first = groups[0].rows.sort_values("gain", ascending=False)
    labels = which.labels(first)
    verdict: Verdict = "undecided"
    if which.claim in labels:  # without the claim's arm, nothing can be judged
        verdict = judged(first["verdict"][[label == which.claim for label in labels]])
        verdict = "undecided" if verdict == "agrees" and labels[0] != which.claim else verdict
        # In planned questions, `superposition` is the name of the paper's own method, with both
        # sides.
        direct = (asked["arm"] == "superposition") & asked["against"].isin(labels)
        for row in rows_of(asked[asked["asked"] & direct]):
            measured.append(f"planned: {which.claim} against {row['against']} {gain(row)}")
            verdict = "disagrees" if row["verdict"] == "worse" else verdict
    return Finding(theirs, "gains, " + "; ".join(measured), groups[0].scale, verdict)
