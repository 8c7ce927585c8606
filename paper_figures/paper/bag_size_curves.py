"""Figures 4, 5, 8 and 11: final loss over bag size s, a curve and an optimum for every r.

The published files name tables, not figures: the four grids are taken in the order of their tables
(Figure 4 is Table 4, Figure 5 Table 5, Figure 8 Table 6, Figure 11 Table 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.optimum import FormName, optimum
from analysis.run_row import rows_of
from analysis.wording import number
from paper_figures.item import Finding, Item, Missing, Verdict, command
from paper_figures.measured import Arm, folders, grid_arm
from paper_figures.paper.final_loss_grid import GRIDS, Published
from paper_figures.picture import Picture
from paper_figures.published_numbers import LOSSES, loss_grid
from paper_figures.sources import Sources
from paper_figures.style import FAINT, INK, MUTED, PAGE, new_grid, ratio_mark
from tst_study.errors import UserError

TABLE_OF = {"figure4": "table4", "figure5": "table5", "figure8": "table6", "figure11": "table7"}
FORM: FormName = "asymmetric"
"""a + b/s + c log s through all bag sizes (`analysis.optimum`)."""
NEAR = 0.55
"""Step ratios up to here are shown once more, near their optimum."""
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
            lambda: _figure(data, found),
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


def _figure(data: pd.DataFrame, found: pd.DataFrame) -> Figure:
    sources = list(dict.fromkeys(data["source"]))
    figure, rows = new_grid(PAGE, 2.6 * len(sources), len(sources), 3)
    for (whole, near, best), source in zip(rows, sources, strict=True):
        mine, own = data[data["source"] == source], found[found["source"] == source]
        _draw_whole(whole, mine)
        whole.set_title(f"{source}: all r")
        whole.set_ylabel("final loss (nats per token)")
        _draw_near(near, mine, own)
        near.set_title("near the optimum (bar: 95%)")
        _draw_best(best, own)
        best.set_title("fitted optimum by r")
    return figure


def _draw_whole(axes: Axes, data: pd.DataFrame) -> None:
    """Every curve as far as it stays near the baseline, its r at its end."""
    level = float(data["baseline"].iloc[0])
    low = float(np.nanmin(data[["loss", "low"]].astype(float)))
    top = level + 0.35 * abs(level - low)
    axes.axhline(level, color=INK, linewidth=0.9)
    axes.annotate(
        "baseline",
        (0.98, level),
        xycoords=("axes fraction", "data"),
        fontsize=7,
        xytext=(0, -2),
        textcoords="offset points",
        ha="right",
        va="top",
    )
    ends: list[tuple[float, float, str]] = []
    for _, curve in data.groupby("step_ratio"):
        ratio = float(curve["step_ratio"].iloc[0])
        mark = ratio_mark(ratio)
        inside = curve[curve["loss"] <= top]
        axes.plot(
            curve["bag_size"],
            curve["loss"],
            mark.marker,
            color=mark.colour,
            linestyle="-",
            linewidth=0.8,
            markersize=2.6,
        )
        axes.vlines(curve["bag_size"], curve["low"], curve["high"], color=mark.colour, lw=0.8)
        if len(inside) == len(curve):
            ends.append(
                (float(curve["bag_size"].iloc[-1]), float(curve["loss"].iloc[-1]), f"{ratio:.3g}")
            )
        elif len(inside):
            last = inside.iloc[-1]
            axes.annotate(
                f"{ratio:.3g}",
                (last["bag_size"], last["loss"]),
                xytext=(-3, 2),
                textcoords="offset points",
                ha="right",
                va="bottom",
                fontsize=7,
            )
    axes.set_ylim(low - 0.08 * (top - low), top)
    _sizes(axes, data, room=1.35)
    _label_ends(axes, ends)


def _label_ends(axes: Axes, ends: Sequence[tuple[float, float, str]]) -> None:
    """Words behind the last points of curves, moved apart so that none covers another."""
    bottom, top = axes.get_ylim()
    gap, at = 0.055 * (top - bottom), bottom - 1.0
    for x, y, text in sorted(ends, key=lambda end: end[1]):
        at = max(y, at + gap)
        axes.annotate(
            text,
            (x, y),
            xytext=(axes.get_xlim()[1], at),
            textcoords="data",
            fontsize=7,
            ha="right",
            va="center",
            arrowprops={"arrowstyle": "-", "lw": 0.4, "color": MUTED, "shrinkA": 1, "shrinkB": 3},
        )


def _draw_near(axes: Axes, data: pd.DataFrame, found: pd.DataFrame) -> None:
    near = data[data["step_ratio"] <= NEAR]
    ends: list[tuple[float, float, str]] = []
    for _, curve in near.groupby("step_ratio"):
        ratio = float(curve["step_ratio"].iloc[0])
        mark = ratio_mark(ratio)
        look: dict[str, Any] = {"color": mark.colour, "markersize": 3, "linewidth": 0.7}
        axes.plot(curve["bag_size"], curve["loss"], mark.marker, linestyle="-", **look)
        axes.vlines(curve["bag_size"], curve["low"], curve["high"], color=mark.colour, lw=0.8)
        last = curve.iloc[-1]
        ends.append((float(last["bag_size"]), float(last["loss"]), f"{ratio:.3g}"))
    for row in rows_of(found[found["step_ratio"] <= NEAR]):
        if pd.notna(row["best"]):
            axes.plot(_ends(row, near), [row["loss"]] * 2, color=INK, linewidth=1.0, zorder=5)
            axes.plot(row["best"], row["loss"], "|", color=INK, markersize=6, mew=1.2, zorder=5)
    low, high = float(near["loss"].min()), float(near["loss"].quantile(0.9))
    if near["low"].notna().any():
        low, high = float(near["low"].min()), float(near["high"].max())
    axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    _sizes(axes, data, room=1.35)
    _label_ends(axes, ends)


def _ends(row: dict[str, Any], data: pd.DataFrame) -> list[float]:
    """An interval that is open goes to the last value tried."""
    low = row["low"] if pd.notna(row["low"]) else float(data["bag_size"].min())
    high = row["high"] if pd.notna(row["high"]) else float(data["bag_size"].max())
    return [low, high]


def _draw_best(axes: Axes, found: pd.DataFrame) -> None:
    """s* by r: bar its interval, pale bar the flat range; an arrow where it lies at an edge."""
    for row in rows_of(found):
        mark, ratio = ratio_mark(float(row["step_ratio"])), row["step_ratio"]
        if pd.isna(row["best"]):
            continue
        axes.plot([row["flat_low"], row["flat_high"]], [ratio] * 2, color=FAINT, linewidth=5)
        for end, marker in (("low", "<"), ("high", ">")):
            if pd.notna(row[end]):
                axes.plot([row["best"], row[end]], [ratio] * 2, color=mark.colour, linewidth=1.1)
            else:
                edge = 2.0 if end == "low" else 16.0
                axes.plot([row["best"], edge], [ratio] * 2, color=mark.colour, linewidth=1.1)
                axes.plot(edge, ratio, marker, color=mark.colour)
        axes.plot(row["best"], ratio, mark.marker, color=mark.colour)
    axes.set_xscale("log")
    ticks = [2, 3, 4, 6, 8, 12, 16]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(1.9, 18)
    axes.set_ylim(0, 1)
    axes.set_xlabel("optimal s (log scale)")
    axes.set_ylabel("step ratio r")


def _sizes(axes: Axes, data: pd.DataFrame, room: float = 1.12) -> None:
    sizes = sorted(set(data["bag_size"]))
    ticks: Sequence[float] = [tick for tick in (2, 3, 4, 6, 8, 12, 16) if tick in sizes] or sizes
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(sizes[0] / 1.12, sizes[-1] * room)
    axes.set_xlabel("bag size s (log scale)")


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
