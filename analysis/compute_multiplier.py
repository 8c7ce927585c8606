"""How much more compute the baseline needs for the same loss, as a function of loss."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from analysis import published
from analysis.answer import Answer
from analysis.chinchilla import (
    allocation,
    envelope,
    exponents,
    isoflop,
    leave_one_size_out,
    parametric,
)
from analysis.comparison import SETTING, eligible
from analysis.fitting import bootstrap
from analysis.fitting.objectives import Floats
from analysis.power_law import fit_power_law
from analysis.run_row import rows_of
from analysis.wording import setting_label
from tst_study.errors import UserError


def compute_multiplier(
    baseline: pd.DataFrame, method: pd.DataFrame, losses: int = 9, draws: int = 400
) -> pd.DataFrame:
    """Baseline FLOPs over method FLOPs at equal loss, over the losses that both reached.

    Both tables: flops, loss (nats, annealed runs), seed; two or more lengths each. Interpolated in
    log FLOPs between neighbouring lengths, never beyond the shortest or the longest. Columns:
    loss, baseline_flops, method_flops, multiplier, low, high: 95% over seeds drawn with
    replacement (None for one seed: no claim).

    Raises `UserError` where a longer run is not better or no loss was reached by both.
    """
    one, two = _curve(baseline, "baseline"), _curve(method, "method")
    low = max(one[1].min(), two[1].min())
    high = min(one[1].max(), two[1].max())
    if low >= high:
        raise UserError(
            f"no loss reached by both: baseline {one[1].min():.4f}–{one[1].max():.4f}, method "
            f"{two[1].min():.4f}–{two[1].max():.4f}; run lengths that overlap"
        )
    grid = np.linspace(high, low, losses)
    first, second = _at(one, grid), _at(two, grid)
    seeds = sorted(set(baseline["seed"]) & set(method["seed"]))
    drawn = _redrawn(baseline, method, grid, seeds, draws) if len(seeds) > 1 else None
    rows = []
    for i, loss in enumerate(grid):
        row: dict[str, Any] = {
            "loss": float(loss),
            "baseline_flops": float(np.exp(first[i])),
            "method_flops": float(np.exp(second[i])),
            "multiplier": float(np.exp(first[i] - second[i])),
            "low": None,
            "high": None,
        }
        if drawn is not None:
            usable = drawn[np.isfinite(drawn[:, i]), i]
            if len(usable) > draws // 2:
                ends = np.exp(np.quantile(usable, [0.025, 0.975]))
                row |= {"low": float(ends[0]), "high": float(ends[1])}
        rows.append(row)
    return pd.DataFrame(rows)


def _curve(runs: pd.DataFrame, name: str) -> tuple[Floats, Floats]:
    """(log flops, mean loss over seeds), in order of flops."""
    means = runs.groupby("flops")["loss"].mean().sort_index()
    if len(means) < 2:
        raise UserError(
            f"the {name} has one length only: a multiplier needs two or more of each arm"
        )
    if any(after >= before for before, after in itertools.pairwise(means)):
        raise UserError(
            f"longer runs of the {name} are not always better, so no compute belongs to a loss"
        )
    return np.log(means.index.to_numpy(dtype=float)), means.to_numpy(dtype=float)


def _at(curve: tuple[Floats, Floats], losses: Floats) -> Floats:
    """log FLOPs at losses within the curve's range, NaN beyond."""
    return np.interp(-losses, -curve[1], curve[0], left=np.nan, right=np.nan)


def _redrawn(
    baseline: pd.DataFrame, method: pd.DataFrame, grid: Floats, seeds: list[int], draws: int
) -> Floats:
    """log multipliers of redrawn seeds, shape (draws, losses)."""
    random = np.random.default_rng(0)
    tables = [
        runs[runs["seed"].isin(seeds)].pivot_table(index="flops", columns="seed", values="loss")
        for runs in (baseline, method)
    ]
    found = np.full((draws, len(grid)), np.nan)
    for draw in range(draws):
        chosen = random.choice(seeds, len(seeds))
        logs = []
        for table in tables:
            losses = table[chosen].mean(axis=1).to_numpy(dtype=float)
            if (np.diff(losses) >= 0).any():
                break
            logs.append(_at((np.log(table.index.to_numpy(dtype=float)), losses), grid))
        if len(logs) == 2:
            found[draw] = logs[0] - logs[1]
    return found


def compute_answer(
    runs: pd.DataFrame | None = None, inputs: dict[str, str] | None = None
) -> Answer:
    """`tst-study analyse compute`: multipliers, power laws of baselines, Chinchilla's approaches.

    What the runs do not allow is a sentence that says what is missing.
    """
    table = published.runs() if runs is None else runs
    if runs is None:
        # Table 1 prints some of the grids' runs again; the 3B and the mixture are only there.
        table = table[table["source"] != "Table 2"]
    kept, excluded = eligible(table)
    kept = kept.assign(loss=kept["nats_per_token"].astype(float))
    tables: dict[str, pd.DataFrame] = {}
    said: list[str] = []
    multipliers: list[pd.DataFrame] = []
    for keys, family in kept.groupby(["family", "learning_rate", "eval_set"], sort=True):
        baseline = family[family["method"] == "baseline"]
        label = str(keys[0])
        if baseline["steps"].nunique() >= 2:
            said.append(_power_law_sentence(label, baseline))
        for name, found in _multipliers(baseline, family[family["method"] != "baseline"]):
            if isinstance(found, str):
                said.append(f"{label}, {name}: {found}.")
            else:
                multipliers.append(found.assign(family=label, setting=name))
    if multipliers:
        order = ["family", "setting", "loss", "multiplier", "low", "high"]
        tables["Compute multiplier: baseline FLOPs over FLOPs at equal loss"] = pd.concat(
            multipliers, ignore_index=True
        )[order]
    baselines = kept[kept["method"] == "baseline"]
    points = pd.DataFrame(
        {
            "params": baselines["active_parameters"].astype(float),
            "tokens": baselines["latent_tokens"].astype(float),
            "flops": baselines["flops"].astype(float),
            "loss": baselines["loss"],
        }
    )
    # Sizes are compared on one text and one kind of model.
    kinds = [baselines["corpus"], baselines["eval_set"], baselines["experts"].isna()]
    for (corpus, *_), own in points.groupby(kinds, sort=True):
        for name, approach in _APPROACHES.items():
            try:
                tables[f"Chinchilla, {name}, {corpus}"] = approach(own)
            except UserError as error:
                said.append(f"Chinchilla, {name}, {corpus}: {error}.")
    return Answer(
        "compute",
        tables,
        tuple(said),
        inputs or published.fingerprints("headline_runs", "final_loss_grid"),
        pd.DataFrame(excluded),
    )


def _multipliers(
    baseline: pd.DataFrame, superposed: pd.DataFrame
) -> list[tuple[str, pd.DataFrame | str]]:
    found: list[tuple[str, pd.DataFrame | str]] = []
    keys = [name for name in SETTING if name != "superposed_steps"]
    rounded = superposed.assign(step_ratio=superposed["step_ratio"].astype(float).round(2))
    for _, members in rounded.groupby(keys, sort=False, dropna=False):
        if members["steps"].nunique() < 2:
            continue
        name = setting_label(next(rows_of(members)))
        try:
            found.append((name, compute_multiplier(baseline, members, losses=3)))
        except UserError as error:
            found.append((name, str(error)))
    return found


def _power_law_sentence(label: str, baseline: pd.DataFrame) -> str:
    flops, losses = baseline["flops"].to_numpy(dtype=float), baseline["loss"].to_numpy(dtype=float)
    try:
        law = fit_power_law(flops, losses)
    except UserError as error:
        return f"{label}, baseline: {error}."
    low, high = law.floor_interval()
    bounds = " to ".join("unbounded" if end is None else f"{end:.3f}" for end in (low, high))
    return (
        f"{label}, baseline: loss falls as C^−{law.exponent:.3f} towards {law.floor:.3f} nats "
        f"(floor, 95% by profile: {bounds})."
    )


def _approach_1(points: pd.DataFrame) -> pd.DataFrame:
    return envelope(points).table


def _approach_2(points: pd.DataFrame) -> pd.DataFrame:
    return isoflop(points).table


def _approach_3(points: pd.DataFrame) -> pd.DataFrame:
    found = parametric(points)
    drawn = bootstrap(found, 400)
    budgets = np.geomspace(points["flops"].min(), points["flops"].max(), 5)
    share = exponents(found, drawn)["params"]
    return allocation(found, budgets, drawn).assign(
        params_exponent=share[0], exponent_low=share[1], exponent_high=share[2]
    )


def _left_out(points: pd.DataFrame) -> pd.DataFrame:
    parametric(points)  # says what is missing, if something is
    return leave_one_size_out(points)


_APPROACHES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "approach 1": _approach_1,
    "approach 2": _approach_2,
    "approach 3": _approach_3,
    "approach 3 predicting each size from the others": _left_out,
}
