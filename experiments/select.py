"""Runs chosen by what is written on the command line."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from experiments.planned_run import PlannedRun
from experiments.planner import Planner
from experiments.study import Study

STOPPED = frozenset({"failed", "preempted", "interrupted"})


def matches(run_id: str, pattern: str) -> bool:
    """A pattern of the shell's kind, or any part of the name."""
    return fnmatch(run_id, pattern) if set(pattern) & set("*?[") else pattern in run_id


def stopped(study: Study, root: Path, pattern: str, share: bool) -> Callable[[PlannedRun], bool]:
    """Says whether a run failed or was stopped, or waits for a trunk that did."""
    from experiments.status import rows_of

    runs = Planner(study, root, share).decided()
    states = {row.run_id: row.state for row in rows_of(study, root, share)}
    chosen = {
        run.run_id
        for run in runs
        if states.get(run.run_id) in STOPPED and matches(run.run_id, pattern)
    }

    def only(run: PlannedRun) -> bool:
        return run.run_id in chosen or (run.trunk is not None and run.trunk.run_id in chosen)

    return only
