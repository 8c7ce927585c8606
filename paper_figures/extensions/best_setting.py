"""A map of the best (s, r): gain by the law, what it recommends, and the lowest published cell."""

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import published
from analysis.fits.law.advice import Recommendation, recommend
from analysis.fits.law.rows import TOKENS_PER_STEP
from analysis.fits.law.superposition_law import published_law
from analysis.tables.columns import rows_of
from analysis.wording import number
from paper_figures.drawing import CLAIMED, heat_map, key
from paper_figures.groups import Group, folders_of
from paper_figures.item import Finding
from paper_figures.picture import Picture
from paper_figures.registration import figure, submit
from paper_figures.sources import Sources
from paper_figures.style import INK, ON_DARK_MAP, ON_MAP, PAGE, Look, new_rows

BAGS, RATIOS = np.arange(2.0, 17.0), np.arange(1, 15) / 20
DATA = ["panel", "source", "bag_size", "step_ratio", "gain", "low", "high", "seeds", "verdict"]
PLACES = (("270M", 20_000, 4), ("270M", 100_000, 5), ("600M", 20_000, 6), ("3B", 20_000, None))
"""Model, length, and the table of its published losses; None where the law extrapolates."""
DASHED = (0, (4, 1))
EDGE: Look = {"markeredgecolor": ON_DARK_MAP, "markeredgewidth": 0.6}


@dataclass(frozen=True)
class Map:
    label: str
    gains: pd.DataFrame
    """By the law, in mnats, r by s."""
    best: Recommendation | None
    """None where the law extrapolates."""
    rows: pd.DataFrame
    """What is recommended, and the lowest published cell."""


@figure(
    "best_setting",
    title="Map of the best (s, r)",
    published=["final_loss_grid"],
    needs=submit("bag-grid", "one-gpu"),
)
def best_setting(sources: Sources) -> Picture:
    """Above the law's maps, below the gains that were measured here."""
    maps = _maps()
    found = [group for group in sources.plain_groups if len(group.rows) > 2]
    found = sorted(found, key=lambda group: -len(group.rows))[: len(PLACES)]
    own = [group.rows.assign(source="measured", panel=group.label) for group in found]
    data = pd.concat([*(one.rows for one in maps), *own], ignore_index=True).reindex(columns=DATA)
    return Picture(
        caption="Gain over the baseline by the law of superposition (fitted to "
        f"{len(published_law().rows)} published runs with r < 1, one seed each). Line: within "
        f"{_run_noise():.0f} mnats of the best, the noise of one run. Dot: the best, bars: all s "
        "and r that the law does not show to be worse (95%), which do not cover the choice of the "
        "form. Cross: the lowest published cell. 3B lies outside what was fitted: no bars.",
        measured=f"Below, measured, on the same scale: gains of {number(len(found), 'group')} of "
        "runs; cross: the largest; a question mark: the 95% interval over seeds does not exclude "
        "zero.",
        data=data,
        folders=folders_of(found),
        draw=partial(_figure, data, maps),
        fits={one.label: asdict(one.best) for one in maps if one.best is not None},
        finding=_finding(maps, found),
    )


def _run_noise() -> float:
    """Standard deviation of a run about the law, mnats."""
    return 1000 * published_law().noise.of_a_run


@functools.cache
def _maps() -> list[Map]:
    """The law's gains by model and length, and its advice where it was fitted."""
    law, found = published_law(), []
    for size, steps, table in PLACES:
        label = f"{size}, {steps // 1000}k steps" + ("" if table else ", extrapolated")
        place = (published.PARAMS[size], float(steps * TOKENS_PER_STEP))
        gains = pd.DataFrame(1000 * law.gains(*place, BAGS, RATIOS).T, RATIOS, BAGS.astype(int))
        best = recommend(law, *place) if table else None
        rows = [] if best is None or table is None else [_advised(best), _lowest_cell(table)]
        found.append(Map(label, gains, best, pd.DataFrame(rows).assign(panel=label)))
    return found


def _advised(best: Recommendation) -> dict[str, Any]:
    row = {"source": "recommended by the law", "bag_size": best.bag_size, "gain": best.gain}
    low, high = best.gain_interval
    return {**row, "step_ratio": best.step_ratio, "low": low, "high": high}


def _lowest_cell(table: int) -> dict[str, Any]:
    grid = published.loss_grid(table)
    level = float(grid[grid["bag_size"] == 1]["loss"].iloc[0])
    cell = next(rows_of(grid.sort_values("loss")))
    row = {"source": "lowest published cell", "gain": level - cell["loss"], "seeds": 1}
    return {**row, "bag_size": cell["bag_size"], "step_ratio": cell["step_ratio"]}


def _figure(data: pd.DataFrame, maps: Sequence[Map]) -> Figure:
    own = data[data["source"] == "measured"]
    measured = list(own.groupby("panel", sort=False))
    count = 2 if measured else 1
    drawn, rows = new_rows(PAGE, 2.2 * count + 0.2, [len(maps)] * count)
    top = max(
        1000 * own["gain"].max() if measured else 0.0, *(m.gains.to_numpy().max() for m in maps)
    )
    low = max(1000 * own["gain"].min() if measured else 0.0, -top)
    scale = (min(low, 0.0), top)
    for axes, one in zip(rows[0], maps, strict=True):
        image = heat_map(axes, one.gains, *scale)
        _draw_best(axes, one)
        axes.set_title(one.label)
    drawn.colorbar(image, ax=rows[0], label="gain by the law (mnats)", pad=0.01)
    if measured:
        shown, empty = rows[1][: len(measured)], rows[1][len(measured) :]
        for axes, (panel, cells) in zip(shown, measured, strict=True):
            image = _draw_measured(axes, cells, scale)
            axes.set_title(str(panel))
        drawn.colorbar(image, ax=shown, label="measured (mnats)", pad=0.01)
        for axes in empty:
            axes.set_axis_off()
    for row in rows:
        row[0].set_ylabel("step ratio r")
    entries: dict[str, Look] = {
        "best by the law, 95%": {"marker": "o", "markersize": 4, "linestyle": "-"},
        "best single cell of the grid": {"marker": "X", "markersize": 5},
        f"within {_run_noise():.0f} mnats of the best": {"linestyle": DASHED},
    }
    inked = {words: {"color": INK, **look} for words, look in entries.items()}
    key(drawn, inked, loc="outside lower center", columns=3)
    return drawn


def _draw_best(axes: Axes, one: Map) -> None:
    def x(bags: Any) -> Any:
        return np.subtract(bags, BAGS[0]) + 0.5

    def y(ratios: Any) -> Any:
        return np.subtract(ratios, RATIOS[0]) / RATIOS[0] + 0.5

    look: Look = {"colors": [ON_MAP], "linewidths": 0.9, "linestyles": [DASHED]}
    look["levels"] = [one.gains.to_numpy().max() - _run_noise()]
    axes.contour(x(one.gains.columns), y(one.gains.index), one.gains, **look)
    if (best := one.best) is not None:
        at = (x(best.bag_size), y(best.step_ratio))
        axes.plot(x(best.bag_interval), [at[1]] * 2, color=ON_MAP, linewidth=1.0)
        axes.plot([at[0]] * 2, y(best.ratio_interval), color=ON_MAP, linewidth=1.0)
        axes.plot(*at, "o", color=ON_MAP, markersize=4.5, **EDGE)
        cell = one.rows.iloc[-1]
        axes.plot(x(cell["bag_size"]), y(cell["step_ratio"]), "X", color=ON_MAP, ms=5.5, **EDGE)
    axes.set_xticks(x([2, 4, 8, 12, 16]), ["2", "4", "8", "12", "16"])
    axes.set_yticks(y([0.1, 0.3, 0.5, 0.7]), ["0.1", "0.3", "0.5", "0.7"])
    axes.set_xlabel("bag size s")


def _draw_measured(axes: Axes, rows: pd.DataFrame, scale: tuple[float, float]) -> Any:
    """A cell per setting; a question mark where zero lies in its interval."""
    sure = rows["verdict"].isin(CLAIMED).map({True: "", False: "?"})
    texts = (1000 * rows["gain"]).map("{:.0f}".format).str.replace("-", "−") + sure
    cells = rows.assign(mnats=1000 * rows["gain"], text=texts)
    cells = cells.drop_duplicates(["step_ratio", "bag_size"])
    wide = cells.pivot(index="step_ratio", columns="bag_size", values="mnats")
    words = cells.pivot(index="step_ratio", columns="bag_size", values="text").fillna("")
    best = cells.sort_values("gain").iloc[-1]
    column = list(wide.columns).index(best["bag_size"])
    row = list(wide.index).index(best["step_ratio"])
    wide.index = wide.index.map("{:.2g}".format)
    wide.columns = wide.columns.map("{:g}".format)
    image = heat_map(axes, wide, *scale, words if wide.shape[1] <= 5 else None)
    axes.plot(column + 0.5, row + 0.85, "X", color=ON_MAP, markersize=5.5, **EDGE)
    axes.set_xlabel("bag size s")
    axes.set_ylabel("")
    return image


def _finding(maps: Sequence[Map], found: list[Group]) -> Finding:
    said = "; ".join(
        f"{one.label}: s = {best.bag_size}, r = {best.step_ratio:.2f} (95%: s "
        f"{best.bag_interval[0]} to {best.bag_interval[1]})"
        for one in maps
        if (best := one.best) is not None
    )
    said = f"paper: s 4 to 8, r 0.2 to 0.4; law fitted to its tables: {said}"
    texts = []
    for group in found:
        row = next(rows_of(group.rows.sort_values("gain", ascending=False)))
        texts.append(
            f"{row['corpus']}: largest mean gain at {row['setting']} of "
            f"{number(len(group.rows), 'setting')}"
        )
    return Finding(said, "; ".join(texts), "; ".join(g.scale for g in found), "undecided")
