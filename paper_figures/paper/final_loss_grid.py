"""Tables 4 to 7: final loss over step ratio r and bag size s; the gain over the baseline beside it.

Measured runs of another model or text cannot have the paper's losses or gains, so differences are
formed only at the paper's own scale.
"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from tst_study.analysis import published
from tst_study.analysis.summary import verdict_counts
from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import number
from tst_study.paper_figures.catalogue import figure, submit
from tst_study.paper_figures.item import Finding, judged
from tst_study.paper_figures.sources import Group, Sources, is_at_scale
from tst_study.paper_figures.table import (
    Grid,
    Table,
    gain_entry,
    grids_over_s_and_r,
    number_as,
    number_entry,
)


@dataclass(frozen=True)
class PublishedGrid:
    table: int
    size: str
    steps: int
    weighting: str
    any_scale: bool
    """Whether runs of another scale may stand here: once per weighting, not four times."""
    figure: int
    """Number of the figure that shows it over bag size."""

    @property
    def words(self) -> str:
        weights = " with power-law weights" if self.weighting == "power_law" else ""
        return f"{self.size}, {self.steps:,} steps{weights}"

    def group(self, sources: Sources) -> Group | None:
        """The runs that fill the grid: the published scale's, or those with most cells.

        Ties go to real text before generated language, then to the longer runs, then to more seeds.
        """
        candidates = []
        for group in sources.groups:
            group = group.plain(weighting=self.weighting)
            at_scale = self.is_scale_of(group)
            if len(group.rows) and (self.any_scale or at_scale):
                cells = len(group.rows[["step_ratio", "bag_size"]].drop_duplicates())
                size = (group.steps, group.rows["seeds"].sum())
                candidates.append(((at_scale, cells, not group.is_generated, *size), group))
        return max(candidates, key=lambda entry: entry[0])[1] if candidates else None

    def is_scale_of(self, group: Group) -> bool:
        """Whether runs have the paper's size, length and kind of text."""
        same = is_at_scale(group.members, self.size, self.steps)
        return bool(same.all()) and not group.is_generated


TABLE4 = PublishedGrid(4, "270M", 20_000, "uniform", True, figure=4)
TABLE5 = PublishedGrid(5, "270M", 100_000, "uniform", False, figure=5)
TABLE6 = PublishedGrid(6, "600M", 20_000, "uniform", False, figure=8)
TABLE7 = PublishedGrid(7, "600M", 20_000, "power_law", True, figure=11)
LOSSES = ["final_loss_grid"]
_MEASURED = ["measured_loss", "measured_gain", "low", "high", "seeds"]


@figure({"table4": TABLE4}, published=LOSSES, needs=submit("bag-grid", "paper", "one-gpu"))
@figure({"table5": TABLE5, "table6": TABLE6}, published=LOSSES, needs=submit("bag-grid", "paper"))
@figure({"table7": TABLE7}, published=LOSSES, needs=submit("power-law", "paper", "one-gpu"))
def final_loss_grid(sources: Sources, which: PublishedGrid) -> Table:
    """One table; the measured half stays empty where there are no runs."""
    group = which.group(sources)
    data = grid_data(which, group)
    return Table(
        title=f"Table {which.table}. Final loss over s and r, {which.words}",
        caption=_caption(which, data),
        measured=f"Measured: {number(len(group.rows), 'setting')}, {group.scale}; gains are paired "
        "by seed, and each loss is the baseline's mean over all its seeds less the gain."
        if group
        else "",
        data=data,
        folders=group.folders if group else (),
        grids=_grids(which, data, group),
        finding=_finding(data, group),
    )


def grid_data(which: PublishedGrid, group: Group | None) -> pd.DataFrame:
    """One row per cell, published or measured; s = 1, r = 0 is the baseline."""
    cells = ["step_ratio", "bag_size"]
    grid = published.loss_grid(which.table, unrecovered=True)
    data = grid[[*cells, "loss"]].rename(columns={"loss": "published_loss"})
    gain = data["published_loss"][data["bag_size"] == 1].iloc[0] - data["published_loss"]
    data["published_gain"] = gain.where(data["step_ratio"] < 1)
    measured = pd.DataFrame(columns=[*cells, *_MEASURED]).astype({"bag_size": "int64"})
    if group is not None:
        rows = group.with_baseline()
        rows = rows.assign(step_ratio=rows["step_ratio"].astype(float).round(3))
        measured = rows.rename(columns={"loss": "measured_loss", "gain": "measured_gain"})
        measured = measured[[*cells, "measured_loss", "seeds", "measured_gain", "low", "high"]]
    types: dict[str, Any] = {
        **dict.fromkeys(_MEASURED, float),
        "step_ratio": float,
        "seeds": "Int64",
    }
    data = data.merge(measured.astype(types), on=cells, how="outer")
    same = group is not None and which.is_scale_of(group)
    for kind in ("loss", "gain"):
        difference = data[f"measured_{kind}"] - data[f"published_{kind}"]
        data[f"{kind}_difference"] = difference if same else float("nan")
    return data.sort_values(cells, ignore_index=True)


def _grids(which: PublishedGrid, data: pd.DataFrame, group: Group | None) -> tuple[Grid, ...]:
    titles = {"published_loss": "Published: final training loss"}
    if group is not None:
        titles["measured_loss"] = f"Measured ({group.scale}): final held-out loss"
        if which.is_scale_of(group):
            titles["loss_difference"] = "Measured − published"
    grids = grids_over_s_and_r(data, titles, 4, "min")
    if group is None:
        return tuple(grids)
    there = data[data["measured_gain"].notna()]
    top = there["measured_gain"].max()
    columns = {
        "s": lambda row: number_entry(row["bag_size"]),
        "r": lambda row: number_as(row["step_ratio"], "{:.3g}".format),
        "gain, measured [95%]": lambda row: gain_entry(
            row, "measured_gain", best=row["measured_gain"] == top
        ),
        "seeds": lambda row: number_entry(row["seeds"]),
        "gain, published": lambda row: number_entry(row["published_gain"], 4, sign=True),
    }
    if which.is_scale_of(group):
        columns["difference"] = lambda row: number_entry(row["gain_difference"], 4, sign=True)
    return (*grids, Grid.of(rows_of(there), columns, "Gain over the baseline (nats per token)"))


def _caption(which: PublishedGrid, data: pd.DataFrame) -> str:
    tokens = data[(data["step_ratio"] < 1) & (data["bag_size"] > 1)]
    best = next(rows_of(tokens.sort_values("published_loss")))
    text = (
        "Final training loss in nats per token, "
        f"{number(int(data['published_loss'].count()), 'published run')} of one seed each. Bold: "
        f"the lowest of each r; the lowest of all is {best['published_loss']:.4f} at s = "
        f"{best['bag_size']:.0f}, r = {best['step_ratio']:.3g}, {best['published_gain']:.4f} below "
        "the baseline."
    )
    if (data["step_ratio"] == 1).any():
        text += " r = 1 was never recovered: a loss of bags, another quantity"
        odd = " (Table 7's entry looks like a next-token loss all the same)"
        text += (odd if which.table == 7 else "") + "."
    return text


def _finding(data: pd.DataFrame, group: Group | None) -> Finding:
    cells = data[(data["step_ratio"] < 1) & (data["bag_size"] > 1)]
    gains, at = cells["published_gain"], cells[cells["step_ratio"] <= 0.5]["published_gain"]
    theirs = f"{(gains > 0).sum()} of {gains.count()} settings below the baseline"
    if (at.dropna() > 0).all():
        theirs += f", all {at.count()} with r ≤ 0.5"
    if group is None:
        return Finding(theirs)
    counts = verdict_counts(group.rows)
    measured = f"{number(len(group.rows), 'setting')}: {counts}"
    verdict = "mechanism only" if group.is_generated else judged(group.rows["verdict"])
    if len(group.rows) == 1 and verdict == "agrees":  # one setting is no grid
        verdict = "undecided"
    return Finding(theirs, measured, group.scale, verdict)
