"""Where the paper disagrees with itself: its tables against its curves, grids and trends."""

from analysis.paper.disagreements import disagreements as find_disagreements
from analysis.tables.columns import rows_of
from analysis.wording import number
from paper_figures.item import Finding
from paper_figures.registration import figure
from paper_figures.sources import Sources
from paper_figures.table import Entry, Grid, Row, Table, number_entry

CHECKS = {
    "check": lambda row: row["what"],
    "verdict": lambda row: Entry(
        row["verdict"].replace("agree", "agrees"), row["verdict"] != "agree"
    ),
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
    """One table of all checks, those with a finding first."""
    data = find_disagreements()
    order = {"disagree": 0, "agree too closely": 1, "agree": 2}
    data = data.sort_values("verdict", key=lambda words: words.map(order), kind="stable")
    found = data[data["verdict"] != "agree"]
    apart = int((data["verdict"] == "disagree").sum())
    notes = Grid.of(rows_of(found), NOTES, "What disagrees, in words")
    return Table(
        caption=f"{number(len(data), 'check')} of published numbers against one another, "
        f"{apart} of which disagree by more than rounding or reading a curve allows, and "
        f"{len(found) - apart} agree too closely with what ought to differ. Bold: those. Losses in "
        "nats per token.",
        data=data.reset_index(drop=True),
        grids=(Grid.of(rows_of(data), CHECKS), notes),
        finding=Finding(
            f"{apart} of {len(data)} checks disagree, {len(found) - apart} agree too closely: "
            + "; ".join(found["what"])
        ),
    )


def _number(row: Row, column: str, sign: bool = False) -> Entry:
    """Losses have four digits, hours and tokens one."""
    size = abs(row["other"] if column == "other" else row["value"])
    return number_entry(row[column], 4 if size < 10 else 1, sign=sign)
