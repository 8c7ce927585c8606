"""The law judged by what it predicts, beside two predictions that need no law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from tst_study.analysis.checks import Floats
from tst_study.analysis.fits.law.superposition_law import fit_law
from tst_study.analysis.tables.columns import rows_of
from tst_study.errors import UserError
from tst_study.text import big

CHOSEN_FROM = 0.5
"""The r up to which anybody would look for the best one; beyond, the debt is large and errors with
it, so that an error over all r says little of the choice."""


WAYS = ("law", "copied", "mean")
"""To predict a gain: the law, and two nulls."""
Parts = tuple[tuple[pd.Series, pd.Series], ...]
"""Masks over the rows: fitted, predicted; several pairs (leave one out) count as one split."""


def splits(rows: pd.DataFrame) -> dict[str, Parts]:
    """By name every way of leaving out that these rows allow: sizes, lengths and weightings from
    each other, one s, one r, large r from small ones, large s from small ones."""
    found: dict[str, Parts] = {}
    factors: dict[str, Callable[[Any], str]] = {
        "size": str,
        "tokens": lambda tokens: f"{big(tokens)} tokens",
        "weighting": _words,
    }
    for name, label in factors.items():
        values = sorted(rows[name].unique()) if rows[name].nunique() > 1 else []
        rest = rows[[other for other in factors if other != name]].apply(tuple, axis=1)
        for value in values:
            out = rows[name] == value
            # What differs in another factor as well would be two questions at once.
            alike = out & rest.isin(rest[~out])
            if (alike & _superposed(rows)).any():
                others = ", ".join(label(other) for other in values if other != value)
                found[f"{others} → {label(value)}"] = ((~out, alike),)
    for name, symbol in (("bag_size", "s"), ("step_ratio", "r")):
        masks = [rows[name] == value for value in sorted(rows[name][_superposed(rows)].unique())]
        if len(masks) > 3:
            found[f"leave one {symbol} out"] = tuple((~out, out) for out in masks)
    for name, symbol, limit in (("step_ratio", "r", CHOSEN_FROM), ("bag_size", "s", 6)):
        near = rows[name] <= limit
        if (~near).any() and rows[name][near & _superposed(rows)].nunique() > 3:
            found[f"{symbol} ≤ {limit:g} → larger {symbol}"] = ((near, ~near),)
    return found


def _superposed(rows: pd.DataFrame) -> pd.Series:
    return rows["bag_size"] > 1


def _words(weighting: str) -> str:
    return f"{weighting.replace('_', '-')} weights"


def observed_gains(rows: pd.DataFrame) -> pd.Series:
    """Baseline of the same level (size, length, seed; mean of several) minus loss."""
    baselines = rows[rows["bag_size"] == 1].groupby("level")["loss"].mean()
    return pd.Series(baselines.reindex(rows["level"]).to_numpy() - rows["loss"], rows.index)


def nearest(rows: pd.DataFrame, params: float, tokens: float) -> pd.DataFrame:
    """The rows of the size and length that lie nearest, by the logs of both."""
    far: pd.Series = np.log(rows["params"] / params).abs() + np.log(rows["tokens"] / tokens).abs()
    return pd.DataFrame(rows[far <= far.min() + 1e-9])


def copied(known: pd.DataFrame, gains: pd.Series, out: pd.DataFrame) -> Floats:
    """First null: the gain of the same s and r in the nearest fitted size, length and weighting;
    where that cell was not fitted, a straight line between its fitted neighbours along r (or,
    failing that, along s), and the last one beyond them."""
    found = np.empty(len(out))
    memory: dict[tuple[Any, ...], pd.DataFrame] = {}
    for place, row in enumerate(rows_of(out)):
        where = (row["params"], row["tokens"], row["weighting"])
        if where not in memory:
            near = nearest(known, row["params"], row["tokens"])
            alike = near[near["weighting"] == row["weighting"]]
            near = near if alike.empty else alike
            means = gains[near.index].groupby([near["bag_size"], near["step_ratio"]]).mean()
            memory[where] = pd.DataFrame(means.unstack())
        table = memory[where]
        s, r = float(row["bag_size"]), float(row["step_ratio"])
        if s in table.index:
            own = table.loc[s].dropna()
            found[place] = np.interp(r, own.index.to_numpy(float), own.to_numpy(float))
        else:
            ratio = min(table.columns, key=lambda other: abs(float(other) - r))
            own = table[ratio].dropna()
            found[place] = np.interp(np.log(s), np.log(own.index.to_numpy(float)), own)
    return found


def predictions(rows: pd.DataFrame, parts: Parts) -> tuple[pd.DataFrame, str]:
    """Rows left out, with observed, law (NaN where refused), copied and mean; and what to know."""
    gains, found, notes = observed_gains(rows), [], []
    for fitted, left in parts:
        known, out = rows[fitted], rows[left & _superposed(rows)]
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
        found.append(table)
    return pd.concat(found), "; ".join(dict.fromkeys(notes))


def held_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Errors of predicted gains, nats (root mean square), of the law and of both nulls.

    Columns: split, fitted, predicted (numbers of runs), law, copied (`copied`), mean (the mean of
    the fitted gains), the three again for r ≤ 0.5, bias (mean of law − observed), note (what was
    held, or why the law was refused). Gains, not losses, because whoever asks knows the baseline of
    what is predicted; its own noise is in all errors alike.
    """
    judged: list[dict[str, Any]] = []
    for name, parts in splits(rows).items():
        table, note = predictions(rows, parts)
        row = {"split": name, "fitted": min(int(fitted.sum()) for fitted, _ in parts)}
        row |= {"predicted": len(table), "note": note}
        row["bias"] = float((table["law"] - table["observed"]).mean())
        near = table[table["step_ratio"] <= CHOSEN_FROM]
        for suffix, part in (("", table), ("_r≤0.5", near)):
            for way in WAYS:
                square = ((part[way] - part["observed"]) ** 2).mean(skipna=False)
                row[way + suffix] = float(np.sqrt(square)) if len(part) else None
        judged.append(row)
    near_ways = [f"{way}_r≤0.5" for way in WAYS]
    columns = ["split", "fitted", "predicted", *WAYS, *near_ways, "bias", "note"]
    return pd.DataFrame(judged, columns=columns)
