"""The tables of docs/findings.md, computed from the records that they stand on: `make docs`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from analysis.compare.comparison import compare
from analysis.compare.set_ups import LAG, set_ups
from analysis.run_table import load
from analysis.runs.run_row import rows_of

RECORDS = Path(__file__).parent / "records"


def gate() -> str:
    """Set-ups of docs/plan-of-runs.md, G0: where the baseline is at its best, and who lags."""
    found = compare(load(RECORDS / "gate"))
    table = set_ups(found).sort_values("baseline", ignore_index=True)
    lines = [
        "| set-up | seeds | baseline | above the lowest | superposed | gain | deviation of a gain "
        "| lagging: baselines, superposed |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows_of(table):
        name = f"**{row['set_up']}** (chosen)" if row["chosen"] else row["set_up"]
        above = "–" if row["low"] is None or pd.isna(row["low"]) else _interval(row)
        lines.append(
            f"| {name} | {row['seeds']} | {row['baseline']:.4f} | {above} | "
            f"{row['superposed']:.4f} | {_signed(row['gain'])} | {row['deviation']:.4f} | "
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


def _interval(row: dict[str, float]) -> str:
    return f"{_signed(row['above_best'])} [{_signed(row['low'])}, {_signed(row['high'])}]"


def _signed(value: float) -> str:
    return f"{value:.4f}".replace("-", "−")


BLOCKS: dict[str, Callable[[], str]] = {"gate": gate}


def with_tables(page: str) -> str:
    """The page with every table between its two marks made anew."""

    def made(mark: re.Match[str]) -> str:
        return f"<!-- {mark[1]} -->\n{BLOCKS[mark[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", made, page, flags=re.DOTALL)
