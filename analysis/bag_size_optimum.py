"""The best bag size and the best step ratio of every curve of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from analysis import published
from analysis.answer import Answer, fingerprint_of
from analysis.bag_size_trends import GROUP, TREND_RATIOS, trends, weights_compared
from analysis.comparison import Comparison
from analysis.optimum import FORM_NAMES, Along, FormName, optimum
from tst_study.errors import UserError

WINDOWS: tuple[float | None, ...] = (0.7, 1.1, None)
"""Around the lowest point: a factor of 2, of 3, and all values."""
LEAST_VALUES = 4
MEASURED = ("best", "low", "high", "flat_low", "flat_high")
"""Of an optimum, in the unit of s or of r."""


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
            digits = dict.fromkeys(MEASURED, 1 if name == "s" else 2)
            shown = _shown(fitted, other).round(digits)
            tables[f"Best {name} (asymmetric form, all values)"] = shown
            tables[f"Best {name} by form and window, medians"] = _by_form(fitted).round(digits)
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


def _shown(table: pd.DataFrame, other: str) -> pd.DataFrame:
    chosen = table[(table["form"] == "asymmetric") & (table.get("window", "all") == "all")]
    names = [*GROUP, other, *MEASURED, "noise", "sentence"]
    return chosen[[name for name in names if name in chosen]].reset_index(drop=True)


def _by_form(table: pd.DataFrame) -> pd.DataFrame:
    middle = table
    if "step_ratio" in table and table["step_ratio"].between(0.15, 0.55).any():
        middle = table[table["step_ratio"].between(0.15, 0.55)]
    kept = middle.groupby([*GROUP, "form", "window"], sort=True)
    return kept.agg(
        best=("best", "median"), curves=("best", "size"), edges=("edge", lambda e: (e != "").sum())
    ).reset_index()
