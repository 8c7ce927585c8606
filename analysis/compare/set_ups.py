"""At which set-up is the baseline at its best, which runs lag, and where is a pair freest of noise?

Asked before a study is paid for (plan-of-runs.md, G0): of baselines and superposed runs that
differ in rate, schedule or model, at one length and on one text. It says where arms should be
compared; it makes no claim about superposition.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.answer import Answer
from analysis.compare.comparison import SAME, Comparison
from analysis.compare.comparison import alike as one_question
from analysis.compare.paired import mean_interval
from analysis.tables.columns import rows_of
from analysis.wording import told_apart
from tst_study.errors import UserError

LAG = 0.03
"""Nats above the median of its arm and set-up at which a run lags."""
ASKED = ("corpus", "steps", "setting", "eval_set")
"""One question: which set-up of these."""


def set_ups(found: Comparison) -> pd.DataFrame:
    """One row per set-up (data, model, schedule, rate) with superposed runs of one setting.

    Columns: steps, set_up (what of its name differs from the others'), baselines (run folders),
    setting, seeds, baseline and superposed (means, nats), above_best with low and high (paired
    difference of the baseline from the lowest mean baseline of that corpus and length, with its own
    95% interval), gain, deviation (of a pair's gain over seeds), lagging_baselines,
    lagging_superposed, chosen: of the set-ups at their baseline's best rate whose baseline is not
    shown to be worse than the lowest, the one with the smallest deviation.

    Raises `UserError` where nothing was compared with two seeds or more.
    """
    key = [*SAME, "setting"]
    pairs = dict(iter(found.pairs.groupby(key)))
    rows: list[dict[str, Any]] = []
    several = found.table[found.table["deviation"].notna()]
    for _, alike in several.groupby(list(ASKED), sort=True):
        members = [pairs[names] for names in alike[key].itertuples(index=False, name=None)]
        named = told_apart(
            _names([str(own["baseline_folder"].iloc[0]) for own in members]),
            [f"lr{row['learning_rate']:g}" for row in rows_of(alike)],
            [f"[{row['group'][:6]}]" for row in rows_of(alike)],
            by=" ",
        )
        best = members[int(alike["baseline"].argmin())]
        found_rows = [
            _row(row, name, own, best)
            for row, name, own in zip(rows_of(alike), named, members, strict=True)
        ]
        # Over rates, which a group leaves open. The lowest has no interval of its difference from
        # itself.
        lowest = alike.groupby("group")["baseline"].transform("min")
        level = [
            row
            for row, least in zip(found_rows, lowest, strict=True)
            if row["baseline"] == least
            and (row["above_best"] if row["low"] is None else row["low"]) <= 0
        ]
        chosen = min(level, key=lambda row: float(row["deviation"]))
        rows += [{**row, "chosen": row is chosen} for row in found_rows]
    if not rows:
        raise UserError("no setting was compared with two seeds or more: nothing to choose by")
    return pd.DataFrame(rows)


def _row(row: dict[str, Any], name: str, own: pd.DataFrame, best: pd.DataFrame) -> dict[str, Any]:
    both = own.merge(best[["seed", "baseline"]], on="seed", suffixes=("", "_best"))
    above = (both["baseline"] - both["baseline_best"]).to_numpy(dtype=float)
    _, low, high = mean_interval(above) or (None, None, None)
    return {
        **{column: row[column] for column in ASKED},
        "set_up": name,
        "baselines": tuple(own["baseline_folder"]),
        **{column: row[column] for column in ("seeds", "baseline", "superposed")},
        "above_best": float(above.mean()),
        "low": low,
        "high": high,
        "gain": row["gain"],
        "deviation": row["deviation"],
        "lagging_baselines": _lagging(own["baseline"]),
        "lagging_superposed": _lagging(own["superposed"]),
    }


def _lagging(losses: pd.Series) -> int:
    return int((losses > losses.median() + LAG).sum())


def _names(folders: list[str]) -> list[str]:
    """Baselines' names without what all have in common, seed and digits."""
    words = [
        re.sub(r"(-seed\d+)?(-[0-9a-f]{8})?$", "", Path(folder).name).split("-")
        for folder in folders
    ]
    common = set.intersection(*map(set, words))
    return [" ".join(word for word in own if word not in common) or "as it is" for own in words]


def set_ups_answer(found: Comparison, inputs: dict[str, str]) -> Answer:
    """`tst-study analyse set-ups`."""
    table = set_ups(found)
    said = []
    for row in rows_of(table[table["chosen"]]):
        others = one_question(table, row, ASKED)
        lagging = [int(others[f"lagging_{arm}"].sum()) for arm in ("baselines", "superposed")]
        said.append(
            f"{row['corpus']}, {row['steps']:,} steps, {row['setting']}: compare at "
            f"{row['set_up']}: its baseline ({row['baseline']:.4f} nats) is not shown to be worse "
            "than the lowest, and of such set-ups, each at its baseline's best rate, a pair's gain "
            f"deviates least there ({row['deviation']:.4f}). "
            f"More than {LAG:g} nats above the median of their arm: {lagging[0]} baselines and "
            f"{lagging[1]} superposed runs of {int(others['seeds'].sum())} each."
        )
    return Answer(
        "set-ups", {"Set-ups": table.drop(columns="baselines")}, tuple(said), inputs, found.excluded
    )
