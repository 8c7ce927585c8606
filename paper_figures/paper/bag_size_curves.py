"""Figures 4, 5, 8 and 11: final loss over bag size s, a curve and an optimum for every r.

The published files name tables, not figures: the four grids are taken in the order of their tables
(Figure 4 is Table 4, Figure 5 Table 5, Figure 8 Table 6, Figure 11 Table 7).
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.optimum import FormName, optimum
from analysis.run_row import rows_of
from analysis.wording import number
from paper_figures.item import Finding, Item, Missing, Verdict, command
from paper_figures.measured import Arm, folders, grid_arm
from paper_figures.paper.bag_size_drawing import figure
from paper_figures.paper.final_loss_grid import GRIDS, Published
from paper_figures.picture import Picture
from paper_figures.published_numbers import LOSSES, loss_grid
from paper_figures.sources import Sources
from tst_study.errors import UserError

TABLE_OF = {"figure4": "table4", "figure5": "table5", "figure8": "table6", "figure11": "table7"}
FORM: FormName = "asymmetric"
"""a + b/s + c log s through all bag sizes (`analysis.optimum`)."""
DATA = ("source", "step_ratio", "bag_size", "loss", "low", "high", "error", "seeds", "baseline")


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """One figure: the published grid above, the runs of this package that stand beside it below."""
    which = GRIDS[TABLE_OF[name]]
    arm = grid_arm(
        sources.summary, which.params, which.steps, which.weighting, any_scale=which.any_scale
    )
    if arm is not None and arm.rows["bag_size"].nunique() < 2:
        arm = None
    data = _published(which)
    if arm is not None:
        data = pd.concat([data, _measured(arm)], ignore_index=True)
    found = optima(data)
    return [
        Picture(
            "bag_size_curves",
            name,
            f"Figure {name.removeprefix('figure')}. Final loss over bag size, {which.words}",
            _caption(which, data, arm),
            data,
            folders(sources.summary, arm.rows) if arm else (),
            lambda: figure(data, found),
            published=(LOSSES,),
            fits={
                f"{row['source']}, r = {row['step_ratio']:.3g}": {
                    key: row[key] for key in row if key not in ("source", "step_ratio")
                }
                for row in rows_of(found)
            },
            finding=_finding(which, found, arm),
        )
    ]


def optima(data: pd.DataFrame) -> pd.DataFrame:
    """Fitted optimum of every curve: best, low, high, flat_low, flat_high (bag sizes), loss, said.

    Where an optimum cannot be named, `best` is missing and `said` holds the reason.
    """
    rows: list[dict[str, Any]] = []
    for (source, ratio), curve in data.groupby(["source", "step_ratio"], sort=False):
        row: dict[str, Any] = {"source": source, "step_ratio": ratio, "form": FORM}
        values, losses = list(curve["bag_size"]), list(curve["loss"])
        try:
            found = optimum(values, losses, form=FORM, noise=_noise_of_seeds(curve))
        except UserError as error:
            rows.append({**row, "said": str(error)})
            continue
        names = ("best", "low", "high", "flat_low", "flat_high", "loss", "noise", "noise_from")
        rows.append({**row, **{key: getattr(found, key) for key in names}, "said": found.edge})
    columns = ["source", "step_ratio", "form", "best", "low", "high", "flat_low", "flat_high"]
    return pd.DataFrame(rows, columns=[*columns, "loss", "noise", "noise_from", "said"])


def _noise_of_seeds(curve: pd.DataFrame) -> float | None:
    """Standard error of a mean gain over seeds, nats; None where no run was repeated."""
    known = curve["error"].dropna().astype(float)
    return float((known**2).mean() ** 0.5) if len(known) else None


def _published(which: Published) -> pd.DataFrame:
    grid = loss_grid(which.number)
    level = float(grid[grid["bag_size"] == 1]["final_loss"].iloc[0])
    cells = grid[(grid["bag_size"] > 1) & (grid["step_ratio"] < 1)]
    table = pd.DataFrame(
        {
            "source": "published",
            "step_ratio": cells["step_ratio"],
            "bag_size": cells["bag_size"],
            "loss": cells["final_loss"],
            "baseline": level,
        }
    )
    return table.reindex(columns=list(DATA)).sort_values(["step_ratio", "bag_size"])


def _measured(arm: Arm) -> pd.DataFrame:
    """At the baseline's level over all seeds, less the paired gain, as `loss_over_bag_size`."""
    level = float(arm.rows["baseline"].mean())
    rows = [
        {
            "source": "measured",
            "step_ratio": round(row["step_ratio"], 3),
            "bag_size": row["bag_size"],
            "loss": level - row["gain"],
            "low": level - row["high"] if pd.notna(row["high"]) else None,
            "high": level - row["low"] if pd.notna(row["low"]) else None,
            "error": row["deviation"] / row["seeds"] ** 0.5 if pd.notna(row["deviation"]) else None,
            "seeds": row["seeds"],
            "baseline": level,
        }
        for row in rows_of(arm.rows)
    ]
    table = pd.DataFrame(rows, columns=list(DATA))
    return table.sort_values(["step_ratio", "bag_size"])


def _caption(which: Published, data: pd.DataFrame, arm: Arm | None) -> str:
    own = data[data["source"] == "published"]
    text = (
        f"Final training loss of {number(len(own), 'published run')} (Table {which.number}), one "
        "seed "
        "each; numbers at the curves: r. Optimum: fit of a + b/s + c log s to all bag sizes of "
        "one r, "
        "bars its 95% interval over noise redrawn as the fit leaves it (an arrow: open on that "
        "side), "
        "pale bar: where the fit is within one standard deviation of its lowest. "
    )
    if arm is None:
        return (
            text
            + f"Nothing measured: `{command(which.study, 'paper')}`"
            + (f", or `{command(which.study, 'one-gpu')}` smaller." if which.any_scale else ".")
        )
    return text + (
        f"Below, measured: {arm.scale}; held-out loss at the baseline's mean less the paired gain, "
        "bars: its 95% interval over seeds."
    )


def _finding(which: Published, found: pd.DataFrame, arm: Arm | None) -> Finding:
    middle = found[(found["source"] == "published") & found["step_ratio"].between(0.15, 0.45)]
    published = "optimal s by r: " + ", ".join(_said(row) for row in rows_of(middle))
    if arm is None:
        return Finding(published, needs=command(which.study, "paper"))
    own = found[found["source"] == "measured"]
    text = "; ".join(_said(row) for row in rows_of(own))
    known = own[own["best"].notna() & own["low"].notna() & own["high"].notna()]
    span = (float(middle["low"].min()), float(middle["high"].max()))
    verdict: Verdict = "undecided"
    if len(known):
        overlaps = (known["low"] <= span[1]) & (known["high"] >= span[0])
        verdict = "agrees" if overlaps.all() else "disagrees"
    if arm.is_generated:
        verdict = "mechanism only"
    return Finding(published, text, arm.scale, verdict)


def _said(row: dict[str, Any]) -> str:
    if pd.isna(row["best"]):
        return f"r = {row['step_ratio']:.3g}: {row['said']}"
    low, high = (f"{row[end]:.1f}" if pd.notna(row[end]) else "open" for end in ("low", "high"))
    return f"r = {row['step_ratio']:.3g}: {row['best']:.1f} [{low}, {high}]"
