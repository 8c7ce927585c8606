"""The tables of docs/findings.md, computed from the records that they stand on: `make docs`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pandas as pd

from analysis.compare.comparison import Comparison, compare
from analysis.compare.paired import Paired, paired
from analysis.compare.set_ups import LAG, set_ups
from analysis.run_table import load
from analysis.runs.run_row import rows_of
from experiments.studies.campaign import HELD_OUT_STEPS, LENGTHS

RECORDS = Path(__file__).parent / "records"


@cache
def compared(record: str) -> Comparison:
    """The runs of one record, read once for all its tables."""
    return compare(load(RECORDS / record))


def gate() -> str:
    """Set-ups of docs/plan-of-runs.md, G0: where the baseline is at its best, and who lags."""
    found = compared("gate")
    table = set_ups(found).sort_values("baseline", ignore_index=True)
    lines = [
        "| set-up | seeds | baseline | above the lowest | superposed | gain | deviation of a gain "
        "| lagging: baselines, superposed |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows_of(table):
        name = f"**{row['set_up']}** (chosen)" if row["chosen"] else row["set_up"]
        known = row["low"] is not None and not pd.isna(row["low"])
        above = _with_interval(row["above_best"], row["low"], row["high"]) if known else "–"
        own = found.pairs["baseline_folder"].isin(row["baselines"])
        gain = _shown(paired(list(found.pairs["gain"][own])))
        lines.append(
            f"| {name} | {row['seeds']} | {row['baseline']:.4f} | {above} | "
            f"{row['superposed']:.4f} | {gain} | {row['deviation']:.4f} | "
            f"{row['lagging_baselines']}, {row['lagging_superposed']} |"
        )
    arms = ("baselines", "superposed")
    lagging = [int(table[f"lagging_{arm}"].sum()) for arm in arms]
    runs = int(table["seeds"].sum())
    lines.append(
        f"\nMore than {LAG:g} nats above the median of their arm and set-up: {lagging[0]} of "
        f"{runs} baselines and {lagging[1]} of {runs} superposed runs."
    )
    return "\n".join(lines)


CHANGES = (
    ("QK norm", "lr0.002-decay0.3", "lr0.002-decay0.3-qknorm"),
    ("four heads of 16 in place of two of 32", "lr0.002-decay0.3", "lr0.002-decay0.3-4heads"),
    ("decay over 30% in place of 10%", "lr0.002-decay0.1", "lr0.002-decay0.3"),
    ("2e-3 in place of 1e-3", "lr0.001-decay0.3", "lr0.002-decay0.3"),
    ("4e-3 in place of 2e-3, with QK norm", "lr0.002-decay0.3-qknorm", "decay0.3-qknorm-lr0.004"),
)
"""One thing at a time, as the gate's runs are named: what, from, to."""


def gate_changes() -> str:
    """What each change of the set-up does to losses and gain, paired by seed."""
    pairs = compared("gate").pairs
    names = pairs["baseline_folder"].str.extract(r"8000-baseline-(.*)-seed\d+-\w+$")[0]
    by_seed = {name: own.set_index("seed") for name, own in pairs.groupby(names)}
    lines = ["| change | baseline | superposed | gain |", "| --- | --- | --- | --- |"]
    for words, before, after in CHANGES:
        numbers = ["baseline", "superposed", "gain"]
        moved = by_seed[after][numbers] - by_seed[before][numbers]
        cells = " | ".join(_shown(paired(list(moved[name]))) for name in numbers)
        lines.append(f"| {words} | {cells} |")
    return "\n".join(lines)


def _shown(found: Paired) -> str:
    return _with_interval(found.mean, found.low, found.high)


def _with_interval(value: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return _signed(value)
    return f"{_signed(value)} [{_signed(low)}, {_signed(high)}]"


def _signed(value: float) -> str:
    return f"{value:.4f}".replace("-", "−")


def lengths() -> str:
    """G1: gains at equal FLOPs over lengths, intervals that allow for all four of them."""
    pairs = compared("campaign").pairs
    pairs = pairs[pairs["superposed_folder"].str.contains(r"/lengths-\d+-[^/]*$")]
    planned = (*LENGTHS, HELD_OUT_STEPS)
    lines = [
        "| steps | seeds | baseline | superposed | gain | deviation "
        "| found with 80% power | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for steps, own in pairs.groupby("steps"):
        found = paired(list(own["gain"]), comparisons=len(planned))
        lines.append(
            f"| {steps:,} | {found.seeds} | {own['baseline'].mean():.4f} | "
            f"{own['superposed'].mean():.4f} | {_shown(found)} "
            f"| {found.deviation:.4f} | {found.smallest_detectable:.4f} | {found.verdict} |"
        )
    return "\n".join(lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "gate": gate,
    "gate_changes": gate_changes,
    "lengths": lengths,
}


def with_tables(page: str) -> str:
    """The page with every table between its two marks made anew."""

    def made(mark: re.Match[str]) -> str:
        return f"<!-- {mark[1]} -->\n{BLOCKS[mark[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", made, page, flags=re.DOTALL)
