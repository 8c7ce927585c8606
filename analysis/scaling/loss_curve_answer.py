"""`tst-study analyse loss-curve`: the schedule-aware curve of baselines, and what it predicts of
longer runs beside a power law of their final losses and beside the last length's loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.answer import Answer
from analysis.checks import needs_columns
from analysis.fitting.shared_errors import Spread
from analysis.scaling.loss_curve import fit_loss_curve
from analysis.scaling.power_law import fit_power_law
from analysis.tables.columns import rows_of
from analysis.tables.eligible import eligible
from analysis.tables.source import Tables
from analysis.wording import told_apart_by_set_up
from tst_study.errors import UserError


def loss_curve_answer(tables: Tables, inputs: dict[str, str]) -> Answer:
    """Of run folders: one curve for each family of finished baselines, learning rate and held-out
    text."""
    kept, excluded = eligible(tables.runs)
    plain = kept[kept["method"] == "baseline"]
    parts = list(plain.groupby(["corpus", "family", "learning_rate", "eval_set"], sort=True))
    firsts = [own.iloc[0] for _, own in parts]
    names = told_apart_by_set_up([str(first["corpus"]) for first in firsts], firsts, key="family")
    found: dict[str, pd.DataFrame] = {}
    said: list[str] = []
    for name, (_, own) in zip(names, parts, strict=True):
        try:
            shown, sentences = described(log_of(tables, own))
        except UserError as error:
            said.append(f"{name}: no curve: {error}.")
            continue
        found |= {f"{name}. {title}": table for title, table in shown.items()}
        said += [f"{name}: {sentence}" for sentence in sentences]
    if not said:
        raise UserError(
            "no finished baseline among these runs: a loss curve is fitted to baselines"
        )
    return Answer("loss-curve", found, tuple(said), inputs, pd.DataFrame(excluded))


def loss_curve_of_log(log: pd.DataFrame, inputs: dict[str, str]) -> Answer:
    """Of a table of logged steps (`loss_curve.fit_loss_curve`), runs of one model at one rate."""
    needs_columns(log, ("run", "step", "learning_rate", "loss"), "table")
    found, said = described(log)
    return Answer("loss-curve", found, tuple(said), inputs)


def log_of(tables: Tables, runs: pd.DataFrame) -> pd.DataFrame:
    """run, step, learning_rate and held-out loss of these rows of the run table."""
    parts = []
    for folder in runs["folder"]:
        rates, losses = (
            table.loc[table["folder"] == folder, columns]
            for table, columns in (
                (tables.curves, ["step", "learning_rate"]),
                (tables.held_out, ["step", "nats_per_token"]),
            )
        )
        parts.append(rates.merge(losses, on="step", how="outer").assign(run=folder))
    log: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return log.rename(columns={"nats_per_token": "loss"})


def described(log: pd.DataFrame) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Tables and sentences of one curve."""
    curve = fit_loss_curve(log)
    error = curve.points["predicted"] - curve.points["loss"]
    kept = curve.fit.identified
    said = [
        f"{len(curve.points)} points of {curve.points['run'].nunique()} runs, "
        f"{float(np.sqrt((error**2).mean())):.4f} nats (root mean square; {curve.noise.shared:.4f} "
        f"shared by a run, {curve.noise.own:.4f} by a point); conditioning {kept.condition:.0f}."
    ]
    fitted = Spread.of(curve.fit).table(list(curve.fit.values))
    tables = {"Parameters, with 95% t-intervals": fitted}
    held = held_out(log)
    if len(held):
        tables["Final losses predicted from shorter runs, nats"] = held
        said.append(_judged(held))
    return tables, said


def _judged(held: pd.DataFrame) -> str:
    """Root mean square errors over the predictions that all make: the power law needs four lengths,
    the others one."""
    errors = held[["law", "power_law", "last"]].sub(held["observed"], axis=0)
    names = {"law": "by the curve", "last": "by the loss of the longest run fitted"}
    more = "; a power law of final losses needs four lengths"
    if errors["power_law"].notna().any():
        errors, names["power_law"], more = errors.dropna(), "by a power law of final losses", ""
    means = np.sqrt((errors**2).mean())
    shares = ", ".join(f"{means[name]:.4f} {words}" for name, words in names.items())
    return f"Longer runs from shorter ones, {len(errors)} predictions: {shares} (nats){more}."


def held_out(log: pd.DataFrame) -> pd.DataFrame:
    """Every length predicted from all shorter ones: fitted_to, steps, observed (mean over seeds),
    law with low and high, power_law (of final losses; NaN below four lengths) and last (the longest
    fitted run's loss, which needs no law)."""
    known = log.dropna(subset=["loss"])
    ends = log.groupby("run", observed=True)["step"].max().rename("steps")
    last = known[known["step"] == known["run"].map(ends).astype(float)]
    final = pd.DataFrame({"steps": last["step"].astype(float), "loss": last["loss"].astype(float)})
    lengths = sorted(final["steps"].unique())
    rows: list[dict[str, Any]] = []
    for place, limit in enumerate(lengths[:-1]):
        try:
            curve = fit_loss_curve(log[log["run"].map(ends).astype(float) <= limit])
        except UserError:
            continue
        longer = lengths[place + 1 :]
        older = _power_law(final[final["steps"] <= limit], longer)
        means = final.groupby("steps")["loss"].mean()
        predicted = curve.predict(longer).rename(columns={"loss": "law"})
        rows += [
            {
                "fitted_to": int(limit),
                **row,
                "steps": int(row["steps"]),
                "observed": float(means[row["steps"]]),
                "power_law": older[i],
                "last": float(means[limit]),
            }
            for i, row in enumerate(rows_of(predicted))
        ]
    columns = ["fitted_to", "steps", "observed", "law", "low", "high", "power_law", "last"]
    return pd.DataFrame(rows, columns=columns)


def _power_law(final: pd.DataFrame, longer: list[float]) -> list[float]:
    """Losses after so many steps by a power law of final losses (steps, loss)."""
    try:
        law = fit_power_law(final["steps"].to_numpy(), final["loss"].to_numpy())
    except UserError:
        return [float("nan")] * len(longer)
    return [float(law.loss(steps)) for steps in longer]
