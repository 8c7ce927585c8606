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
LEAST_VALUES = 4
TREND_RATIOS = (0.2, 0.3, 0.4, 0.5)


def grid_of_runs(comparison: Comparison) -> pd.DataFrame:
    """Compared runs as a grid: loss is minus the mean paired gain over seeds, `noise` its standard
    error where seeds tell it (NaN else), so that seeds' luck drops out of the curve."""
    plain = comparison.table[comparison.table["mode"] == "full"]
    rows = pd.DataFrame(
        {
            "size": _labels(plain),
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


def _labels(table: pd.DataFrame) -> pd.Series:
    """The corpus, and the group's key where several groups share corpus and length."""
    groups = table.groupby(["corpus", "steps"])["group"].transform("nunique")
    return table["corpus"].where(groups == 1, table["corpus"] + " " + table["group"].str[:6])


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
        if len(curve) < LEAST_VALUES:
            few = f"{len(curve)} {along.replace('_', ' ')}s: an optimum needs {LEAST_VALUES}"
            rows.append({**named, "form": "", "points": len(curve), "sentence": few})
            continue
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
                except UserError:
                    continue  # a narrow window around a lowest point at the end of the values
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
    tables, said = {}, []
    for table, name, other in ((bags, "s", "step_ratio"), (ratios, "r", "bag_size")):
        fitted = table[table["form"] != ""]
        if len(fitted):
            tables[f"Best {name} (asymmetric form, all values)"] = _shown(fitted, other)
            tables[f"Best {name} by form and window, medians"] = _by_form(fitted)
            edges = int((fitted["sentence"] != "").sum())
            said.append(f"{edges} of {len(fitted)} fits along {name} end at an edge: no number.")
        few = table[table["form"] == ""]
        if len(few):
            said.append(
                f"{len(few)} curves along {name} have fewer than {LEAST_VALUES} values: no optimum."
            )
    ratios_tried = given.loc[given["bag_size"] > 1, "step_ratio"]
    if all(np.isclose(ratios_tried, ratio).any() for ratio in TREND_RATIOS):
        tables["What moves the best s (factor on the parabola's optimum, 95%)"] = trends(given)
        compared = weights_compared(given)
        if len(compared):
            tables["Uniform minus power-law weights, nats, mean over r = 0.2 … 0.5"] = compared
    seeds = "seeds" in set(bags.get("noise_from", []))
    said.append(
        "Noise is that of seeds."
        if seeds
        else "Noise is what each form leaves of its curve: no run was repeated with a seed."
    )
    return Answer("bag-size", tables, tuple(said), inputs)


def weights_compared(grid: pd.DataFrame) -> pd.DataFrame:
    """Loss under uniform minus loss under power-law weights by s, where both were run.

    Columns: size, steps, bag_size, difference (positive: power law is better), low, high: 95% from
    the noise that the two trunks carry, each estimated from its own grid.
    """
    rows = []
    middle = grid[(grid["bag_size"] > 1) & grid["step_ratio"].between(0.15, 0.55)]
    for (size, steps), own in middle.groupby(["size", "steps"], sort=True):
        arms = {name: own[own["weighting"] == name] for name in ("uniform", "power_law")}
        if any(arm.empty for arm in arms.values()):
            continue
        whole = grid[(grid["size"] == size) & (grid["steps"] == steps)]
        trunks = [shared_noise(whole[whole["weighting"] == name])[0] for name in arms]
        half = 1.96 * float(np.hypot(trunks[0], trunks[1]))
        means = [arm.groupby("bag_size")["loss"].mean() for arm in arms.values()]
        for bag, difference in (means[0] - means[1]).dropna().items():
            rows.append(
                {
                    "size": size,
                    "steps": steps,
                    "bag_size": bag,
                    "difference": difference,
                    "low": difference - half,
                    "high": difference + half,
                }
            )
    return pd.DataFrame(rows)


def _shown(table: pd.DataFrame, other: str) -> pd.DataFrame:
    chosen = table[(table["form"] == "asymmetric") & (table.get("window", "all") == "all")]
    names = [*GROUP, other, "best", "low", "high", "flat_low", "flat_high", "noise", "sentence"]
    return chosen[[name for name in names if name in chosen]].reset_index(drop=True)


def _by_form(table: pd.DataFrame) -> pd.DataFrame:
    middle = table
    if "step_ratio" in table and table["step_ratio"].between(0.15, 0.55).any():
        middle = table[table["step_ratio"].between(0.15, 0.55)]
    kept = middle.groupby([*GROUP, "form", "window"], sort=True)
    return kept.agg(
        best=("best", "median"), curves=("best", "size"), edges=("edge", lambda e: (e != "").sum())
    ).reset_index()
