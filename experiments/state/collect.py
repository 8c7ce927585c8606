"""The results of a study (`tst-study collect`): the run table, figures, a report and a list of
missing runs. With `--keep`, also an archive of the runs that are over, which is small enough for
git."""

from collections.abc import Sequence
from pathlib import Path

from tst_study.atomic_files import disk_errors_named
from tst_study.errors import UserError
from tst_study.experiments.state.status import StatusRow, check_holds_runs
from tst_study.record.reader import FINAL_STATES

ROWS = 100
"""An archive keeps at least this many evenly spaced rows of a training curve, and all rows of a
shorter one (`Tables.thinned`)."""


def collect(root: Path, rows: Sequence[StatusRow]) -> list[str]:
    """Write `report/` into the study's folder `root`, and return lines that sum it up.

    The run table is always written, the figures and the report only if at least one run is over.
    `rows`: the status of all runs of the study. Raises `UserError`, for example if no run has a
    folder.
    """
    from tst_study.analysis.tables.source import load
    from tst_study.paper_figures.build import build
    from tst_study.paper_figures.item import csv_bytes, write_bytes

    check_holds_runs(root)
    over = [row for row in rows if row.state in FINAL_STATES]
    missing = [row for row in rows if row.state not in FINAL_STATES]
    report = root / "report"
    with disk_errors_named(report):
        report.mkdir(exist_ok=True)
    write_bytes(report / "runs.csv", csv_bytes(load(root), numbers=None))
    summary, written = ["No run is over yet."], "The table of runs"
    if over:
        summary = build(root, report, only=("study", "report")).sources.summary.lines()
        written = "Tables, figures and report.html"
    text = [*summary, "", f"{len(over)} runs over, {len(missing)} missing"]
    text += [f"  {row.run_id}: {row.state} {row.message}".rstrip() for row in missing]
    return [*text, f"{written}: {report}/"]


def keep(root: Path, to: Path) -> list[str]:
    """Add the runs below `root` that are over, and the study's questions, to the archive `to`,
    which is created if it is missing. Returns the ids of these runs.

    Of each long training curve, 100 to 200 evenly spaced rows are kept, and the rows of evaluated
    steps. Raises `UserError` if `root` holds no run, a damaged one, or `to`.
    """
    from tst_study.analysis.tables.archive import add_to_archive
    from tst_study.analysis.tables.source import read_tables
    from tst_study.analysis.verdict.question import add_questions, asks_of, read_questions

    if to.resolve().is_relative_to(root.resolve()):
        raise UserError(f"--keep {to}: lies in {root}; name a folder elsewhere")
    tables = read_tables(root)
    if tables.problems:
        raise UserError(tables.problems[0])
    over = tables.only(tables.runs["state"].isin(FINAL_STATES)).thinned(ROWS)

    def questions(folder: Path) -> None:
        asks = " ".join(asks_of([root])) or " ".join(asks_of([to]))
        add_questions(folder, [*read_questions(to), *read_questions(root)], asks)

    add_to_archive(to, over, questions)
    return sorted(over.runs["run_id"])
