"""Words for settings, groups, intervals and verdicts: one place, so that all pages agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pandas as pd

from tst_study.units import big


def group_label(runs: pd.DataFrame) -> str:
    """A comparison group in one line, from its runs: corpus and length."""
    first = runs.iloc[0]
    return f"{first['corpus']}, {first['steps']:,} steps"


def told_apart(names: Sequence[str], *details: Sequence[str], by: str = ", ") -> list[str]:
    """Each name with those of its details, in order, that tell it from others like it."""
    found = list(names)
    for more in details:
        known: dict[str, set[str]] = {}
        for name, detail in zip(found, more, strict=True):
            known.setdefault(name, set()).add(detail)
        found = [
            name if len(known[name]) == 1 else f"{name}{by}{detail}"
            for name, detail in zip(found, more, strict=True)
        ]
    return found


def told_apart_by_set_up(
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any] | pd.Series],
    key: Literal["group", "family"] = "group",
) -> list[str]:
    """Each name with what tells its row from others like it: parameters, learning rate, held-out
    text and, where all of these agree, the key of its group or family."""
    return told_apart(
        names,
        [f"{big(row['parameters'])} parameters" for row in rows],
        [f"learning rate {row['learning_rate']:g}" for row in rows],
        [f"held out: {row['eval_set']}" for row in rows],
        [f"[{row[key][:6]}]" for row in rows],
    )


def group_details(runs: pd.DataFrame) -> str:
    """Model and batch of a comparison group, for a caption."""
    first = runs.iloc[0]
    experts = "" if pd.isna(first["experts"]) else f", {int(first['experts'])} experts"
    return (
        f"{big(first['parameters'])} parameters ({number(first['layers'], 'layer')}, hidden size "
        f"{first['hidden_size']}{experts}, vocabulary {first['vocabulary_size']:,}), "
        f"{first['steps']:,} steps of {first['sequences']} × {first['sequence_length']} latent "
        "tokens"
    )


def gain(row: Mapping[str, Any], digits: int = 3) -> str:
    """`+0.155 [+0.124, +0.186]`; without an interval where one seed allows none."""
    mean = signed(row["gain"], digits)
    if pd.isna(row["low"]):
        return mean
    return f"{mean} [{signed(row['low'], digits)}, {signed(row['high'], digits)}]"


def bounds(row: Mapping[str, Any], digits: int = 2) -> str:
    """`0.75, 1.51`, `0.75, open` on a side that the runs do not bound; empty without either."""
    ends = (row["low"], row["high"])
    if all(map(pd.isna, ends)):
        return ""
    said = ("open" if pd.isna(end) else f"{end:.{digits}f}".replace("-", "−") for end in ends)
    return ", ".join(said)


def gain_sentence(row: Mapping[str, Any]) -> str:
    """One setting's result as a sentence, whichever way it went."""
    size = abs(row["gain"])
    if row["verdict"] == "one seed: no claim":
        way = "lower" if row["gain"] > 0 else "higher"
        return f"{row['setting']}: {size:.3f} nats {way} in the only seed, so no claim."
    interval = f"95% interval {signed(row['low'])} to {signed(row['high'])}"
    if row["comparisons"] > 1:
        interval += f" with {number(row['comparisons'] - 1, 'other')} tried"
    seeds = number(row["seeds"], "seed")
    if row["verdict"] == "no difference shown":
        return (
            f"{row['setting']}: no difference shown ({signed(row['gain'])} nats, {interval}, "
            f"{seeds}; {row['smallest_detectable']:.3f} would be seen four times in five)."
        )
    return f"{row['setting']}: {row['verdict']} by {size:.3f} nats ({interval}, {seeds})."


def signed(value: float, digits: int = 3) -> str:
    """With its sign, the minus as printed; what rounds to zero has none."""
    text = f"{value:+.{digits}f}"
    if float(text) == 0:
        return f"{0:.{digits}f}"
    return text.replace("-", "−")


def number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


FEW_REASONS, FEW_NAMES = 8, 4
"""Lines, and runs in one of them, up to which a terminal names all that was left out."""


def left_out(excluded: pd.DataFrame) -> list[str]:
    """Which runs were left out (columns `run_id` and `reason`), and why: a line for each reason."""
    if excluded.empty:
        return []
    lines = []
    for reason, rows in excluded.groupby("reason", sort=False):
        names = [str(name) for name in rows["run_id"]]
        more = f" and {len(names) - FEW_NAMES:,} more" if len(names) > FEW_NAMES else ""
        lines.append(f"Left out: {', '.join(names[:FEW_NAMES])}{more}: {reason}.")
    if len(lines) > FEW_REASONS:
        rest = f"Left out for other reasons: {len(lines) - FEW_REASONS:,} lines more, in the JSON."
        lines = [*lines[:FEW_REASONS], rest]
    return lines
