"""The best bag size and the best step ratio: per curve, and against size, length, r and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from analysis import published
from analysis.answer import Answer, fingerprint_of
from analysis.comparison import Comparison
from analysis.fitting.objectives import Floats
from analysis.optimum import FORM_NAMES, Along, FormName, coordinate, optimum, places, roughness
from tst_study.errors import UserError

GROUP = ("size", "steps", "weighting")
WINDOWS: tuple[float | None, ...] = (0.7, 1.1, None)
"""Around the lowest point: a factor of 2, of 3, and all values."""
TREND_RATIOS = (0.2, 0.3, 0.4, 0.5)


def grid_of_runs(comparison: Comparison) -> pd.DataFrame:
    """Compared runs as a grid: loss is minus the mean paired gain over seeds, `noise` its standard
    error where seeds tell it (NaN else), so that seeds' luck drops out of the curve."""
    plain = comparison.table[comparison.table["mode"] == "full"]
    rows = pd.DataFrame(
        {
            "size": plain["group"],
            "steps": plain["steps"],
            "weighting": plain["weighting"],
            "step_ratio": plain["step_ratio"].round(4),
            "bag_size": plain["bag_size"],
            "loss": -plain["gain"],
            "seeds": plain["seeds"],
            "noise": plain["deviation"].astype(float) / np.sqrt(plain["seeds"].astype(float)),
        }
    )
    return rows.reset_index(drop=True)


def optima(
    grid: pd.DataFrame,
    along: Along = "bag_size",
    *,
    forms: Sequence[FormName] = FORM_NAMES,
    windows: Sequence[float | None] = WINDOWS,
) -> pd.DataFrame:
    """One row per curve, form and window: the fields of `Optimum` beside what names the curve.

    A curve: all s at one (size, steps, weighting, r), or with `along="step_ratio"` all r at one s.
    `sentence` takes the place of numbers where a curve has too few points.
    """
    other = "step_ratio" if along == "bag_size" else "bag_size"
    tried = grid[(grid["bag_size"] > 1) & (grid["step_ratio"] > 0)]
    rows: list[dict[str, Any]] = []
    for keys, curve in tried.groupby([*GROUP, other], sort=True):
        named = dict(zip((*GROUP, other), keys, strict=True))
        noise = _known_noise(curve)
        for form in forms:
            for window in windows:
                try:
                    found = optimum(
                        curve[along].to_numpy(dtype=float),
                        curve["loss"].to_numpy(dtype=float),
                        along=along,
                        form=form,
                        window=window,
                        noise=noise,
                    )
                except UserError as error:
                    if window is None or len(curve) < 4:
                        rows.append({**named, "form": form, "sentence": str(error)})
                    continue
                rows.append({**named, **asdict(found), "sentence": found.edge})
    if not rows:
        raise UserError(
            "no superposed run beside a baseline: an optimum needs one r at four or more s (or "
            "one s at four or more r)"
        )
    return pd.DataFrame(rows)


def shared_noise(grid: pd.DataFrame) -> tuple[float, float]:
    """(trunk, cell) standard deviations of one group's grid, free of any law: roughness along s of
    the mean over r ≤ 0.7, and of what is left beside it."""
    table = grid[(grid["bag_size"] > 1) & grid["step_ratio"].between(0.05, 0.75)].pivot_table(
        index="step_ratio", columns="bag_size", values="loss"
    )
    table = table.dropna(axis=1)
    if table.shape[1] < 4:
        return 0.0, 0.0
    means = table.mean(axis=0).to_numpy()
    rest = table.to_numpy() - means
    # The first second difference is curvature of the law, not noise.
    cell = float(np.sqrt(np.mean([roughness(row[1:]) ** 2 for row in rest])))
    return roughness(means[1:]), cell


def trends(grid: pd.DataFrame, *, form: FormName = "parabola", draws: int = 1000) -> pd.DataFrame:
    """log s* against r within a group, and between groups (size, length, weights).

    Noise is redrawn as the grids have it, one error per trunk for all r at one s. Rows: question,
    change (factor of s*), low, high, and at how many draws an optimum was at an edge.
    """
    tried = grid[grid["bag_size"] > 1]
    # A wider range of s would move a parabola's minimum by itself.
    largest = tried.groupby(list(GROUP))["bag_size"].max().min()
    groups = dict(iter(tried[tried["bag_size"] <= largest].groupby(list(GROUP), sort=True)))
    random = np.random.default_rng(0)
    drawn = {keys: _drawn(rows, form, draws, random) for keys, rows in groups.items()}
    rows: list[dict[str, Any]] = []
    ratios = np.array(TREND_RATIOS)
    for keys, logs in drawn.items():
        name = f"{keys[0]}, {keys[1]:,} steps, {str(keys[2]).replace('_', '-')}"
        slope = _slopes(ratios, logs)
        rows.append(_trend(f"{name}: r from 0.2 to 0.4", 0.2 * slope))
    names = list(drawn)
    for i, one in enumerate(names):
        for two in names[i + 1 :]:
            differing = [k for k in range(3) if one[k] != two[k]]
            if len(differing) != 1:
                continue
            change = drawn[two].mean(axis=1) - drawn[one].mean(axis=1)
            said = ", ".join(str(one[k]) for k in range(3) if k not in differing)
            k = differing[0]
            rows.append(_trend(f"{said}: {one[k]} → {two[k]}", change))
    return pd.DataFrame(rows)


def _drawn(grid: pd.DataFrame, form: FormName, draws: int, random: np.random.Generator) -> Floats:
    """log s* of redrawn grids, shape (draws + 1, ratios); the first row is the grid as it is."""
    trunk, cell = shared_noise(grid)
    bags = np.sort(grid["bag_size"].unique()).astype(float)
    shared = trunk * random.standard_normal((draws + 1, len(bags)))
    shared[0] = 0.0
    found = np.full((draws + 1, len(TREND_RATIOS)), np.nan)
    for column, ratio in enumerate(TREND_RATIOS):
        curve = grid[np.isclose(grid["step_ratio"], ratio)].sort_values("bag_size")
        at = np.searchsorted(bags, curve["bag_size"].to_numpy(dtype=float))
        x = coordinate(bags[at], "bag_size")
        y = curve["loss"].to_numpy()
        if len(x) < 4:
            continue
        own = cell * random.standard_normal((draws + 1, len(x)))
        own[0] = 0.0
        noisy = (y + shared[:, at] + own).T
        found[:, column] = np.log(places(x, noisy, "bag_size", form))
    return found


def _slopes(ratios: Floats, logs: Floats) -> Floats:
    centred = ratios - ratios.mean()
    slopes: Floats = (logs * centred).sum(axis=1) / (centred**2).sum()
    return slopes


def _trend(question: str, changes: Floats) -> dict[str, Any]:
    usable = changes[1:][np.isfinite(changes[1:])]
    edge = 1.0 - len(usable) / max(1, len(changes) - 1)
    row: dict[str, Any] = {"question": question, "factor": None, "low": None, "high": None}
    if np.isfinite(changes[0]) and edge < 0.5:
        low, high = np.quantile(usable, [0.025, 0.975])
        row.update(
            factor=float(np.exp(changes[0])), low=float(np.exp(low)), high=float(np.exp(high))
        )
    return {**row, "at_edge": edge}


def _known_noise(curve: pd.DataFrame) -> float | None:
    if "noise" not in curve or curve["noise"].isna().all():
        return None
    return float(np.sqrt((curve["noise"].dropna() ** 2).mean()))


def bag_size_answer(
    grid: pd.DataFrame | None = None, inputs: dict[str, str] | None = None
) -> Answer:
    """`tst-study analyse bag-size`: s* per curve, r* per bag, and what moves s*."""
    given = published.loss_grid() if grid is None else grid
    if inputs is None:
        inputs = (
            published.fingerprints("final_loss_grid")
            if grid is None
            else {"grid": fingerprint_of(given.astype(str).to_dict("list"))}
        )
    bags = optima(given, "bag_size")
    ratios = optima(given, "step_ratio")
    tables = {
        "Best s (asymmetric form, all values)": _shown(bags, "step_ratio"),
        "Best r (asymmetric form, all values)": _shown(ratios, "bag_size"),
        "Best s by form and window, medians over r = 0.2 … 0.5": _by_form(bags),
    }
    if given[given["bag_size"] > 1].groupby(list(GROUP)).ngroups > 0 and len(given) > 50:
        tables["What moves the best s (factor on the parabola's optimum, 95%)"] = trends(given)
    edges = int((bags["sentence"] != "").sum())
    noise = "seeds" if "seeds" in set(bags.get("noise_from", [])) else "residuals"
    return Answer(
        "bag-size",
        tables,
        (
            f"{edges} of {len(bags)} fits along s end at an edge or have too few values, and give "
            "no number.",
            "Noise from seeds."
            if noise == "seeds"
            else "Noise is what each form leaves of its curve: no run was repeated with a seed.",
        ),
        inputs,
    )


def _shown(table: pd.DataFrame, other: str) -> pd.DataFrame:
    chosen = table[(table["form"] == "asymmetric") & (table.get("window", "all") == "all")]
    names = [*GROUP, other, "best", "low", "high", "flat_low", "flat_high", "noise", "sentence"]
    return chosen[[name for name in names if name in chosen]].reset_index(drop=True)


def _by_form(table: pd.DataFrame) -> pd.DataFrame:
    if "best" not in table:
        return table
    middle = table[table["step_ratio"].between(0.15, 0.55)]
    kept = middle.groupby([*GROUP, "form", "window"], sort=True)
    return kept.agg(
        best=("best", "median"), curves=("best", "size"), edges=("edge", lambda e: (e != "").sum())
    ).reset_index()
