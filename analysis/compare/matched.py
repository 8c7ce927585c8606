"""Equal FLOPs, equal data, equal loss: which runs match, found among all of them by one ledger.

The ledger of a run is its FLOPs, raw tokens, steps and hours. A superposed run is held against
every baseline of its family (same data, model, batch, schedule, learning rate, held-out text):
of the same FLOPs, of the same raw tokens, and, between baselines of several lengths, of the same
loss. That last one is read by interpolation within the baselines' range; beyond it there is a
bound, never a number. Intervals and verdicts hold for all settings of one family, length and kind
of match together.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis import published
from analysis.answer import Answer
from analysis.compare.comparison import SAME_BUT_LENGTH, alike, paired_once
from analysis.compare.crossings import published_crossings
from analysis.compare.equal_loss import speed_up
from analysis.compare.paired import paired
from analysis.tables.columns import rows_of
from analysis.tables.eligible import eligible
from tst_study.configuration.superposition_setting import COLUMNS as SETTING
from tst_study.configuration.superposition_setting import SuperpositionSetting
from tst_study.errors import UserError
from tst_study.units import big

Kind = Literal["equal FLOPs", "equal data", "equal loss"]
TOLERANCE = 0.005
"""Relative difference of FLOPs or raw tokens that still counts as equal: a rounded step ratio
moves the tokens of a run by less."""

_EQUAL: dict[str, Kind] = {"flops": "equal FLOPs", "raw_tokens": "equal data"}


@dataclass(frozen=True)
class Matches:
    """Losses in nats per token; a positive gain: superposition wins."""

    table: pd.DataFrame
    """One row per setting and kind of match: gain or speed-up, with 95% interval over seeds."""
    excluded: pd.DataFrame
    """Runs that may not be compared, each with the reason."""


def ledger(runs: pd.DataFrame) -> pd.DataFrame:
    """Eligible runs with flops, raw_tokens, steps, loss and device hours (NaN where not known);
    `seed` names the order of the text, too, where that has a seed of its own: a pair shares both.
    """
    rows = runs.assign(loss=runs["nats_per_token"].astype(float))
    if "data_seed" in rows and rows["data_seed"].notna().any():
        rows["seed"] = rows["seed"].map(str) + " " + rows["data_seed"].map(str)
    if "gpu_hours" in rows:
        rows["hours"] = rows["gpu_hours"].astype(float)
    else:
        count = rows["device_count"].astype(float).fillna(1.0)
        rows["hours"] = rows["training_seconds"].astype(float) * count / 3600.0
    return rows


def matched(runs: pd.DataFrame) -> Matches:
    """All matches among a run table (`source.load`, `published.runs`).

    Columns of the table: family, learning_rate, eval_set, setting, kind, steps, baseline_steps,
    seeds; for equal FLOPs and equal data gain, low, high, smallest_detectable, verdict; for equal
    loss the ratios `steps_ratio`, `flops_ratio`, `hours_ratio` (baseline over superposed) with low
    and high of the first; `note` says what no number can.
    """
    kept, excluded = paired_once(*eligible(runs))
    rows: list[dict[str, Any]] = []
    book = ledger(kept)
    superposed, baselines = (book[book["method"] == arm] for arm in ("superposition", "baseline"))
    keys = [*SAME_BUT_LENGTH, "steps", *SETTING]
    settings = [
        (members, alike(baselines, members.iloc[0], SAME_BUT_LENGTH))
        for _, members in superposed.groupby(keys, sort=False, dropna=False)
    ]
    tried = Counter(
        tuple(members[["family", "eval_set", "steps"]].iloc[0])
        for members, _ in settings
        if members["seed"].nunique() > 1
    )
    for members, near in settings:
        first = next(rows_of(members))
        setting = SuperpositionSetting.of_row(first)
        named = {
            **{name: first[name] for name in SAME_BUT_LENGTH},
            "corpus": first["corpus"],
            "params": big(first["parameters"]),
            "setting": setting.label,
            "steps": first["steps"],
            "_order": (first["family"], first["steps"], *setting.order),
        }
        question = max(1, tried[first["family"], first["eval_set"], first["steps"]])
        for column, kind in _EQUAL.items():
            rows.append({**named, **_equal(members, near, column, kind, question)})
        rows.append({**named, **_equal_loss(members, near, question)})
    rows.sort(key=lambda row: row.pop("_order"))
    return Matches(pd.DataFrame(rows, columns=list(COLUMNS)), pd.DataFrame(excluded))


COLUMNS: tuple[str, ...] = (*SAME_BUT_LENGTH, "corpus", "params", "setting", "steps", "kind")
COLUMNS += ("baseline_steps", "seeds", "gain", "steps_ratio", "flops_ratio", "hours_ratio")
COLUMNS += ("low", "high", "smallest_detectable", "verdict", "note")


def matched_answer(
    runs: pd.DataFrame | None = None, inputs: dict[str, str] | None = None
) -> Answer:
    """`tst-study analyse matched`: of a run table, or of Tables 1 and 2 with Figures 1 and 3."""
    of_paper = runs is None
    if runs is None:
        runs = published.runs().query("source in ['Table 1', 'Table 2']")
    found = matched(runs)
    if found.table.empty:
        why = f" ({found.excluded['reason'].iloc[0]})" if len(found.excluded) else ""
        raise UserError(f"no finished superposed run among these: there is nothing to match{why}")
    tables = {
        "Matches (gains in nats; ratios are baseline over superposed)": found.table.drop(
            columns=["family", "eval_set"]
        )
    }
    partners = found.table["seeds"].notna().groupby(found.table["kind"])
    said = [
        f"{kind}: {partners.sum()[kind]} of {partners.size()[kind]} settings have a partner."
        for kind in _EQUAL.values()
    ]
    if of_paper:
        tables["Where the curves of Figures 1 and 3 cross, in steps"] = published_crossings()
        said.append(
            "Figures 1, 3b and 3c cross baselines that are not annealed there: the gap after the "
            "crossing is partly the learning rate's decay."
        )
    return Answer(
        "matched",
        tables,
        tuple(said),
        inputs or published.fingerprints("headline_runs", "loss_curves"),
        found.excluded,
    )


def _equal(
    members: pd.DataFrame, baselines: pd.DataFrame, column: str, kind: Kind, comparisons: int
) -> dict[str, Any]:
    target = float(members[column].iloc[0])
    away = (baselines[column].astype(float) / target - 1).abs()
    near = baselines[(away <= TOLERANCE) & (away == away.min())]
    row: dict[str, Any] = {"kind": kind}
    if near.empty:
        return {**row, "note": f"no baseline of {kind}"}
    pairs = members.merge(near.drop_duplicates("seed"), on="seed", suffixes=("", "_baseline"))
    if pairs.empty:
        return {**row, "note": f"no baseline of {kind} with its seeds"}
    found = paired(list(pairs["loss_baseline"] - pairs["loss"]), comparisons)
    return {
        **row,
        "baseline_steps": int(pairs["steps_baseline"].iloc[0]),
        "seeds": found.seeds,
        "gain": found.mean,
        "steps_ratio": float((pairs["steps_baseline"] / pairs["steps"]).mean()),
        "flops_ratio": float((pairs["flops_baseline"] / pairs["flops"]).mean()),
        "hours_ratio": float((pairs["hours_baseline"] / pairs["hours"]).mean()),
        "low": found.low,
        "high": found.high,
        "smallest_detectable": found.smallest_detectable,
        "verdict": found.verdict,
        "note": "",
    }


def _equal_loss(members: pd.DataFrame, baselines: pd.DataFrame, comparisons: int) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": "equal loss", "seeds": members["seed"].nunique()}
    if baselines.empty:
        return {**row, "note": "no baseline"}
    if baselines["steps"].nunique() == 1:
        bounds = members.merge(baselines, on="seed", suffixes=("", "_baseline"))
        notes = dict.fromkeys(_bound(pair) for pair in rows_of(bounds))
        return {**row, "note": "; ".join(notes) or "no baseline with its seeds"}
    found = speed_up(baselines, members, comparisons)
    ratio = found["speed_up"]
    if ratio is None:
        return {**row, "note": found["note"]}
    known = baselines.groupby("steps")["hours"].mean()
    spent = float(np.interp(found["baseline_steps"], known.index.astype(float), known))
    return {
        **row,
        "seeds": found["seeds"],
        "baseline_steps": round(found["baseline_steps"]),
        "steps_ratio": ratio,
        # A step costs the same FLOPs in both phases and both arms.
        "flops_ratio": ratio,
        "hours_ratio": spent / float(members["hours"].mean()),
        "low": found["low"],
        "high": found["high"],
        "verdict": "one seed: no claim" if found["seeds"] < 2 else "",
        "note": "" if found["seeds"] < 2 else found["note"],
    }


def _bound(pair: dict[str, Any]) -> str:
    """With one length of baseline there is no loss to interpolate, but there may be a bound."""
    steps = pair["steps_baseline"] / pair["steps"]
    if pair["loss"] >= pair["loss_baseline"] or steps <= 1:
        return f"its baseline has one length only ({pair['steps_baseline']:,} steps)"
    hours = pair["hours_baseline"] / pair["hours"]
    spent = "" if math.isnan(hours) else f" and {hours:.2f} times the hours"
    return (
        f"at least {steps:.2f} times the steps{spent}: its baseline has one length only, and after "
        f"them a higher loss ({pair['loss_baseline']:.3f} against {pair['loss']:.3f})"
    )
