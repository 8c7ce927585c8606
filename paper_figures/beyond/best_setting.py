"""A map of the best (s, r): gain by the law, what it recommends, and the lowest published cell."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.run_row import rows_of
from analysis.summary import Summary
from analysis.superposition_advice import TOLERANCE, Recommendation, recommend
from analysis.superposition_law import published_law
from analysis.wording import number
from paper_figures.item import Finding, Item, Missing, command
from paper_figures.measured import Arm, arms, folders, plain
from paper_figures.picture import Picture
from paper_figures.published_numbers import LOSSES, loss_grid
from paper_figures.sources import Sources
from paper_figures.style import ON_MAP, PAGE, new_grid

BAGS = np.geomspace(2, 20, 60)
RATIOS = np.linspace(0.02, 0.7, 60)
LEVEL = 5.0
"""mnats between two shades."""
DRAWS = 100
"""Refits behind the intervals."""
DATA = ("panel", "source", "bag_size", "step_ratio", "gain", "low", "high", "seeds")


@dataclass(frozen=True)
class Place:
    """A model and a length to draw a map of."""

    label: str
    params: float
    steps: int
    table: int | None
    """Of the published losses there; None where the law extrapolates."""


PLACES = (
    Place("270M, 20k steps", 270e6, 20_000, 4),
    Place("270M, 100k steps", 270e6, 100_000, 5),
    Place("600M, 20k steps", 600e6, 20_000, 6),
    Place("3B, 20k steps", 3e9, 20_000, None),
)


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """Above the law's maps, below the gains that were measured here."""
    advice, maps = _advice()
    found = _arms(sources.summary)
    data = pd.concat(
        [*(_of_place(*both) for both in zip(PLACES, advice, strict=True)), *map(_of_arm, found)],
        ignore_index=True,
    ).reindex(columns=list(DATA))
    return [
        Picture(
            "best_setting",
            name,
            "Map of the best (s, r)",
            _caption(found),
            data,
            tuple(sorted({path for arm in found for path in folders(sources.summary, arm.rows)})),
            lambda: _figure(data, maps, advice),
            published=(LOSSES,),
            fits={place.label: asdict(best) for place, best in zip(PLACES, advice, strict=True)},
            finding=_finding(advice, found),
        )
    ]


@functools.cache
def _advice() -> tuple[list[Recommendation], list[np.ndarray[Any, Any]]]:
    """What the law recommends, and its gains (bags, ratios), place by place; once per process."""
    law = published_law()
    draws = law.drawn(DRAWS)
    advice = [recommend(place.params, place.steps, law, draws) for place in PLACES]
    return advice, [law.gains(place.params, place.steps, BAGS, RATIOS) for place in PLACES]


def _of_place(place: Place, best: Recommendation) -> pd.DataFrame:
    rows: list[dict[str, Any]] = [
        {
            "source": "recommended by the law",
            "bag_size": best.bag_size,
            "step_ratio": best.step_ratio,
            "gain": best.gain,
            "low": best.gain_interval[0],
            "high": best.gain_interval[1],
        }
    ]
    if place.table is not None:
        grid = loss_grid(place.table)
        level = float(grid[grid["bag_size"] == 1]["final_loss"].iloc[0])
        cell = next(rows_of(grid.sort_values("final_loss")))
        rows.append(
            {
                "source": "lowest published cell",
                "bag_size": cell["bag_size"],
                "step_ratio": cell["step_ratio"],
                "gain": level - cell["final_loss"],
                "seeds": 1,
            }
        )
    return pd.DataFrame(rows).assign(panel=place.label)


def _arms(summary: Summary) -> list[Arm]:
    """Up to four groups with three or more settings of the plain method, those with most first."""
    found = [Arm(plain(arm.rows), arm.members, False) for arm in arms(summary)]
    found = [arm for arm in found if len(arm.rows) >= 3]
    return sorted(found, key=lambda arm: -len(arm.rows))[: len(PLACES)]


def _of_arm(arm: Arm) -> pd.DataFrame:
    columns = ["bag_size", "step_ratio", "gain", "low", "high", "seeds"]
    first = arm.members.iloc[0]
    label = f"{first['corpus']}, {first['steps']:,} steps"
    return arm.rows[columns].assign(source="measured", panel=label)


def _figure(
    data: pd.DataFrame, maps: Sequence[np.ndarray[Any, Any]], advice: Sequence[Recommendation]
) -> Figure:
    measured = data[data["source"] == "measured"]
    panels = list(dict.fromkeys(measured["panel"]))
    count = 2 if panels else 1
    heights = [2.1, 1.6][:count]
    figure, rows = new_grid(PAGE, sum(heights), count, len(PLACES), heights)
    top = max(float(gains.max()) for gains in maps)
    image = None
    for axes, place, gains, best in zip(rows[0], PLACES, maps, advice, strict=True):
        image = _draw_map(axes, gains, top)
        _draw_best(axes, best, data[data["panel"] == place.label])
        axes.set_title(place.label + ("" if place.table else ", extrapolated"))
    assert image is not None
    figure.colorbar(image, ax=rows[0], label="gain by the law (mnats)", pad=0.01)
    if panels:
        ends = (float(measured["gain"].min()), float(measured["gain"].max()))
        for axes, panel in zip(rows[1], panels, strict=False):
            image = _draw_measured(axes, measured[measured["panel"] == panel], *ends)
        figure.colorbar(image, ax=rows[1], label="measured (mnats)", pad=0.01)
        for axes in rows[1][len(panels) :]:
            axes.set_axis_off()
    for row in rows:
        row[0].set_ylabel("step ratio r")
    return figure


def _draw_map(axes: Axes, gains: np.ndarray[Any, Any], top: float) -> Any:
    levels = np.arange(0, 1000 * top + LEVEL, LEVEL)
    image = axes.contourf(BAGS, RATIOS, 1000 * gains.T, levels=levels, cmap="cividis", extend="min")
    axes.contour(
        BAGS, RATIOS, gains.T, levels=[gains.max() - TOLERANCE], colors=[ON_MAP], linewidths=0.8
    )
    _scales(axes, [2, 4, 8, 16])
    return image


def _draw_best(axes: Axes, best: Recommendation, rows: pd.DataFrame) -> None:
    axes.plot(best.bag_interval, [best.step_ratio] * 2, color=ON_MAP, linewidth=1.0)
    axes.plot([best.bag_size] * 2, best.ratio_interval, color=ON_MAP, linewidth=1.0)
    axes.plot(best.bag_size, best.step_ratio, "o", color=ON_MAP, markersize=4)
    for row in rows_of(rows[rows["source"] == "lowest published cell"]):
        axes.plot(row["bag_size"], row["step_ratio"], "x", color=ON_MAP, mew=1.1, markersize=5)


def _draw_measured(axes: Axes, rows: pd.DataFrame, low: float, high: float) -> Any:
    """A cell per setting; a dot where the interval excludes zero, a cross at the largest gain."""
    wide = rows.pivot_table(index="step_ratio", columns="bag_size", values="gain")
    shade = {"vmin": 1000 * low, "vmax": 1000 * high, "cmap": "cividis"}
    image = axes.pcolormesh(1000 * wide.to_numpy(dtype=float), **shade)
    sizes, ratios = list(wide.columns), list(wide.index)
    for row in rows_of(rows):
        x, y = sizes.index(row["bag_size"]) + 0.5, ratios.index(row["step_ratio"]) + 0.5
        if pd.notna(row["low"]) and (row["low"] > 0 or row["high"] < 0):
            axes.plot(x, y, ".", color=ON_MAP, markersize=2.5)
        if row["gain"] == rows["gain"].max():
            axes.plot(x, y, "x", color=ON_MAP, mew=1.1, markersize=5)
    shown = range(0, len(sizes), max(1, len(sizes) // 5))
    axes.set_xticks([place + 0.5 for place in shown], [f"{sizes[place]:.0f}" for place in shown])
    shown = range(0, len(ratios), max(1, len(ratios) // 5))
    axes.set_yticks([place + 0.5 for place in shown], [f"{ratios[place]:.2g}" for place in shown])
    axes.set_xlabel("bag size s")
    axes.set_title(str(rows["panel"].iloc[0]))
    return image


def _scales(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(list(sizes), [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("bag size s (log scale)")


def _caption(found: list[Arm]) -> str:
    text = (
        "Gain over the baseline by the law of superposition (fitted to the 462 published cells "
        "with "
        f"r < 1, one seed each). Line: within {1000 * TOLERANCE:.0f} mnats of the best, which "
        f"one run cannot tell apart. Dot: the best, bars: its 95% interval over {DRAWS} refits to "
        "redrawn noise, which do not cover the choice of the form. Cross: the lowest published "
        "cell. 3B lies outside what was fitted. "
    )
    if not found:
        return text + f"Nothing measured: `{command('bag-grid', 'one-gpu')}`."
    return text + (
        f"Below, measured: gains of {number(len(found), 'group')} of runs; dots: the 95% "
        "interval over "
        "seeds excludes zero; cross: the largest."
    )


def _finding(advice: Sequence[Recommendation], found: list[Arm]) -> Finding:
    said = "; ".join(
        f"{place.label}: s = {best.bag_size}, r = {best.step_ratio:.2f} (s {best.bag_range[0]} to "
        f"{best.bag_range[1]} within {1000 * TOLERANCE:.0f} mnats)"
        for place, best in zip(PLACES, advice, strict=True)
    )
    published = f"paper: s 4 to 8, r 0.2 to 0.4; law fitted to its tables: {said}"
    if not found:
        return Finding(published, needs=command("bag-grid", "one-gpu"))
    texts = []
    for arm in found:
        row = next(rows_of(arm.rows.sort_values("gain", ascending=False)))
        texts.append(
            f"{arm.members['corpus'].iloc[0]}: largest mean gain at {row['setting']} of "
            f"{number(len(arm.rows), 'setting')}"
        )
    scale = "; ".join(arm.scale for arm in found)
    return Finding(published, "; ".join(texts), scale, "undecided")
