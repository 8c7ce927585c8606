"""Where the paper disagrees with itself: its tables against its curves, grids and trends."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.disagreements import disagreements
from analysis.run_row import rows_of
from analysis.wording import number
from paper_figures.item import Finding, Item, Missing
from paper_figures.published_numbers import CURVES, HEADLINE, LOSSES
from paper_figures.sources import Sources
from paper_figures.table import Entry, Grid, Table, number_entry

TITLE = "Where the paper disagrees with itself"


def items(sources: Sources, name: str) -> list[Item | Missing]:
    """One table of all checks, those that disagree first."""
    data = disagreements().sort_values("verdict", ascending=False, kind="stable")
    found = data[data["verdict"] == "disagree"]
    return [
        Table(
            "disagreements",
            name,
            TITLE,
            f"{number(len(data), 'check')} of published numbers against one another, "
            f"{len(found)} of which disagree by more than rounding or reading a curve allows. "
            "Bold: "
            "those. Losses in nats per token.",
            data.reset_index(drop=True),
            (),
            (_checks(data), _notes(found)),
            published=(HEADLINE, LOSSES, CURVES),
            finding=Finding(
                f"{len(found)} of {len(data)} checks disagree: " + "; ".join(found["what"]),
            ),
        )
    ]


def _checks(data: pd.DataFrame) -> Grid:
    headings = ("check", "here", "value", "there", "value", "difference", "allowed", "verdict")
    return Grid("", headings, tuple(_row(row) for row in rows_of(data)))


def _row(row: dict[str, Any]) -> tuple[Entry, ...]:
    return (
        Entry(row["what"]),
        Entry(row["here"]),
        number_entry(row["value"], _digits(row["value"])),
        Entry(row["there"]),
        number_entry(row["other"], _digits(row["other"])),
        number_entry(row["difference"], _digits(row["value"]), sign=True),
        number_entry(row["allowed"], _digits(row["value"])),
        Entry(f"{row['verdict']}s", row["verdict"] == "disagree"),
    )


def _digits(value: float) -> int:
    """Losses have four, hours and tokens none or one."""
    return 4 if abs(value) < 10 else 1


def _notes(found: pd.DataFrame) -> Grid:
    rows = tuple((Entry(row["what"]), Entry(row["note"])) for row in rows_of(found))
    return Grid("What disagrees, in words", ("check", "finding"), rows)
