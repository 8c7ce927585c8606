"""Forms of the law of superposition compared by what they predict, not by what they fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.superposition_forms import FORMS, Form, columns
from analysis.superposition_law import Law, fit_law, law_rows


@dataclass(frozen=True)
class Split:
    """Rows to fit and rows to predict."""

    name: str
    fitted: Callable[[pd.DataFrame], pd.Series]
    predicted: Callable[[pd.DataFrame], pd.Series]


SPLITS: tuple[Split, ...] = (
    Split(
        "270M → 600M",
        lambda rows: rows["size"] == "270M",
        lambda rows: (rows["size"] == "600M") & (rows["weighting"] == "uniform"),
    ),
    Split(
        "270M → 600M, power-law weights",
        lambda rows: rows["size"] == "270M",
        lambda rows: rows["weighting"] == "power_law",
    ),
    Split(
        "uniform → power-law weights",
        lambda rows: rows["weighting"] == "uniform",
        lambda rows: rows["weighting"] == "power_law",
    ),
    Split(
        "r ≤ 0.5 → r = 0.6 … 0.8",
        lambda rows: rows["step_ratio"] <= 0.5,
        lambda rows: rows["step_ratio"].between(0.55, 0.85),
    ),
    Split(
        "r ≤ 0.5 → r = 0.9",
        lambda rows: rows["step_ratio"] <= 0.5,
        lambda rows: rows["step_ratio"] > 0.85,
    ),
    Split(
        "s ≤ 6 → s > 6",
        lambda rows: rows["bag_size"] <= 6,
        lambda rows: rows["bag_size"] > 6,
    ),
)


def predicted_gains(law: Law, rows: pd.DataFrame) -> pd.Series:
    """Gains of the given rows by a law fitted to others."""
    names = ("params", "steps", "bag_size", "step_ratio", "targets")
    params, steps, bags, ratios, targets = (rows[name].to_numpy(dtype=float) for name in names)
    gains = law.form.gain(law.values, columns(params, steps, bags, ratios, targets))
    return pd.Series(gains, index=rows.index)


def observed_gains(rows: pd.DataFrame) -> pd.Series:
    """Baseline of the same size and length, minus loss."""
    baselines = rows[rows["bag_size"] == 1].set_index(["size", "steps"])["loss"]
    keys = pd.MultiIndex.from_frame(rows[["size", "steps"]])
    return pd.Series(baselines.reindex(keys).to_numpy() - rows["loss"].to_numpy(), rows.index)


def held_out(
    form: str | Form,
    rows: pd.DataFrame | None = None,
    splits: Sequence[Split] = SPLITS,
    whole: Sequence[Mapping[str, float]] = (),
) -> pd.DataFrame:
    """Prediction errors of gains, nats: form, split, fitted, predicted (numbers of runs), rmse,
    bias (mean of predicted − observed), largest, failures.

    Gains, not losses, because the baseline of what is predicted is known to whoever asks; its own
    noise is in the error.
    """
    rows = law_rows() if rows is None else rows
    observed, found = observed_gains(rows), []
    for split in splits:
        known = rows[split.fitted(rows)]
        out = rows[split.predicted(rows) & (rows["bag_size"] > 1)]
        law = fit_law(known.reset_index(drop=True), form, strict=False, whole=whole)
        error = predicted_gains(law, out) - observed[out.index]
        found.append(
            {
                "form": law.form.name,
                "split": split.name,
                "fitted": len(known),
                "predicted": len(out),
                "rmse": float(np.sqrt((error**2).mean())),
                "bias": float(error.mean()),
                "largest": float(error.abs().max()),
                "failures": "; ".join(law.fit.failures),
            }
        )
    return pd.DataFrame(found)


def compare_forms(
    rows: pd.DataFrame | None = None, forms: Sequence[Form] = FORMS
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(fits, held-out errors) of all forms, nats.

    fits: form, parameters, rmse over all rows, rmse by table, trunk and cell noise, failures.
    """
    rows = law_rows() if rows is None else rows
    fits: list[dict[str, Any]] = []
    errors: list[pd.DataFrame] = []
    for form in forms:
        law = fit_law(rows, form, strict=False)
        squares = law.residuals["error"] ** 2
        by_table = np.sqrt(squares.groupby(rows["table"]).mean())
        fits.append(
            {
                "form": form.name,
                "parameters": len(law.fit.theta),
                "rmse": float(np.sqrt(squares.mean())),
                **{f"Table {table}": float(value) for table, value in by_table.items()},
                "trunk": law.noise.trunk,
                "cell": law.noise.cell,
                "failures": "; ".join(law.fit.failures),
            }
        )
        # What was fitted to everything is one start of many; the split's own data decide.
        errors.append(held_out(form, rows))
    return pd.DataFrame(fits), pd.concat(errors, ignore_index=True)
