"""Stop runs, wherever they wait or train."""

from pathlib import Path

from experiments.launcher import UnreachableError, launchers
from experiments.plan.planned_run import matches
from experiments.runs.status import check_is_one_study, say_once


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
