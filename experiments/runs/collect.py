"""What a study came to: run table, figures, report, and the runs that are missing."""

from dataclasses import dataclass
from pathlib import Path

from experiments.runs.status import StatusRow, rows_below
from tst_study.atomic_files import write_json
from tst_study.run_record import FINAL_STATES


@dataclass(frozen=True)
class Collected:
    report: Path
    over: list[StatusRow]
    missing: list[StatusRow]
    summary: list[str]

    def lines(self) -> list[str]:
        text = [*self.summary, "", f"{len(self.over)} runs over, {len(self.missing)} missing"]
        text += [f"  {one.run_id}: {one.state} {one.message}".rstrip() for one in self.missing]
        return [*text, f"Tables, figures and report: {self.report}/"]


def collect(root: Path) -> Collected:
    """Write `report/` beside the runs, from whatever is there. `UserError` for no such folder."""
    from analysis.run_table import load
    from paper_figures.build import build
    from paper_figures.item import csv_bytes, write_bytes

    rows = rows_below(root)
    over = [one for one in rows if one.state in FINAL_STATES]
    missing = [one for one in rows if one.state not in FINAL_STATES]
    report = root / "report"
    report.mkdir(exist_ok=True)
    table = load(root)
    write_bytes(report / "runs.csv", csv_bytes(table, numbers=None))
    table.to_parquet(report / "runs.parquet", index=False)
    write_json(
        report / "collected.json",
        {
            "over": [one.run_id for one in over],
            "missing": {one.run_id: f"{one.state} {one.message}".strip() for one in missing},
        },
    )
    summary = (
        build(root, report, only=("study", "report")).sources.summary.lines()
        if over
        else ["No run is over yet."]
    )
    return Collected(report, over, missing, summary)
