"""The results of a study (`tst-study collect`): the run table, figures, a report and a list of
missing runs. With `--keep`, also an archive of the runs that are over, which is small enough for
git."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tst_study.analysis.tables.eligible import SAME_LOSS
from tst_study.analysis.tables.source import NO_LONGER_ASKED
from tst_study.atomic_files import disk_errors_named, written_atomically
from tst_study.errors import UserError
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.state.status import StatusRow, check_holds_runs, left_runs
from tst_study.experiments.study import Study
from tst_study.record.reader import FINAL_STATES

ROWS = 100
"""An archive keeps at least this many evenly spaced rows of a training curve, and all rows of a
shorter one (`Tables.thinned`)."""


def collect(root: Path, status: Callable[[bool], Sequence[StatusRow]]) -> list[str]:
    """Write `report/` into the study's folder `root`, and return lines that sum it up.

    The run table is always written, the figures and the report only if at least one run is over.
    `status`: returns the status of all runs of the study; told whether to look for a damaged
    `run.json`. Raises `UserError`, for example if no run has a folder.
    """
    from tst_study.analysis.tables.source import read_tables
    from tst_study.paper_figures.build import build
    from tst_study.paper_figures.item import csv_bytes, write_bytes

    check_holds_runs(root)
    report = root / "report"
    with disk_errors_named(report):
        report.mkdir(exist_ok=True)
    tables = read_tables(root)
    # A header that is damaged is among the problems: only then are all read again.
    rows = status(any("/run.json" in problem for problem in tables.problems))
    over = [row for row in rows if row.state in FINAL_STATES]
    missing = [row for row in rows if row.state not in FINAL_STATES]
    write_bytes(report / "runs.csv", csv_bytes(tables.runs, numbers=None))
    summary, written = ["No run is over yet."], "The table of runs"
    if over:
        summary = build(tables, report, only=("study", "report")).sources.summary.lines()
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


def keep_existing(study: Study) -> None:
    """Write the runs of the study's `recorded` archives that the study itself plans, or that its
    questions cover, to the archive `existing/` in its folder. There a reader finds them
    beside the runs that were trained for the study."""
    from tst_study.analysis.tables.archive import add_to_archive
    from tst_study.analysis.tables.columns import Tables
    from tst_study.analysis.tables.source import read_tables

    if not study.recorded or not study.files:
        return
    tables = read_tables(study.recorded)
    tables = tables.only(tables.runs["role"] != "trunk")
    fingerprints = {run.fingerprint for run in Planner(study, unprepared=True).asked_for()}
    wanted = tables.runs["fingerprint"].isin(fingerprints)
    for question in study.questions:
        for runs in question.runs(tables.runs.assign(setting=tables.runs["arm"])):
            wanted |= tables.runs["run_id"].isin(runs["run_id"])
    if wanted.any():
        chosen: Tables = tables.only(wanted & tables.runs["state"].isin(FINAL_STATES))
        for _, copies in chosen.runs.groupby("fingerprint"):
            if copies["nats_per_token"].max() - copies["nats_per_token"].min() > SAME_LOSS:
                folders = " and ".join(copies["folder"])
                raise UserError(f"one run with two results, {folders}; keep the archive of one")
        once = chosen.only(~chosen.runs["fingerprint"].duplicated())
        add_to_archive(study.folder / "existing", once, lambda folder: None)


def mark_left(study: Study) -> None:
    """Write a list of the runs that the study does not ask for any more, so that nobody who reads
    its folder judges them. While the study's text is missing, no run can be recognised, and nothing
    is written."""
    try:
        left = left_runs(study, for_good=False)
    except UserError:
        return
    path = study.folder / NO_LONGER_ASKED
    if left or path.exists():
        reason = "the study's file no longer asks for it"
        lines = ["run,reason", *(f"{folder.name},{reason}" for folder in left)]
        with written_atomically(path) as file:
            file.write("\n".join([*lines, ""]).encode())
