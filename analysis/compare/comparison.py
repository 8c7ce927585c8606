"""Superposition against the baseline at equal FLOPs, paired by seed.

Only what may be compared is (`analysis.tables.eligible`), both arms evaluated on the same held-out
tokens. Whatever is left out is returned with the reason. One question is which settings gain on
one data, model and length: intervals and verdicts allow for all settings and learning rates that
were tried on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.compare.paired import paired
from analysis.tables.columns import rows_of
from analysis.tables.eligible import EXCLUDED_COLUMNS, eligible, excluded_row
from tst_study.configuration.superposition_setting import COLUMNS as SETTING
from tst_study.configuration.superposition_setting import SuperpositionSetting

SAME = ("group", "learning_rate", "eval_set")
"""What the two runs of a pair share, beside their seed."""
SAME_BUT_LENGTH = ("family", "learning_rate", "eval_set")
"""The same, whatever the number of steps."""

_SHARED: tuple[str, ...] = ("group", "family", "corpus", "steps", "learning_rate", "eval_set")
_SHARED += ("flops", "setting", *SETTING, "data_multiplier")
PAIR_COLUMNS: tuple[str, ...] = (*_SHARED, "seed", "baseline", "superposed", "gain")
PAIR_COLUMNS += ("baseline_folder", "superposed_folder")
TABLE_COLUMNS: tuple[str, ...] = (*_SHARED, "seeds", "comparisons", "baseline", "superposed")
TABLE_COLUMNS += ("gain", "low", "high", "deviation", "smallest_detectable", "p_adjusted")
TABLE_COLUMNS += ("verdict", "run_ids")


@dataclass(frozen=True)
class Comparison:
    """Losses and gains in nats per token on held-out text; a positive gain: superposition wins."""

    table: pd.DataFrame
    """One row per setting: mean paired gain, its verdict, and an interval over seeds that holds
    with 95% for all settings (`comparisons`) of its group and held-out text together."""
    pairs: pd.DataFrame
    """One row per setting and seed."""
    excluded: pd.DataFrame
    """Runs that were not compared, each with the reason."""
    eligible: pd.DataFrame
    """Rows of the run table that may be compared, baselines without a partner among them."""


def compare(runs: pd.DataFrame) -> Comparison:
    """Compare all superposed runs of a run table (`source.load`) with their baselines.

    Raises `UserError` where the table lacks a column.
    """
    kept, excluded = paired_once(*eligible(runs))
    baselines = list(rows_of(kept[kept["method"] == "baseline"]))
    pairs: list[dict[str, Any]] = []
    for run in rows_of(kept[kept["method"] == "superposition"]):
        partner = _partner(run, baselines)
        if isinstance(partner, str):
            excluded.append(excluded_row(run, partner))
        else:
            pairs.append(_pair(run, partner))
    return Comparison(
        table=_table(pairs),
        pairs=pd.DataFrame(pairs, columns=list(PAIR_COLUMNS)),
        excluded=pd.DataFrame(excluded, columns=list(EXCLUDED_COLUMNS)),
        eligible=kept,
    )


def paired_once(
    kept: pd.DataFrame, excluded: list[dict[str, Any]]
) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """`eligible` runs without those that share setting and seed: nothing says which of them is
    whose pair, and as further seeds they would make an interval too short."""
    twice = kept.duplicated([*pair_key(kept), *SETTING], keep=False)
    reason = "another run has its setting, rate and seed; say by seed what tells them apart"
    return kept[~twice], excluded + [excluded_row(run, reason) for run in rows_of(kept[twice])]


def pair_key(table: pd.DataFrame) -> list[str]:
    """What the two runs of a pair share; a table made elsewhere may not know the order of the text
    (`data_seed`)."""
    return [name for name in (*SAME, "seed", "data_seed") if name in table]


def alike(
    table: pd.DataFrame, row: Mapping[str, Any] | pd.Series, names: Iterable[str]
) -> pd.DataFrame:
    """The rows of a table that have the values of `row` in these columns."""
    return table[np.logical_and.reduce([table[name] == row[name] for name in names])]


def _partner(run: dict[str, Any], baselines: list[dict[str, Any]]) -> dict[str, Any] | str:
    """The baseline of a superposed run, or what keeps every candidate from being it."""
    narrowing = (
        ("group", "of the same data, model, steps, batch and schedule"),
        ("learning_rate", f"at its learning rate {run['learning_rate']:g}"),
        ("eval_set", f"evaluated on the same held-out text ({_held_out(run)})"),
        ("flops", "of equal FLOPs"),
        ("seed", f"of its seed {run['seed']}"),
        ("data_seed", f"that reads its text in the order of data_seed {run.get('data_seed')}"),
    )
    for column, words in narrowing:
        if column not in run:  # Tables made elsewhere may not know the order of the text.
            continue
        same = [baseline for baseline in baselines if baseline[column] == run[column]]
        if not same:
            near = _nearest(run, baselines) if column == "group" else ""
            return f"no finished baseline {words}{near}"
        baselines = same
    return baselines[0]


def _held_out(run: dict[str, Any]) -> str:
    tokens = run.get("eval_tokens")
    return f"{run['eval_set']}{'' if pd.isna(tokens) else f', {int(tokens):,} tokens'}"


def _nearest(run: dict[str, Any], baselines: list[dict[str, Any]]) -> str:
    """What of the baseline that is most like it differs, where the table has it."""
    shown = ("corpus", "parameters", "steps", "sequences", "sequence_length", "schedule")
    known = [name for name in shown if name in run]
    differences = [
        [f"{name} {one[name]}, not {run[name]}" for name in known if one[name] != run[name]]
        for one in baselines
    ]
    nearest = min(filter(None, differences), key=len, default=[])
    return f" (the nearest has {'; '.join(nearest)})" if nearest else ""


def _pair(run: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Any]:
    run = {**run, "setting": SuperpositionSetting.of_row(run).label}
    return {
        **{column: run[column] for column in (*_SHARED, "seed")},
        "baseline": baseline["nats_per_token"],
        "superposed": run["nats_per_token"],
        "gain": baseline["nats_per_token"] - run["nats_per_token"],
        "baseline_folder": baseline["folder"],
        "superposed_folder": run["folder"],
        "run_ids": (baseline["run_id"], run["run_id"]),
    }


def _table(pairs: list[dict[str, Any]]) -> pd.DataFrame:
    shared = (*SAME, *SETTING)
    settings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for pair in pairs:
        settings.setdefault(tuple(pair[column] for column in shared), []).append(pair)
    tried = Counter(
        (members[0]["group"], members[0]["eval_set"])
        for members in settings.values()
        if len(members) > 1
    )
    rows = []
    for members in settings.values():
        members.sort(key=lambda pair: pair["seed"])
        first = members[0]
        question = max(1, tried[first["group"], first["eval_set"]])
        statistics = asdict(paired([pair["gain"] for pair in members], question))
        rows.append(
            {
                **first,
                **statistics,
                "gain": statistics["mean"],
                "baseline": sum(pair["baseline"] for pair in members) / len(members),
                "superposed": sum(pair["superposed"] for pair in members) / len(members),
                "run_ids": tuple(name for pair in members for name in pair["run_ids"]),
            }
        )
    rows.sort(
        key=lambda row: (
            *(row[column] for column in shared[:3]),
            *SuperpositionSetting.of_row(row).order,
        )
    )
    return pd.DataFrame(rows, columns=list(TABLE_COLUMNS))
