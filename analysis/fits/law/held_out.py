"""The law judged by what it predicts, beside two predictions that need no law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from tst_study.analysis.fits.law.superposition_law import fit_law
from tst_study.analysis.statistics import rmse
from tst_study.errors import UserError
from tst_study.text import big

Parts = tuple[tuple[pd.Series, pd.Series], ...]
"""Masks of the fitted and of the predicted rows; several pairs (leave one out) are one split."""


def splits(rows: pd.DataFrame) -> dict[str, Parts]:
    """Return every split that these rows allow, by name: each size, length and weighting predicted
    from the others and, where more than three values of s or of r were tried, each of these from
    the rest."""
    named: dict[str, Parts] = {}
    factors: dict[str, Callable[[Any], str]] = {
        "size": str,
        "tokens": lambda tokens: f"{big(tokens)} tokens",
        "weighting": lambda weighting: f"{weighting.replace('_', '-')} weights",
    }
    for name, label in factors.items():
        values = sorted(rows[name].unique()) if rows[name].nunique() > 1 else []
        rest = rows[[other for other in factors if other != name]].apply(tuple, axis=1)
        for value in values:
            out = rows[name] == value
            # Predict only rows whose other two factors were fitted together: a row that is new in
            # one of them as well would ask two questions at once.
            alike = out & rest.isin(rest[~out])
            if (alike & _superposed(rows)).any():
                others = ", ".join(label(other) for other in values if other != value)
                named[f"{others} → {label(value)}"] = ((~out, alike),)
    for name, symbol in (("bag_size", "s"), ("step_ratio", "r")):
        masks = [rows[name] == value for value in sorted(rows[name][_superposed(rows)].unique())]
        if len(masks) > 3:
            named[f"leave one {symbol} out"] = tuple((~out, out) for out in masks)
    return named


def _superposed(rows: pd.DataFrame) -> pd.Series:
    return rows["bag_size"] > 1


def observed_gains(rows: pd.DataFrame) -> pd.Series:
    """Loss of the baseline of the same level (the mean of several) minus loss, nats per token."""
    baselines = rows[rows["bag_size"] == 1].groupby("level")["loss"].mean()
    return pd.Series(baselines.reindex(rows["level"]).to_numpy() - rows["loss"], rows.index)


def nearest(rows: pd.DataFrame, params: float, tokens: float) -> pd.DataFrame:
    """Return the rows of the nearest size and length, by the logs of both."""
    far: pd.Series = np.log(rows["params"] / params).abs() + np.log(rows["tokens"] / tokens).abs()
    return pd.DataFrame(rows[far <= far.min() + 1e-9])


def copied(known: pd.DataFrame, gains: pd.Series, out: pd.DataFrame) -> pd.Series:
    """Predict by the first null: the mean gain of the same s and r at the nearest fitted size and
    length, under the same weighting if that was fitted there. Where s was fitted but r was not,
    interpolate linearly along r; where s was not, along log s at the nearest fitted r. Beyond the
    fitted values take the last one."""
    predicted = pd.Series(np.nan, out.index)
    for _, own in out.groupby(["params", "tokens", "weighting"]):
        first = own.iloc[0]
        near = nearest(known, first["params"], first["tokens"])
        alike = near[near["weighting"] == first["weighting"]]
        near = near if alike.empty else alike
        means = gains[near.index].groupby([near["bag_size"], near["step_ratio"]]).mean().unstack()
        for place, s, r in own[["bag_size", "step_ratio"]].itertuples():
            if s in means.index:
                of_s = means.loc[s].dropna()
                predicted[place] = np.interp(r, of_s.index, of_s)
            else:
                of_r = means.iloc[:, np.abs(means.columns - r).argmin()].dropna()
                predicted[place] = np.interp(np.log(s), np.log(of_r.index), of_r)
    return predicted


def predictions(rows: pd.DataFrame, parts: Parts) -> tuple[pd.DataFrame, str]:
    """Return the predicted rows with their gains: observed, by the law (NaN where it cannot be
    fitted), `copied`, and the mean of the fitted gains. Beside them return notes on parameters that
    were held and fits that were refused."""
    gains, tables, notes = observed_gains(rows), [], []
    for fitted, predicted in parts:
        known, out = rows[fitted], rows[predicted & _superposed(rows)]
        own = gains[known.index[_superposed(known)]]
        table = out.assign(
            observed=gains[out.index],
            law=np.nan,
            copied=copied(known[_superposed(known)], own, out),
            mean=float(own.mean()),
        )
        try:
            law = fit_law(known.reset_index(drop=True))
            table["law"] = law.of_rows(out)
            notes += [f"{name} held: {why}" for name, why in law.held.items()]
        except UserError as error:
            notes.append(f"refused: {error}")
        tables.append(table)
    return pd.concat(tables), "; ".join(dict.fromkeys(notes))


def held_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return errors of predicted gains (root mean square, nats per token), of the law and of both
    nulls.

    Columns: split, fitted, predicted (numbers of runs; fitted is the smallest where parts of a
    split are predicted in turn), law, copied (`copied`), mean (the mean of the fitted gains), bias
    (mean of law − observed), note (what was held, or why the law was refused). Errors are of gains,
    not of losses, because a user knows the baseline of the planned run; the baseline's noise is in
    all errors alike.
    """
    judged: list[dict[str, Any]] = []
    for name, parts in splits(rows).items():
        table, note = predictions(rows, parts)
        row = {"split": name, "fitted": min(int(fitted.sum()) for fitted, _ in parts)}
        row |= {"predicted": len(table), "note": note}
        row["bias"] = float((table["law"] - table["observed"]).mean())
        row |= {way: rmse(table[way] - table["observed"]) for way in ("law", "copied", "mean")}
        judged.append(row)
    columns = ["split", "fitted", "predicted", "law", "copied", "mean", "bias", "note"]
    return pd.DataFrame(judged, columns=columns)
