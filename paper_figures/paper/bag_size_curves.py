"""Figures 4, 5, 8 and 11: final loss over bag size s, a curve and an optimum for every r.

The published files name tables, not figures: the four grids are taken in the order of their tables
(Figure 4 is Table 4, Figure 5 Table 5, Figure 8 Table 6, Figure 11 Table 7).
"""

from typing import Any

import pandas as pd

from analysis.bag_size.optimum import optimum
from analysis.compare.comparison import SAME
from analysis.runs.run_row import rows_of
from analysis.wording import number
from paper_figures.groups import Group
from paper_figures.item import Finding, Verdict
from paper_figures.paper.bag_size_drawing import draw
from paper_figures.paper.final_loss_grid import (
    LOSSES,
    TABLE4,
    TABLE5,
    TABLE6,
    TABLE7,
    PublishedGrid,
)
from paper_figures.picture import Picture
from paper_figures.registration import figure, submit
from paper_figures.sources import Sources
from tst_study.errors import UserError

FIGURE = {4: 4, 5: 5, 6: 8, 7: 11}
"""By table."""
_CURVE = ["source", "step_ratio"]


@figure({"figure4": TABLE4}, published=LOSSES, needs=submit("bag-grid", "paper", "one-gpu"))
@figure({"figure5": TABLE5, "figure8": TABLE6}, published=LOSSES, needs=submit("bag-grid", "paper"))
@figure({"figure11": TABLE7}, published=LOSSES, needs=submit("power-law", "paper", "one-gpu"))
def bag_size_curves(sources: Sources, which: PublishedGrid) -> Picture:
    """One figure: the published grid above, the runs of this package that stand beside it below."""
    group = which.group(sources)
    if group is not None and group.rows["bag_size"].nunique() < 2:
        group = None
    data = _published(which)
    count, scales = len(data), {"published": which.words}
    if group is not None:
        own = group.beside_baseline().assign(source="measured")
        own["step_ratio"] = own["step_ratio"].round(3)
        data = pd.concat([data, own.reindex(columns=data.columns)], ignore_index=True)
        scales["measured"] = f"{group.model}, {group.steps:,} steps"
    found = optima(data, group)
    return Picture(
        title=f"Figure {FIGURE[which.table]}. Final loss over bag size, {which.words}",
        caption=f"Final training loss of {number(count, 'published run')} (Table {which.table}), "
        "one seed each; numbers at the curves: r. Optimum: mean of a parabola in log s and of "
        "a + b/s + c log s through all bag sizes of one r, less one that the curve rules out; bars "
        "span their 95% intervals (an arrow: open on that side), pale bar: where they are within "
        "one standard deviation of their lowest.",
        measured=f"Below, measured: {group.scale}; held-out loss at the baseline's mean less the "
        "paired gain, bars: its 95% interval over seeds."
        if group
        else "",
        data=data,
        folders=group.folders if group else (),
        draw=lambda: draw(data, found, scales),
        fits={
            f"{row.pop('source')}, r = {row.pop('step_ratio'):.3g}": row for row in rows_of(found)
        },
        finding=_finding(found, group),
    )


def optima(data: pd.DataFrame, group: Group | None) -> pd.DataFrame:
    """Fitted optimum of every curve, of the group's seed by seed: form, best, low, high, flat_low,
    flat_high (bag sizes), loss, said.

    Where an optimum cannot be named, `best` is missing and `said` holds the reason.
    """
    names = ["form", "best", "low", "high", "flat_low", "flat_high", "loss", "noise", "noise_from"]
    rows: list[dict[str, Any]] = []
    for curve, values in data.groupby(_CURVE, sort=False):
        row: dict[str, Any] = dict(zip(_CURVE, curve, strict=True))
        losses = values.set_index("bag_size")[["loss"]]
        if group is not None and row["source"] == "measured":
            losses = _by_seed(group, losses, row["step_ratio"])
        try:
            found = optimum(losses.index.to_numpy(dtype=float), losses.to_numpy(dtype=float))
        except UserError as error:
            rows.append({**row, "said": str(error)})
            continue
        rows.append({**row, **{key: getattr(found, key) for key in names}, "said": found.edge})
    return pd.DataFrame(rows, columns=[*_CURVE, *names, "said"])


def _by_seed(group: Group, losses: pd.DataFrame, ratio: float) -> pd.DataFrame:
    """Losses at the baseline's level by bag size and seed, of the seeds that every size has; the
    means where there is none."""
    rows = group.rows[group.rows["step_ratio"].round(3) == ratio]
    pairs = group.pairs.merge(rows[[*SAME, "setting", "bag_size"]])
    gains = pairs.pivot_table(index="bag_size", columns="seed", values="gain").dropna(axis=1)
    level = float((losses["loss"] + gains.mean(axis=1)).mean())
    return level - gains if gains.shape[1] else losses


def _published(which: PublishedGrid) -> pd.DataFrame:
    grid = which.losses()
    level = float(grid[grid["bag_size"] == 1]["loss"].iloc[0])
    cells = grid[(grid["bag_size"] > 1) & (grid["step_ratio"] < 1)]
    columns = [*_CURVE, "bag_size", "loss", "low", "high", "error", "seeds", "baseline"]
    named = cells.assign(source="published", baseline=level).reindex(columns=columns)
    return named.sort_values(["step_ratio", "bag_size"])


def _finding(found: pd.DataFrame, group: Group | None) -> Finding:
    middle = found[(found["source"] == "published") & found["step_ratio"].between(0.15, 0.45)]
    published = "optimal s by r: " + ", ".join(_said(row) for row in rows_of(middle))
    if group is None:
        return Finding(published)
    own = found[found["source"] == "measured"]
    known = own[own["best"].notna() & own["low"].notna() & own["high"].notna()]
    span = (float(middle["low"].min()), float(middle["high"].max()))
    verdict: Verdict = "undecided"
    if len(known):
        overlaps = (known["low"] <= span[1]) & (known["high"] >= span[0])
        verdict = "agrees" if overlaps.all() else "disagrees"
    if group.is_generated:
        verdict = "mechanism only"
    return Finding(published, "; ".join(_said(row) for row in rows_of(own)), group.scale, verdict)


def _said(row: dict[str, Any]) -> str:
    if pd.isna(row["best"]):
        return f"r = {row['step_ratio']:.3g}: {row['said']}"
    low, high = (f"{row[end]:.1f}" if pd.notna(row[end]) else "open" for end in ("low", "high"))
    return f"r = {row['step_ratio']:.3g}: {row['best']:.1f} [{low}, {high}]"
