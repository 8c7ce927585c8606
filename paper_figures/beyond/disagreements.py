"""Where the paper disagrees with itself: its tables against its curves, grids and trends."""

from __future__ import annotations

from analysis.disagreements import disagreements as find_disagreements
from analysis.run_row import rows_of
from analysis.wording import number
from paper_figures.item import Finding
from paper_figures.registration import figure
from paper_figures.sources import Sources
from paper_figures.table import Entry, Grid, Row, Table, number_entry

CHECKS = {
    "check": lambda row: row["what"],
    "verdict": lambda row: Entry(f"{row['verdict']}s", row["verdict"] == "disagree"),
    "here": lambda row: row["here"],
    "value here": lambda row: _number(row, "value"),
    "there": lambda row: row["there"],
    "value there": lambda row: _number(row, "other"),
    "difference": lambda row: _number(row, "difference", sign=True),
    "allowed": lambda row: _number(row, "allowed"),
}
NOTES = {"check": lambda row: row["what"], "finding": lambda row: row["note"]}


@figure(
    "disagreements",
    title="Where the paper disagrees with itself",
    published=["headline_runs", "final_loss_grid", "loss_curves"],
)
def disagreements(_sources: Sources) -> Table:
    """One table of all checks, those that disagree first."""
    data = find_disagreements().sort_values("verdict", ascending=False, kind="stable")
    found = data[data["verdict"] == "disagree"]
    notes = Grid.of(rows_of(found), NOTES, "What disagrees, in words")
    return Table(
        caption=f"{number(len(data), 'check')} of published numbers against one another, "
        f"{len(found)} of which disagree by more than rounding or reading a curve allows. Bold: "
        "those. Losses in nats per token.",
        data=data.reset_index(drop=True),
        grids=(Grid.of(rows_of(data), CHECKS), notes),
        finding=Finding(
            f"{len(found)} of {len(data)} checks disagree: " + "; ".join(found["what"])
        ),
    )


def _number(row: Row, column: str, sign: bool = False) -> Entry:
    """Losses have four digits, hours and tokens one."""
    size = abs(row["other"] if column == "other" else row["value"])
    return number_entry(row[column], 4 if size < 10 else 1, sign=sign)
