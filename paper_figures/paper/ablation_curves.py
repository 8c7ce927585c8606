"""Figures 6 and 9: curves of the recovery phase where one thing about the bags differs.

Figure 6: superposition at the input only, at the output only, and at both. Figure 9: weights of the
tokens within a bag.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import gain
from tst_study.paper_figures import curves
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.drawing import arm_key
from tst_study.paper_figures.item import Finding, judged
from tst_study.paper_figures.picture import Picture
from tst_study.paper_figures.sources import Group, Sources, folders_of
from tst_study.paper_figures.style import BASELINE, PAGE, Mark, marks_of, new_figure

SWITCH = 20_000


@dataclass(frozen=True)
class Ablation:
    title: str
    figure: int
    column: str
    """The column of a setting that differs."""
    arms: Mapping[str, tuple[str, str]]
    """Label and name of the published run, empty if there is none, by value of the column."""
    panels: Mapping[str, int]
    """Bag size by published panel."""
    claim: str = ""
    """The label that the paper finds best, and better than the baseline."""

    def published(self) -> pd.DataFrame:
        runs = {"baseline": "baseline"} | {label: run for label, run in self.arms.values() if run}
        parts = []
        for panel, size in self.panels.items():
            panel_curves = curves.published_curves(self.figure, runs, SWITCH, panel)
            parts.append(panel_curves.assign(panel=f"s = {size}, r = 0.5"))
        return pd.concat(parts)

    def measured(self, sources: Sources) -> list[Group]:
        """Return settings of one s and r that differ in the column alone, for as many bag sizes as
        were published; the group that has most of them counts."""
        best: list[Group] = []
        for group in sources.groups:
            rows = group.plain(self.column, "weighting").rows
            allowed = self.arms if self.column == "weighting" else ("uniform", "first_token")
            rows = rows[rows["weighting"].isin(list(allowed))]
            largest: dict[int, Group] = {}
            for _, same in rows.groupby(["bag_size", "superposed_steps"]):
                distinct = same.drop_duplicates(self.column)
                size = int(distinct["bag_size"].iloc[0])
                if len(distinct) > max(1, len(largest[size].rows) if size in largest else 0):
                    largest[size] = group.only(distinct)
            by_size = [largest[size] for size in sorted(largest)]
            ends = by_size[:1] + by_size[1:][-1:] if len(self.panels) > 1 else by_size
            ends = sorted(ends, key=lambda group: -len(group.rows))[: len(self.panels)]
            best = max(best, ends, key=lambda groups: sum(len(group.rows) for group in groups))
        return sorted(best, key=lambda group: group.rows["bag_size"].iloc[0])

    def looks(self, groups: list[Group]) -> dict[str, dict[str, Mark]]:
        """Return the marks of the arms by label, for each panel."""
        marks = {}
        for size in self.panels.values():
            rows = [
                {"bag_size": size, "superposed_steps": 1, "step_ratio": 0.5, self.column: value}
                for value in self.arms
            ]
            labels = [label for label, _ in self.arms.values()]
            marks[f"s = {size}, r = 0.5"] = marks_of(
                pd.DataFrame(rows).assign(label=labels), "label"
            )
        for group in groups:
            own = group.rows.assign(label=self.labels(group.rows))
            marks[_panel(group)] = marks_of(own, "label")
        return {panel: {"baseline": BASELINE, **own} for panel, own in marks.items()}

    def labels(self, rows: pd.DataFrame) -> list[str]:
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
    {"figure9": WEIGHTS},
    published=["loss_curves"],
    needs=submit("weightings", "paper", "one-gpu"),
)
def ablation_curves(sources: Sources, which: Ablation) -> Picture:
    """The published curves, and those of the widest comparison that was run here."""
    groups = which.measured(sources)
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
        finding=_finding(which, data, groups, sources.answers),
    )


def _panel(group: Group) -> str:
    first = group.rows.iloc[0]
    return f"s = {first['bag_size']}, r = {first['step_ratio']:.3g}"


def _figure(data: pd.DataFrame, looks: Mapping[str, Mapping[str, Mark]]) -> Figure:
    panels = list(data.groupby(["source", "panel"], sort=False))
    counts = [len(panels[start : start + 2]) for start in range(0, len(panels), 2)]
    drawn, rows = new_figure(PAGE, 2.4 * len(counts), *counts)
    for axes, ((source, panel), part) in zip(itertools.chain(*rows), panels, strict=True):
        own = looks[str(panel)]
        curves.draw(axes, part, own, curves.from_the_switch(part))
        arm_key(axes, f"{source}: {panel}", curves.legend_looks(part, own), 2)
    return drawn


def _finding(
    which: Ablation, data: pd.DataFrame, groups: list[Group], asked: pd.DataFrame
) -> Finding:
    """asked: verdicts, among which a planned question may compare the claim's arm with another of
    the same picture (`Sources.answers`)."""
    published = []
    for panel, rows in data[data["source"] == "published"].groupby("panel", sort=False):
        ends = sorted((curves.last(part), label) for label, part in rows.groupby("label"))
        published.append(f"{panel}: " + ", ".join(f"{label} {loss:.3f}" for loss, label in ends))
    theirs = "; ".join(published)
    if not groups:
        return Finding(theirs)
    measured = []
    for group in groups:
        ranked = group.rows.sort_values("gain", ascending=False)
        gains = zip(which.labels(ranked), map(gain, rows_of(ranked)), strict=True)
        measured.append(f"{_panel(group)}: " + ", ".join(map(" ".join, gains)))
    first = groups[0].rows.sort_values("gain", ascending=False)
    claimed = dict(zip(which.labels(first), first["verdict"], strict=True)).get(which.claim, "")
    verdict = judged([claimed])
    if verdict == "agrees" and which.labels(first)[0] != which.claim:
        verdict = "undecided"
    for row in _direct(which, asked):
        measured.append(f"planned: {which.claim} against {row['against']} {gain(row)}")
        verdict = "disagrees" if row["verdict"] == "worse" else verdict
    return Finding(theirs, "gains, " + "; ".join(measured), groups[0].scale, verdict)


def _direct(which: Ablation, asked: pd.DataFrame) -> list[dict[str, Any]]:
    """Planned questions that compare the arm that the paper finds best with another arm of the
    picture: the plain method is called `superposition` there."""
    labels = {label for label, _ in which.arms.values()} - {which.claim}
    wanted = asked["planned"] & (asked["arm"] == "superposition") & asked["against"].isin(labels)
    return list(rows_of(asked[wanted])) if which.claim else []
