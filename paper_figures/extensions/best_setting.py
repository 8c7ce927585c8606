"""A map of the best (s, r): gain by the law, what it recommends, and the lowest published cell."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import published
from analysis.law.advice import Recommendation, recommend
from analysis.law.rows import TOKENS_PER_STEP
from analysis.law.superposition_law import published_law
from analysis.runs.run_row import rows_of
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


@figure(
    "best_setting",
    title="Map of the best (s, r)",
    published=["final_loss_grid"],
    needs=submit("bag-grid", "one-gpu"),
)
def best_setting(sources: Sources) -> Picture:
    """Above the law's maps, below the gains that were measured here."""
    advice, maps = _advice()
    found = [group for group in (group.plain() for group in sources.groups) if len(group.rows) > 2]
    found = sorted(found, key=lambda group: -len(group.rows))[: len(PLACES)]
    own = [group.rows.assign(source="measured", panel=group.label) for group in found]
    data = pd.concat([*map(_of_place, PLACES, advice), *own], ignore_index=True)
    data = data.reindex(columns=DATA)
    return Picture(
        caption="Gain over the baseline by the law of superposition (fitted to "
        f"{len(published_law().rows)} published runs with r < 1, one seed each). Line: within "
        f"{_run_noise():.0f} mnats of the best, the noise of one run. Dot: the best, bars: all s "
        "and r that the law does not show to be worse (95%), which do not cover the choice of the "
        "form. Cross: the lowest published cell. 3B lies outside what was fitted: no bars.",
        measured=f"Below, measured, on the same scale: gains of {number(len(found), 'group')} of "
        "runs; cross: the largest; a question mark: the 95% interval over seeds does not exclude "
        "zero."
        if found
        else "",
        data=data,
        folders=folders_of(found),
        draw=lambda: _figure(data, maps, advice),
        fits={
            _label(*place): asdict(best)
            for place, best in zip(PLACES, advice, strict=True)
            if best is not None
        },
        finding=_finding(advice, found),
    )


def _label(size: str, steps: int, table: int | None) -> str:
    return f"{size}, {steps // 1000}k steps" + ("" if table else ", extrapolated")


def _run_noise() -> float:
    """Standard deviation of a run about the law, mnats."""
    return 1000 * published_law().noise.of_a_run


@functools.cache
def _advice() -> tuple[list[Recommendation | None], list[pd.DataFrame]]:
    """What the law recommends where it was fitted, and its gains in mnats (r by s)."""
    law = published_law()
    places = [
        (published.PARAMS[size], float(steps * TOKENS_PER_STEP), table)
        for size, steps, table in PLACES
    ]
    maps = [1000 * law.gains(params, tokens, BAGS, RATIOS).T for params, tokens, _ in places]
    tables = [pd.DataFrame(gains, RATIOS, BAGS.astype(int)) for gains in maps]
    return [recommend(law, *place) if table else None for *place, table in places], tables


def _of_place(place: tuple[str, int, int | None], best: Recommendation | None) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    if best is not None:
        advised = {"bag_size": best.bag_size, "step_ratio": best.step_ratio, "gain": best.gain}
        bounds = dict(zip(("low", "high"), best.gain_interval, strict=True))
        rows.append({"source": "recommended by the law", **advised, **bounds})
    if place[2] is not None:
        grid = published.loss_grid(place[2])
        level = float(grid[grid["bag_size"] == 1]["loss"].iloc[0])
        cell = next(rows_of(grid.sort_values("loss")))
        lowest = {key: cell[key] for key in ("bag_size", "step_ratio")}
        gain = level - cell["loss"]
        rows.append({"source": "lowest published cell", **lowest, "gain": gain, "seeds": 1})
    return pd.DataFrame(rows).assign(panel=_label(*place))


def _figure(
    data: pd.DataFrame, maps: Sequence[pd.DataFrame], advice: Sequence[Recommendation | None]
) -> Figure:
    own = data[data["source"] == "measured"]
    measured = list(own.groupby("panel", sort=False))
    count = 2 if measured else 1
    drawn, rows = new_rows(PAGE, 2.2 * count + 0.2, [len(PLACES)] * count)
    top = max(1000 * own["gain"].max() if measured else 0.0, *(m.to_numpy().max() for m in maps))
    low = max(1000 * own["gain"].min() if measured else 0.0, -top)
    scale = (min(low, 0.0), top)
    for axes, place, gains, best in zip(rows[0], PLACES, maps, advice, strict=True):
        image = heat_map(axes, gains, *scale)
        _draw_best(axes, gains, best, data[data["panel"] == _label(*place)])
        axes.set_title(_label(*place))
    drawn.colorbar(image, ax=rows[0], label="gain by the law (mnats)", pad=0.01)
    for axes, (panel, cells) in zip(rows[-1] if measured else [], measured, strict=False):
        image = _draw_measured(axes, cells, scale)
        axes.set_title(str(panel))
    if measured:
        panels = rows[-1][: len(measured)]
        drawn.colorbar(image, ax=panels, label="measured (mnats)", pad=0.01)
        for axes in rows[-1][len(measured) :]:
            axes.set_axis_off()
    for row in rows:
        row[0].set_ylabel("step ratio r")
    entries: dict[str, Look] = {
        "best by the law, 95%": {"marker": "o", "markersize": 4, "linestyle": "-"},
        "best single cell of the grid": {"marker": "X", "markersize": 5},
        f"within {_run_noise():.0f} mnats of the best": {"linestyle": DASHED},
    }
    inked = {words: {"color": INK, **look} for words, look in entries.items()}
    key(drawn, inked, loc="outside lower center", ncols=3)
    return drawn


def _draw_best(
    axes: Axes, gains: pd.DataFrame, best: Recommendation | None, rows: pd.DataFrame
) -> None:
    def x(bags: Any) -> Any:
        return np.subtract(bags, BAGS[0]) + 0.5

    def y(ratios: Any) -> Any:
        return np.subtract(ratios, RATIOS[0]) / RATIOS[0] + 0.5

    look: Look = {"colors": [ON_MAP], "linewidths": 0.9, "linestyles": [DASHED]}
    look["levels"] = [gains.to_numpy().max() - _run_noise()]
    axes.contour(x(gains.columns), y(gains.index), gains, **look)
    if best is not None:
        at = (x(best.bag_size), y(best.step_ratio))
        axes.plot(x(best.bag_interval), [at[1]] * 2, color=ON_MAP, linewidth=1.0)
        axes.plot([at[0]] * 2, y(best.ratio_interval), color=ON_MAP, linewidth=1.0)
        axes.plot(*at, "o", color=ON_MAP, markersize=4.5, **EDGE)
    for row in rows_of(rows[rows["source"] == "lowest published cell"]):
        cell = (x(row["bag_size"]), y(row["step_ratio"]))
        axes.plot(*cell, "X", color=ON_MAP, markersize=5.5, **EDGE)
    axes.set_xticks(x([2, 4, 8, 12, 16]), ["2", "4", "8", "12", "16"])
    axes.set_yticks(y([0.1, 0.3, 0.5, 0.7]), ["0.1", "0.3", "0.5", "0.7"])
    axes.set_xlabel("bag size s")


def _draw_measured(axes: Axes, rows: pd.DataFrame, scale: tuple[float, float]) -> Any:
    """A cell per setting; a question mark where zero lies in its interval."""
    sure = rows["verdict"].isin(CLAIMED).map({True: "", False: "?"})
    texts = (1000 * rows["gain"]).map("{:.0f}".format).str.replace("-", "−") + sure
    cells = rows.assign(mnats=1000 * rows["gain"], text=texts).drop_duplicates(
        ["step_ratio", "bag_size"]
    )
    wide = cells.pivot(index="step_ratio", columns="bag_size", values="mnats")
    words = cells.pivot(index="step_ratio", columns="bag_size", values="text").fillna("")
    wide.index = pd.Index([f"{ratio:.2g}" for ratio in wide.index])
    image = heat_map(axes, wide, *scale, words if wide.size <= 40 else None)
    best = cells.sort_values("gain").iloc[-1]
    ratios, sizes = sorted(set(cells["step_ratio"])), sorted(set(cells["bag_size"]))
    at = (sizes.index(best["bag_size"]) + 0.5, ratios.index(best["step_ratio"]) + 0.85)
    axes.plot(*at, "X", color=ON_MAP, markersize=5.5, **EDGE)
    axes.set_xlabel("bag size s")
    axes.set_ylabel("")
    return image


def _finding(advice: Sequence[Recommendation | None], found: list[Group]) -> Finding:
    said = "; ".join(
        f"{_label(*place)}: s = {best.bag_size}, r = {best.step_ratio:.2f} (95%: s "
        f"{best.bag_interval[0]} to {best.bag_interval[1]})"
        for place, best in zip(PLACES, advice, strict=True)
        if best is not None
    )
    said = f"paper: s 4 to 8, r 0.2 to 0.4; law fitted to its tables: {said}"
    if not found:
        return Finding(said)
    texts = []
    for group in found:
        row = next(rows_of(group.rows.sort_values("gain", ascending=False)))
        texts.append(
            f"{row['corpus']}: largest mean gain at {row['setting']} of "
            f"{number(len(group.rows), 'setting')}"
        )
    return Finding(said, "; ".join(texts), "; ".join(g.scale for g in found), "undecided")
