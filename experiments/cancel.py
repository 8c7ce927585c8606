"""Cancelling runs, whoever trains them: only what is asked for, and only this study's."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from experiments.select import matches
from experiments.slurm import submission
from tst_study import run_lock
from tst_study.errors import UserError

MARK = "cancelled"
"""In a run's `job/`: a launcher on this machine neither starts nor requeues it."""


def mark_path(folder: Path) -> Path:
    return folder / "job" / MARK


def is_cancelled(folder: Path) -> bool:
    return mark_path(folder).exists()


def cancel_runs(root: Path, pattern: str) -> list[str]:
    """Cancel what matches, in the queue and on this machine; returns the run ids."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; submit the study first, or name its folder")
    cancelled = set(_jobs(root, pattern))
    for folder in sorted(path.parent for path in root.glob("*/job")):
        if matches(folder.name, pattern) and folder.name not in cancelled and _stop(folder):
            cancelled.add(folder.name)
    return sorted(cancelled)


def _jobs(root: Path, pattern: str) -> list[str]:
    if not submission.all_of(root):
        return []
    from experiments.slurm.cancel import cancel_jobs

    return cancel_jobs(root, lambda run: matches(run, pattern))


def _stop(folder: Path) -> bool:
    """Ask the process that holds the run to checkpoint and end, if it is one of this machine."""
    owner = run_lock.owner(folder)
    if owner is None or owner.host != os.uname().nodename:
        return False
    mark_path(folder).touch()
    with suppress(ProcessLookupError):
        os.kill(owner.process, signal.SIGTERM)
    return True
