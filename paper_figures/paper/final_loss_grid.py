"""Tables 4 to 7: final loss over step ratio r and bag size s; the gain over the baseline beside it.

Measured runs of another model or text cannot have the paper's losses, so what is compared is the
gain over the baseline; losses themselves are compared only at the paper's own scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.run_row import rows_of
from analysis.wording import gain, number
from paper_figures.item import Finding, Item, Missing, command
from paper_figures.measured import Arm, folders, grid_arm
from paper_figures.published_numbers import LOSSES, loss_grid
from paper_figures.sources import Sources
from paper_figures.table import Entry as Cell
from paper_figures.table import Grid, Table, number_entry


@dataclass(frozen=True)
class Published:
    number: int
    params: str
    steps: int
    weighting: str
    study: str
    any_scale: bool
    """Whether runs of another scale may stand here: once per weighting, not four times."""

    @property
    def words(self) -> str:
        weights = " with power-law weights" if self.weighting == "power_law" else ""
        return f"{self.params}, {self.steps:,} steps{weights}"


GRIDS = {
    "table4": Published(4, "270M", 20_000, "uniform", "bag-grid", True),
    "table5": Published(5, "270M", 100_000, "uniform", "bag-grid", False),
    "table6": Published(6, "600M", 20_000, "uniform", "bag-grid", False),
    "table7": Published(7, "600M", 20_000, "power_law", "power-law", True),
}

DATA = (
    "step_ratio",
    "bag_size",
    "published_loss",
    "measured_loss",
    "loss_difference",
    "published_gain",
    "measured_gain",
    "low",
    "high",
    "seeds",
    "gain_difference",
)


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """One table; the measured half stays empty where there are no runs."""
    which = GRIDS[name]
    arm = grid_arm(
        sources.summary, which.params, which.steps, which.weighting, any_scale=which.any_scale
    )
    data = grid_data(which, arm)
    return [
        Table(
            "final_loss_grid",
            name,
            f"Table {which.number}. Final loss over s and r, {which.words}",
            _caption(which, data, arm),
            data,
            folders(sources.summary, arm.rows) if arm else (),
            _grids(which, data, arm),
            published=(LOSSES,),
            finding=_finding(which, data, arm),
        )
    ]


def grid_data(which: Published, arm: Arm | None) -> pd.DataFrame:
    """One row per cell, published or measured; s = 1, r = 0 is the baseline."""
    published = loss_grid(which.number)[["step_ratio", "bag_size", "final_loss"]]
    published = published.rename(columns={"final_loss": "published_loss"})
    level = _baseline(published)
    published["published_gain"] = (level - published["published_loss"]).where(
        published["step_ratio"] < 1
    )
    measured = _measured(arm)
    data = published.merge(measured, on=["step_ratio", "bag_size"], how="outer")
    same = arm is not None and arm.at_scale
    data["loss_difference"] = (
        data["measured_loss"] - data["published_loss"] if same else float("nan")
    )
    data["gain_difference"] = data["measured_gain"] - data["published_gain"]
    data = data.sort_values(["step_ratio", "bag_size"], ignore_index=True)
    return data[list(DATA)]


def _measured(arm: Arm | None) -> pd.DataFrame:
    names = ["step_ratio", "bag_size", "measured_loss", "measured_gain", "low", "high", "seeds"]
    if arm is None:
        return pd.DataFrame(columns=names).astype(
            {name: "Int64" if name in ("bag_size", "seeds") else float for name in names}
        )
    rows = arm.rows.rename(columns={"superposed": "measured_loss", "gain": "measured_gain"})
    rows = rows.assign(step_ratio=rows["step_ratio"].round(3))[names]
    level = {"step_ratio": 0.0, "bag_size": 1, "measured_loss": float(arm.rows["baseline"].mean())}
    level["seeds"] = int(arm.rows["seeds"].max())
    return pd.concat([pd.DataFrame([level]), rows], ignore_index=True).astype({"seeds": "Int64"})


def _baseline(table: pd.DataFrame, column: str = "published_loss") -> float:
    return float(table[table["bag_size"] == 1][column].iloc[0])


def _grids(which: Published, data: pd.DataFrame, arm: Arm | None) -> tuple[Grid, ...]:
    title = f"Published: final training loss; baseline {_baseline(data):.4f}"
    grids = [_pivot(data, "published_loss", title, lowest=True)]
    if arm is None:
        return tuple(grids)
    level = _baseline(data, "measured_loss")
    title = f"Measured ({arm.scale}): final held-out loss; baseline {level:.4f}"
    grids.append(_pivot(data, "measured_loss", title, lowest=True))
    if arm.at_scale:
        grids.append(_pivot(data, "loss_difference", "Measured − published", sign=True))
    there = data[data["measured_gain"].notna()]
    grids.append(_gains(there))
    return tuple(grids)


def _pivot(
    data: pd.DataFrame, column: str, title: str, *, lowest: bool = False, sign: bool = False
) -> Grid:
    """Rows s, columns r; the best next-token loss of each r is marked."""
    cells = data[(data["bag_size"] > 1) & data[column].notna()]
    wide = cells.pivot(index="bag_size", columns="step_ratio", values=column)
    ratios = [float(ratio) for ratio in wide.columns]
    values = wide.to_numpy(dtype=float)
    marked = np.array([lowest and ratio < 1 for ratio in ratios])
    best = marked & (values == np.nanmin(values, axis=0))
    rows = tuple(
        (
            Cell(str(size), value=float(size)),
            *(
                number_entry(float(values[i, j]), 4, bool(best[i, j]), sign)
                for j in range(len(ratios))
            ),
        )
        for i, size in enumerate(wide.index)
    )
    return Grid(title, ("s", *(f"r = {ratio:.3g}" for ratio in ratios)), rows)


def _gains(data: pd.DataFrame) -> Grid:
    rows = tuple(
        (
            Cell(f"{row['bag_size']:.0f}", value=float(row["bag_size"])),
            Cell(f"{row['step_ratio']:.3g}", value=float(row["step_ratio"])),
            number_entry(row["published_gain"], 4, sign=True),
            Cell(
                gain({**row, "gain": row["measured_gain"]}, 4),
                row["measured_gain"] == data["measured_gain"].max(),
                float(row["measured_gain"]),
            ),
            Cell(str(row["seeds"]), value=float(row["seeds"])),
            number_entry(row["gain_difference"], 4, sign=True),
        )
        for row in rows_of(data)
    )
    headings = ("s", "r", "gain, published", "gain, measured [95%]", "seeds", "difference")
    return Grid("Gain over the baseline (nats per token)", headings, rows)


def _caption(which: Published, data: pd.DataFrame, arm: Arm | None) -> str:
    tokens = data[(data["step_ratio"] < 1) & (data["bag_size"] > 1)]
    best = next(rows_of(tokens.sort_values("published_loss")))
    r_one = (data["step_ratio"] == 1).any()
    text = (
        "Final training loss in nats per token, "
        f"{number(int(data['published_loss'].count()), 'published run')} "
        f"of one seed each. Bold: the lowest of each r; the lowest of all is "
        f"{best['published_loss']:.4f} at s = {best['bag_size']:.0f}, r = "
        f"{best['step_ratio']:.3g}, "
        f"{_baseline(data) - best['published_loss']:.4f} below the baseline. "
    )
    if r_one:
        text += "r = 1 was never recovered: a loss of bags, another quantity"
        odd = " (Table 7's entry looks like a next-token loss all the same)"
        text += (odd if which.number == 7 else "") + ". "
    if arm is None:
        return (
            text
            + f"Nothing measured: `{command(which.study, 'paper')}`"
            + (
                f" at the paper's scale, `{command(which.study, 'one-gpu')}` smaller."
                if which.any_scale
                else " makes the runs."
            )
        )
    return text + (
        f"Measured: {number(len(arm.rows), 'setting')}, {arm.scale}; gains are paired by seed."
    )


def _finding(which: Published, data: pd.DataFrame, arm: Arm | None) -> Finding:
    cells = data[(data["step_ratio"] < 1) & (data["bag_size"] > 1)]
    better = int((cells["published_gain"] > 0).sum())
    many = int(cells["published_gain"].count())
    at = cells[cells["step_ratio"] <= 0.5]
    published = (
        f"{better} of {many} settings below the baseline, all {at['published_gain'].count()} "
        "with r ≤ 0.5"
        if (at["published_gain"].dropna() > 0).all()
        else f"{better} of {many} settings below the baseline"
    )
    if arm is None:
        return Finding(published, needs=command(which.study, "paper"))
    verdicts = arm.rows["verdict"]
    wins, losses = int((verdicts == "better").sum()), int((verdicts == "worse").sum())
    measured = (
        f"of {number(len(arm.rows), 'setting')} {wins} better, {losses} worse, "
        f"{len(arm.rows) - wins - losses} not told apart from the baseline"
    )
    verdict = (
        "agrees" if wins > 0 and losses == 0 else "disagrees" if losses > wins else "undecided"
    )
    if arm.is_generated:
        verdict = "mechanism only"
    return Finding(published, measured, arm.scale, verdict)  # type: ignore[arg-type]
