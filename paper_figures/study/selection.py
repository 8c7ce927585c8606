"""Which runs a figure shows: chosen by what was run, never by how well it did."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pandas as pd

from analysis.run_row import rows_of
from analysis.summary import Summary
from analysis.wording import is_plain


def plain_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Settings of the paper's plain method: ablations have their own figure."""
    return table.iloc[[place for place, row in enumerate(rows_of(table)) if is_plain(row)]]


def representative(table: pd.DataFrame, most: int = 4) -> pd.DataFrame:
    """At most `most` plain settings of one comparison group, spread over the bag sizes.

    They share the step ratio that most settings have (the smaller of equals), so that bag size is
    the only thing that differs. Losses play no part in the choice.
    """
    plain = plain_rows(table)
    if plain.empty:
        return plain
    counts = Counter(plain["step_ratio"])
    ratio = min(counts, key=lambda value: (-counts[value], value))
    same: pd.DataFrame = plain[plain["step_ratio"] == ratio].sort_values("bag_size")
    if most == 1:
        return same.iloc[[(len(same) - 1) // 2]]
    wanted = np.unique(np.linspace(0, len(same) - 1, min(most, len(same))).round().astype(int))
    return same.iloc[list(wanted)]


def main_groups(summary: Summary) -> list[tuple[str, pd.DataFrame]]:
    """(group, rows of its comparison): of each corpus and model the length with most settings.

    Among lengths with equally many, the longest.
    """
    found = []
    for _family, rows in summary.comparison.table.groupby("family", sort=False):
        counts = rows.groupby("steps")["setting"].count()
        most = counts[counts == counts.max()].index.max()
        main = rows[rows["steps"] == most]
        found.append((str(main["group"].iloc[0]), main))
    return sorted(found, key=lambda entry: slug(summary, entry[0]))


def folders_of(summary: Summary, table: pd.DataFrame) -> tuple[str, ...]:
    """Run folders behind rows of the comparison, baselines included."""
    pairs = pairs_of(summary, table)
    both = pd.concat([pairs["baseline_folder"], pairs["superposed_folder"]])
    return tuple(sorted(set(both.astype(str))))


def pairs_of(summary: Summary, table: pd.DataFrame) -> pd.DataFrame:
    """The pairs behind rows of the comparison."""
    key = ["group", "setting", "learning_rate", "eval_set"]
    return summary.comparison.pairs.merge(table[key], on=key)


def slug(summary: Summary, group: str) -> str:
    """Part of a file name: corpus and steps, and the group where that is not enough."""
    runs = summary.tables.runs
    names = {key: _plain_slug(members) for key, members in runs.groupby("group", sort=False)}
    name = names[group]
    alike = sum(other == name for other in names.values())
    return name if alike == 1 else f"{name}-{group[:6]}"


def _plain_slug(members: pd.DataFrame) -> str:
    return f"{file_part(str(members['corpus'].iloc[0]))}-{members['steps'].iloc[0]}"


def file_part(words: str) -> str:
    """Words as part of a file name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-").lower()
