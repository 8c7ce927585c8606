"""The law of superposition judged by its errors on rows left out of the fit.

Beside the law stand three nulls, which are predictions that need no law: the gain copied from the
nearest fitted runs (`copied`), this gain scaled by Chinchilla's data term where the length differs
(`scaled`), and the mean of the fitted gains. `tst-study analyse law` prints all four.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from tst_study.analysis.fits.law.superposition_law import DATA_EXPONENT, fit_law
from tst_study.analysis.statistics import rmse
from tst_study.errors import UserError
from tst_study.text import big

NULLS = {
    "copied": "copying the nearest runs",
    "scaled": "copying them times (D′/D)^−0.366",
    "mean": "the mean gain",
}
"""The predictions that need no law, each with its name in sentences. D′ is the length of the
predicted runs, D that of the nearest fitted ones."""
Parts = tuple[tuple[pd.Series, pd.Series], ...]
"""One split of the rows, as pairs of masks: the first mask of a pair selects the fitted rows, the
second the predicted rows. A split that leaves one value out at a time has a pair for each value."""


def splits(rows: pd.DataFrame) -> dict[str, Parts]:
    """Return every split that these rows allow, by name. Each size, each length and each weighting
    is predicted from the others. If more than three values of s were tried, each of them is
    predicted from the rest, and likewise for r."""
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
            # Predict only rows whose other two factors occur together among the fitted rows: a row
            # that is new in one of these as well would ask two questions at once.
            alike = out & rest.isin(rest[~out])
            if all((part & _superposed(rows)).any() for part in (alike, ~out)):
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
    """Return each row's gain in nats per token: the loss of its level's baseline, or the mean of
    several, minus its own loss. A level is all rows that are compared with the same baseline (see
    the module `rows`)."""
    baselines = rows[rows["bag_size"] == 1].groupby("level")["loss"].mean()
    return pd.Series(baselines.reindex(rows["level"]).to_numpy() - rows["loss"], rows.index)


def nearest(rows: pd.DataFrame, params: float, tokens: float) -> pd.DataFrame:
    """Return the rows of the nearest size and length, by the sum of the distances in log size and
    log length."""
    far: pd.Series = np.log(rows["params"] / params).abs() + np.log(rows["tokens"] / tokens).abs()
    return pd.DataFrame(rows[far <= far.min() + 1e-9])


def copied(
    known: pd.DataFrame, gains: pd.Series, out: pd.DataFrame, exponent: float = 0.0
) -> pd.Series:
    """Predict without a law: copy the mean gain of the same s and r at the nearest fitted size and
    length, under the same weighting if it was fitted there.

    If s was fitted there but r was not, interpolate linearly along r. If s was not, interpolate
    along log s at the nearest fitted r. Beyond the fitted values take the value at the end.

    known: the fitted superposed rows. gains: their gains. out: the rows to predict. exponent: the
    copied gain is multiplied by this power of the nearest length over the predicted one; 0 copies
    it unchanged."""
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
        predicted[own.index] *= (near["tokens"].iloc[0] / first["tokens"]) ** exponent
    return predicted


def predictions(rows: pd.DataFrame, parts: Parts) -> tuple[pd.DataFrame, str]:
    """Return the predicted rows of a split with five columns of gains, and a note.

    The columns: observed, law (NaN if the law cannot be fitted), copied (`copied`), scaled (the
    same times (D'/D)^−`DATA_EXPONENT`), and mean (the mean of the fitted gains). The note says
    which parameters were held fixed, and why a fit was refused."""
    gains, tables, notes = observed_gains(rows), [], []
    for fitted, predicted in parts:
        known, out = rows[fitted], rows[predicted & _superposed(rows)]
        own = gains[known.index[_superposed(known)]]
        table = out.assign(
            observed=gains[out.index],
            law=np.nan,
            copied=copied(known[_superposed(known)], own, out),
            scaled=copied(known[_superposed(known)], own, out, DATA_EXPONENT),
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
    """Return a row for each split: how well the law and its nulls predict the gains that were left
    out.

    Columns: split; fitted and predicted (numbers of runs; if values are left out in turn, `fitted`
    is the smallest number); law and `NULLS` (root mean square errors, nats per token); bias (the
    mean of law − observed); note (which parameters were held fixed, and why a fit was refused). The
    errors are of gains, not of losses, because a user knows the baseline of the planned run. The
    noise of the baselines is in all errors alike.
    """
    judged: list[dict[str, Any]] = []
    for name, parts in splits(rows).items():
        table, note = predictions(rows, parts)
        row = {"split": name, "fitted": min(int(fitted.sum()) for fitted, _ in parts)}
        row |= {"predicted": len(table), "note": note}
        row["bias"] = float((table["law"] - table["observed"]).mean())
        row |= {way: rmse(table[way] - table["observed"]) for way in ("law", *NULLS)}
        judged.append(row)
    columns = ["split", "fitted", "predicted", "law", *NULLS, "bias", "note"]
    return pd.DataFrame(judged, columns=columns)
