"""The best bag size and the best step ratio of every curve of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from analysis import published
from analysis.answer import Answer
from analysis.checks import needs_columns
from analysis.fits.bag_size.optimum import FORM_NAMES, LEAST_VALUES, Along, Asked, optimum
from analysis.fits.bag_size.trends import GROUP, TREND_RATIOS, trends, weights_compared
from analysis.tables.columns import rows_of
from analysis.tables.eligible import over_shared_seeds
from analysis.verdict.comparison import Comparison
from tst_study.config.superposition_setting import SuperpositionSetting
from tst_study.errors import UserError

_CELL = [*GROUP, "step_ratio", "bag_size"]
WINDOWS: tuple[float | None, ...] = (0.7, 1.1, None)
"""Around the lowest point: a factor of 2, of 3, and all values."""


_NOTHING = (
    "no superposed run beside a baseline: an optimum needs one r at four or more s (or one s at "
    "four or more r)"
)


def grid_of_runs(comparison: Comparison) -> pd.DataFrame:
    """Compared runs of the plain method as a grid, one row per cell and seed: loss is minus the
    paired gain, so that a seed's luck drops out."""
    rows = rows_of(comparison.pairs)
    plain = [SuperpositionSetting.of_row(row).is_plain_but("weighting") for row in rows]
    pairs = comparison.pairs.loc[plain]
    if pairs.empty:
        raise UserError(_NOTHING)
    pairs = pairs.assign(size=_labels(pairs), step_ratio=pairs["step_ratio"].round(4))
    return pairs.assign(loss=-pairs["gain"])[[*_CELL, "seed", "loss"]]


def _labels(pairs: pd.DataFrame) -> pd.Series:
    """The corpus; where several groups share corpus and length the group's key, and where a group
    has several the learning rate and the held-out text."""
    groups = pairs.groupby(["corpus", "steps"])["group"].transform("nunique")
    rates = pairs.groupby("group")["learning_rate"].transform("nunique")
    texts = pairs.groupby("group")["eval_set"].transform("nunique")
    label = pairs["corpus"].where(groups == 1, pairs["corpus"] + " " + pairs["group"].str[:6])
    label = label.where(rates == 1, label + pairs["learning_rate"].map(" at {:g}".format))
    return label.where(texts == 1, label + " on " + pairs["eval_set"])


def optima(
    grid: pd.DataFrame,
    along: Along = "bag_size",
    *,
    forms: Sequence[Asked] = ("both", *FORM_NAMES),
    windows: Sequence[float | None] = WINDOWS,
) -> pd.DataFrame:
    """One row per curve, form and window: the fields of `Optimum` beside what names the curve.

    A curve: all s at one (size, steps, weighting, r), or with `along="step_ratio"` all r at one s.
    Where the grid has a column `seed`, of the seeds that every value of a curve has. `sentence`
    takes the place of numbers where a curve has too few points or its optimum is not determined.
    """
    needs_columns(grid, (*GROUP, "bag_size", "step_ratio", "loss"), "grid")
    other = "step_ratio" if along == "bag_size" else "bag_size"
    tried = grid[(grid["bag_size"] > 1) & (grid["step_ratio"] > 0)]
    rows: list[dict[str, Any]] = []
    for keys, curve in tried.groupby([*GROUP, other], sort=True):
        named = dict(zip((*GROUP, other), keys, strict=True))
        losses = _by_seed(curve, along)
        if len(losses) < LEAST_VALUES:
            few = f"{len(losses)} {along.replace('_', ' ')}s: an optimum needs {LEAST_VALUES}"
            rows.append({**named, "form": "", "points": len(losses), "sentence": few})
            continue
        for form in forms:
            for window in windows:
                try:
                    found = optimum(
                        losses.index.to_numpy(dtype=float),
                        losses.to_numpy(dtype=float),
                        along=along,
                        form=form,
                        window=window,
                    )
                except UserError:
                    continue  # a narrow window around a lowest point at the end of the values
                row = {**named, **asdict(found), "asked": form, "sentence": found.edge}
                rows.append(row)
    if not rows:
        raise UserError(_NOTHING)
    return pd.DataFrame(rows)


def _by_seed(curve: pd.DataFrame, along: Along) -> pd.DataFrame:
    """Losses by value and seed; one column of means where the values share no seed."""
    if "seed" not in curve:
        return curve.set_index(along)[["loss"]]
    losses = over_shared_seeds(curve, along, "loss")
    return losses.mean(axis=1).to_frame() if losses.isna().any(axis=None) else losses


def bag_size_answer(
    grid: pd.DataFrame | None = None, inputs: dict[str, str] | None = None
) -> Answer:
    """`tst-study analyse bag-size`: s* per curve, r* per bag, and what moves s*."""
    given = published.loss_grid() if grid is None else grid
    bags = optima(given, "bag_size")
    ratios = optima(given, "step_ratio")
    tables, said = {}, []
    for table, name, other in ((bags, "s", "step_ratio"), (ratios, "r", "bag_size")):
        fitted = table[table["form"] != ""]
        if len(fitted):
            tables[f"Best {name} (both forms, all values)"] = _shown(fitted, other)
            tables[f"Best {name} by form and window, medians"] = _by_form(fitted)
            edges = int((fitted["sentence"] != "").sum())
            said.append(
                f"{edges} of {len(fitted)} fits along {name} end at an edge or are not determined: "
                "no number."
            )
        few = table[table["form"] == ""]
        if len(few):
            said.append(
                f"{len(few)} curves along {name} have fewer than {LEAST_VALUES} values: no optimum."
            )
    ratios_tried = given.loc[given["bag_size"] > 1, "step_ratio"]
    if all(np.isclose(ratios_tried, ratio).any() for ratio in TREND_RATIOS):
        means = given.groupby(_CELL)[["loss"]].mean().reset_index() if "seed" in given else given
        tables["What moves the best s (factor on the parabola's optimum, 95%)"] = trends(means)
        compared = weights_compared(means)
        if len(compared):
            tables["Uniform minus power-law weights, nats, mean over r = 0.2 … 0.5"] = compared
    noise = {*bags.get("noise_from", []), *ratios.get("noise_from", [])}
    if "seeds" in noise:
        said.append("Noise is that of seeds, where all values of a curve share two or more.")
    elif "residuals" in noise:
        said.append(
            "Noise is what each form leaves of its curve: no two seeds were run at all its values."
        )
    inputs = inputs or published.fingerprints("final_loss_grid")
    return Answer("bag-size", tables, tuple(said), inputs)


def _shown(table: pd.DataFrame, other: str) -> pd.DataFrame:
    chosen = table[(table["asked"] == "both") & (table.get("window", "all") == "all")]
    names = [*GROUP, other, "best", "low", "high", "flat_low", "flat_high", "form", "sentence"]
    return chosen[[name for name in names if name in chosen]].reset_index(drop=True)


def _by_form(table: pd.DataFrame) -> pd.DataFrame:
    middle = table
    if "step_ratio" in table and table["step_ratio"].between(0.15, 0.55).any():
        middle = table[table["step_ratio"].between(0.15, 0.55)]
    kept = middle.groupby([*GROUP, "asked", "window"], sort=True)
    return kept.agg(
        best=("best", "median"), curves=("best", "size"), edges=("edge", lambda e: (e != "").sum())
    ).reset_index()
