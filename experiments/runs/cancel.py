"""Stop runs, wherever they wait or train."""

from pathlib import Path

from experiments.launcher import launchers
from experiments.plan.planned_run import matches
from experiments.runs.status import check_is_there


def cancel_runs(root: Path, pattern: str) -> list[str]:
    """Cancel what matches, in queues and on this machine, and only this study's; returns the run
    ids. Raises `UserError` for no such folder."""
    check_is_there(root)
    stopped = (one.cancel(root, lambda run: matches(run, pattern)) for one in launchers())
    return sorted(set().union(*stopped))
