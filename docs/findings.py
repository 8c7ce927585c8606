"""The tables of docs/findings.md, computed from the records that they stand on: `make docs`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pandas as pd

from analysis.compare.comparison import Comparison, compare
from analysis.compare.paired import paired
from analysis.compare.set_ups import LAG, set_ups
from analysis.tables.columns import Tables, rows_of
from analysis.tables.source import read_tables
from docs import campaign_tables
from docs.campaign_tables import shown, with_interval

RECORDS = Path(__file__).parent / "records"


@cache
def recorded(record: str) -> Tables:
    """Read once for all that is said of it."""
    return read_tables(RECORDS / record)


@cache
def compared(record: str) -> Comparison:
    return compare(recorded(record).runs)


def gate() -> str:
    """Set-ups of plan-of-runs.md, G0: where the baseline is at its best, and who lags."""
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
        above = with_interval(row["above_best"], row["low"], row["high"]) if known else "–"
        own = found.pairs["baseline_folder"].isin(row["baselines"])
        gain = shown(paired(list(found.pairs["gain"][own])))
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
        cells = " | ".join(shown(paired(list(moved[name]))) for name in numbers)
        lines.append(f"| {words} | {cells} |")
    return "\n".join(lines)


def _of_campaign(table: Callable[[Comparison], str]) -> str:
    return table(compared("campaign"))


BLOCKS: dict[str, Callable[[], str]] = {
    "gate": gate,
    "gate_changes": gate_changes,
    "context": lambda: campaign_tables.context(
        compared("campaign"), recorded("campaign").evaluations
    ),
    **{
        table.__name__: partial(_of_campaign, table)
        for table in (
            campaign_tables.lengths,
            campaign_tables.primary,
            campaign_tables.rates,
            campaign_tables.step_ratios,
            campaign_tables.bag_sizes,
            campaign_tables.sizes,
            campaign_tables.ablations,
            campaign_tables.output_only,
            campaign_tables.little_text,
            campaign_tables.generated,
            campaign_tables.predictions,
        )
    },
}


def with_tables(page: str) -> str:
    """The page with every table between its two marks made anew."""

    def made(mark: re.Match[str]) -> str:
        return f"<!-- {mark[1]} -->\n{BLOCKS[mark[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", made, page, flags=re.DOTALL)
