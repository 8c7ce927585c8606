"""What launchers are asked for a study's runs: to stop them, and for their logs."""

from collections.abc import Iterator
from pathlib import Path

from tst_study.errors import UserError
from tst_study.experiments.launcher import UnreachableError, launchers
from tst_study.experiments.plan.planned_run import matches
from tst_study.experiments.state.status import (
    STOPPED,
    check_is_one_study,
    matching,
    rows_below,
    say_once,
)
from tst_study.text import printable


def cancel_runs(root: Path, pattern: str) -> list[str]:
    """Cancel what matches, in queues and on this machine, and only this study's; returns the run
    ids. Raises `UserError` for what is no folder of a study, and where nothing was cancelled and
    a launcher could not be asked; it is said where something was."""
    check_is_one_study(root)
    stopped: set[str] = set()
    problems: list[UnreachableError] = []
    for one in launchers():
        try:
            stopped |= one.cancel(root, lambda run: matches(run, pattern))
        except UnreachableError as error:
            problems.append(error)
    if problems and not stopped:
        raise problems[0]
    for problem in problems:
        say_once(f"without jobs that are queued: {problem}")
    return sorted(stopped)


def log_tails(root: Path, pattern: str, lines: int) -> Iterator[str]:
    """A heading and the last lines for each run that matches; those that failed, without a
    pattern. Raises `UserError` where none does."""
    check_is_one_study(root)
    rows = matching(rows_below(root), pattern, root)
    chosen = [row for row in rows if pattern or row.state in STOPPED]
    if not chosen:
        raise UserError(f"{root}: no run failed; `tst-study status` lists them")
    for row in chosen:
        yield printable(f"=== {row.run_id}: {row.state} {row.message}".rstrip())
        shown = False
        for path in (path for one in launchers() for path in one.logs(root, row.run_id)):
            if path.exists() and (text := path.read_text(errors="replace").strip()):
                yield f"--- {path}"
                yield from map(printable, text.splitlines()[-lines:])
                shown = True
        if not shown:
            yield "no log yet"
