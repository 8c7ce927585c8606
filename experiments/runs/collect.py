"""What a study came to: run table, figures, report, the runs that are missing; and records of those
that are over, small enough to be kept in git."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.runs.status import StatusRow, check_is_there, rows_below
from tst_study import run_record
from tst_study.atomic_files import write_json, written_atomically
from tst_study.run.writer import line_of
from tst_study.run_record import FINAL_STATES, Metrics

ROWS = 100
WHOLE = ("run.json", "evals.jsonl", "segments.jsonl", "status.json")


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


def collect(root: Path, rows: Sequence[StatusRow] | None = None) -> Collected:
    """Write `report/` beside the runs, from whatever is there. `UserError` for no such folder.

    `rows`: of the study's own list of runs, where it is known; else runs that never began are not
    missed.
    """
    from analysis.tables.source import load
    from paper_figures.build import build
    from paper_figures.item import csv_bytes, write_bytes

    check_is_there(root)
    rows = rows_below(root) if rows is None else rows
    over = [one for one in rows if one.state in FINAL_STATES]
    missing = [one for one in rows if one.state not in FINAL_STATES]
    report = root / "report"
    report.mkdir(exist_ok=True)
    table = load(root)
    write_bytes(report / "runs.csv", csv_bytes(table, numbers=None))
    table.to_parquet(report / "runs.parquet", index=False)
    summary = (
        build(root, report, only=("study", "report")).sources.summary.lines()
        if over
        else ["No run is over yet."]
    )
    # Last: by it a later submission sees that the study was collected.
    write_json(
        report / "collected.json",
        {
            "over": [one.run_id for one in over],
            "missing": {one.run_id: f"{one.state} {one.message}".strip() for one in missing},
        },
    )
    return Collected(report, over, missing, summary)


def keep(root: Path, to: Path) -> list[Path]:
    """Write the record of every run below `root` that is over into a folder of its name in `to`;
    returns these folders: what figures and comparisons read, without checkpoints and logs, and of
    the training curve about a hundred rows. Raises `UserError` for a damaged run.

    A study whose run folder is made from such records again skips these runs and trains the rest.
    """
    kept = []
    for folder in run_record.find_run_folders(root):
        if run_record.is_over(folder):
            record, place = run_record.read(folder), to / folder.name
            place.mkdir(parents=True, exist_ok=True)
            for name in WHOLE:
                if (folder / name).exists():  # of a run that diverged early, not all are
                    shutil.copyfile(folder / name, place / name)
            evaluated = {row["step"] for row in record.evals}
            with written_atomically(place / "metrics.jsonl") as file:
                for row in thinned(record.metrics, evaluated):
                    file.write(line_of(row).encode())
            kept.append(place)
    return kept


def thinned(rows: Sequence[Metrics], evaluated: set[int]) -> list[Metrics]:
    """About `ROWS` of them, evenly, with the first, the last and those of evaluated steps."""
    every = max(1, len(rows) // ROWS)
    last = len(rows) - 1
    return [
        row
        for place, row in enumerate(rows)
        if place % every == 0 or place == last or row["step"] in evaluated
    ]
