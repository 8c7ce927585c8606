"""Stops the runs of a study and shows their logs, through the launchers."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tst_study.errors import UserError
from tst_study.experiments.launcher import launchers
from tst_study.experiments.plan.planned_run import matches
from tst_study.experiments.state.status import STOPPED, check_holds_runs, matching, rows_below
from tst_study.text import printable


def cancel_runs(root: Path, pattern: str) -> list[str]:
    """Cancel the runs of a study whose ids match `pattern`, both on Slurm and on this machine.
    Returns the ids of the cancelled runs. Runs that another user's jobs train are named and left.

    Raises `UserError` if no run lies directly in the folder, and if a launcher cannot be asked; but
    if another launcher has cancelled something, the failure is only printed."""
    check_holds_runs(root)
    stopped, theirs = set[str](), set[str]()
    problem = None
    for launcher in launchers():
        with suppress(UserError):
            for run, job in launcher.jobs(root).items():
                if job.is_active and job.owner and matches(run, pattern):
                    theirs.add(run)
                    print(f"left alone: {run}: job {job.id} of {job.owner}", file=sys.stderr)
    for launcher in launchers():
        try:
            stopped |= launcher.cancel(root, lambda r: r not in theirs and matches(r, pattern))
        except UserError as error:
            problem = error
    if problem and not stopped:
        raise problem
    if problem:
        print(f"some queued jobs may remain: {problem}", file=sys.stderr)
    return sorted(stopped)


def log_tails(root: Path, pattern: str, lines: int) -> Iterator[str]:
    """Yield the lines to print: for each run that matches, a heading and the last `lines` lines of
    each of its logs.

    Without a pattern, these are the runs whose state is one of `STOPPED`. Raises `UserError` if
    there are none.
    """
    rows = matching(rows_below(root), pattern, root)
    chosen = [row for row in rows if pattern or row.state in STOPPED]
    if not chosen:
        raise UserError(f"{root}: no run failed or was stopped; `tst-study status` lists all")
    for row in chosen:
        yield printable(f"=== {row.run_id}: {row.state} {row.message}".rstrip())
        shown = False
        for path in (path for launcher in launchers() for path in launcher.logs(root, row.run_id)):
            if path.exists() and (text := path.read_text(errors="replace").strip()):
                yield f"--- {path}"
                yield from map(printable, text.splitlines()[-lines:])
                shown = True
        if not shown:
            yield "no log yet"
