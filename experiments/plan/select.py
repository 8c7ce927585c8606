"""Runs chosen by what is written on the command line."""

from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from experiments.plan.planned_run import PlannedRun
from experiments.plan.planner import Planner
from experiments.runs.status import STOPPED, rows_of
from experiments.study import Study


def matches(run_id: str, pattern: str) -> bool:
    """A pattern of the shell's kind, or any part of the name."""
    return fnmatch(run_id, pattern) if set(pattern) & set("*?[") else pattern in run_id


def stopped(study: Study, root: Path, pattern: str, share: bool) -> Callable[[PlannedRun], bool]:
    """Says whether a run failed or was stopped, or its trunk did, or it is the trunk of such."""
    states = {row.run_id: row.state for row in rows_of(study, root, share)}
    named = [
        run
        for run in Planner(study, root, share).decided()
        if states.get(run.run_id) in STOPPED and matches(run.run_id, pattern)
    ]
    chosen = {run.run_id for run in named}
    trunks = {run.trunk.run_id for run in named if run.trunk}

    def wanted(run: PlannedRun) -> bool:
        branches = run.trunk is not None and run.trunk.run_id in chosen
        return run.run_id in chosen | trunks or branches

    return wanted
