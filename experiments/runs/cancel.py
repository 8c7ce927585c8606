"""Cancelling runs, whoever trains them: only what is asked for, and only this study's."""

from pathlib import Path

from experiments.launcher import launchers
from experiments.plan.select import matches
from tst_study.errors import UserError


def cancel_runs(root: Path, pattern: str) -> list[str]:
    """Cancel what matches, in queues and on this machine; returns the run ids."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; submit the study first, or name its folder")
    cancelled: set[str] = set()
    for one in launchers():
        stopped = one.cancel(root, lambda run: matches(run, pattern))
        cancelled |= stopped
    return sorted(cancelled)
