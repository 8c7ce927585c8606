"""Cancelling runs, whoever trains them: only what is asked for, and only this study's."""

from __future__ import annotations

from pathlib import Path

from experiments.launcher import launchers
from experiments.select import matches
from tst_study.errors import UserError

MARK = "cancelled"
"""In a run's `job/`, until it is submitted again: no launcher starts or requeues it by itself."""


def mark_path(folder: Path) -> Path:
    return folder / "job" / MARK


def is_cancelled(folder: Path) -> bool:
    return mark_path(folder).exists()


def cancel_runs(root: Path, pattern: str) -> list[str]:
    """Cancel what matches, in queues and on this machine; returns the run ids."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; submit the study first, or name its folder")
    cancelled: set[str] = set()
    for one in launchers():
        stopped = one.cancel(root, lambda run: matches(run, pattern))
        cancelled |= stopped
    return sorted(cancelled)
