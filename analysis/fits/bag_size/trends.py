"""What moves the best bag size (r, model size, length, weights), with noise as the grids have it:
one error per trunk for all r at one s."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd

from analysis.checks import Floats
from analysis.fits.bag_size.optimum import coordinate, places
from analysis.fits.solver.uncertainty import roughness

GROUP = ("size", "steps", "weighting")
TREND_RATIOS = (0.2, 0.3, 0.4, 0.5)
_DRAWS = 1000


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


def trends(grid: pd.DataFrame) -> pd.DataFrame:
    """log s* against r within a group, and between groups (size, length, weights).

    Noise is redrawn as the grids have it, one error per trunk for all r at one s. Rows: question,
    change (factor of s*), low, high, and at how many draws an optimum was at an edge.
    """
    tried = grid[grid["bag_size"] > 1]
    # A wider range of s would move a parabola's minimum by itself.
    largest = tried.groupby(list(GROUP))["bag_size"].max().min()
    groups = dict(iter(tried[tried["bag_size"] <= largest].groupby(list(GROUP), sort=True)))
    random = np.random.default_rng(0)
    drawn = {keys: _drawn(rows, random) for keys, rows in groups.items()}
    rows: list[dict[str, Any]] = []
    ratios = np.array(TREND_RATIOS)
    for keys, logs in drawn.items():
        name = f"{keys[0]}, {keys[1]:,} steps, {str(keys[2]).replace('_', '-')}"
        centred = ratios - ratios.mean()
        slope = (logs * centred).sum(axis=1) / (centred**2).sum()
        rows.append(_trend(f"{name}: r from 0.2 to 0.4", 0.2 * slope))
    for one, two in itertools.combinations(drawn, 2):
        differing = [k for k in range(3) if one[k] != two[k]]
        if len(differing) == 1:
            change = drawn[two].mean(axis=1) - drawn[one].mean(axis=1)
            said = ", ".join(str(one[k]) for k in range(3) if k not in differing)
            k = differing[0]
            rows.append(_trend(f"{said}: {one[k]} → {two[k]}", change))
    return pd.DataFrame(rows)


def _drawn(grid: pd.DataFrame, random: np.random.Generator) -> Floats:
    """log s* of redrawn grids, shape (_DRAWS + 1, ratios); the first row is the grid as it is."""
    trunk, cell = shared_noise(grid)
    bags = np.sort(grid["bag_size"].unique()).astype(float)
    shared = trunk * random.standard_normal((_DRAWS + 1, len(bags)))
    shared[0] = 0.0
    found = np.full((_DRAWS + 1, len(TREND_RATIOS)), np.nan)
    for column, ratio in enumerate(TREND_RATIOS):
        curve = grid[np.isclose(grid["step_ratio"], ratio)].sort_values("bag_size")
        at = np.searchsorted(bags, curve["bag_size"].to_numpy(dtype=float))
        x = coordinate(bags[at], "bag_size")
        y = curve["loss"].to_numpy()
        if len(x) < 4:
            continue
        own = cell * random.standard_normal((_DRAWS + 1, len(x)))
        own[0] = 0.0
        noisy = (y + shared[:, at] + own).T
        found[:, column] = np.log(places(x, noisy, "bag_size", "parabola"))
    return found


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
