"""The progress of runs, read from their folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tst_study import file_lock
from tst_study.config import schema as config
from tst_study.errors import UserError
from tst_study.experiments.launcher import Job, launchers
from tst_study.experiments.plan.planned_run import DAMAGED, PlannedRun, matches
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.run_process import cancel_mark, config_path
from tst_study.experiments.study import Study
from tst_study.record import reader as run_record

STOPPED = frozenset({"failed", "preempted", "interrupted", "cancelled", "blocked", DAMAGED})
"""States of a run that needs somebody's help: no launcher goes on with it by itself."""


@dataclass(frozen=True)
class StatusRow:
    run_id: str
    state: str
    """A state of the run record, or one of these: `waiting`, before there is a record; `queued`,
    while a launcher has a job for it that does not train it yet; `cancelled`, until it is submitted
    again; `blocked` by a shared prefix run that will not finish by itself; `interrupted`, if the
    record says `running` but no process trains it; `damaged`, if the record cannot be read.
    `failed` is also the state of a run whose job failed before the run could record an end."""
    step: int
    steps: int
    phase: str
    loss: float | None
    """Training loss of the last step that was logged; in the superposition phase the bag loss."""
    tokens_per_second: float | None
    seconds_left: float | None
    message: str
    job: str = ""
    """Slurm's job id, such as `123_4`."""
    held_out: float | None = None
    """Held-out next-token loss of the last evaluation, by which runs are compared."""


def row(folder: Path, steps: int = 0, job: Job | None = None) -> StatusRow:
    """The status of one run folder, which need not exist yet. `steps`: the planned number."""
    try:
        status = run_record.read_status(folder)
        state, message = _state(status, folder, job)
    except UserError as error:
        status, state, message = None, DAMAGED, str(error)
    known_status: Mapping[str, Any] = status or {"step": 0, "steps": 0}
    running = status is not None and state == "running"
    evaluation = run_record.last_evaluation(folder)
    return StatusRow(
        run_id=folder.name,
        state=state,
        step=known_status["step"],
        steps=known_status["steps"] or steps,
        phase=known_status.get("phase", "") if running else "",
        loss=known_status.get("loss"),
        tokens_per_second=known_status.get("tokens_per_second") if running else None,
        seconds_left=known_status.get("seconds_left") if running else None,
        message=message,
        job=job.id if job else "",
        held_out=evaluation and evaluation["nats_per_token"],
    )


def _state(status: run_record.Status | None, folder: Path, job: Job | None) -> tuple[str, str]:
    """State and message. The run's record comes first, then its lock, then its job."""
    state, message = (status["state"], status["message"]) if status else ("waiting", "")
    remark, queued = (job.remark, job.state) if job else ("", "")
    if state in run_record.FINAL_STATES:
        return state, message
    if file_lock.is_held(folder) or queued == state == "running":
        told = remark if queued == "running" and remark else message
        return "running", told if state == "running" else "starting"
    if job is not None and job.is_active:
        return "queued", "starting" if queued == "running" else remark
    if state in ("waiting", "preempted", "running") and cancel_mark(folder).exists():
        return "cancelled", message or ("before it began" if state == "waiting" else "")
    if state == "waiting":
        return queued if queued in ("failed", "cancelled") else state, remark
    if state == "running":
        return "failed" if queued == "failed" else "interrupted", remark or message
    return state, message


def rows_of(study: Study) -> list[StatusRow]:
    """The status of every run that the study has decided on, and of every other run in its folder.
    Raises `UserError` if its corpora are not prepared."""
    return _rows(study.folder, Planner(study).decided())


def rows_below(root: Path) -> list[StatusRow]:
    """The status of all runs in a folder, including those that failed before they had a record."""
    check_is_there(root)
    return _rows(root, [])


def _rows(root: Path, planned: Iterable[PlannedRun]) -> list[StatusRow]:
    """The status of runs with their jobs. If a launcher does not answer, that is printed, and no
    job is known."""
    runs = {run.folder: run for run in planned}
    known = {folder.name for folder in runs}
    folders = [*runs, *(path for path in folders_below(root) if path.name not in known)]
    try:
        jobs = {run: job for launcher in launchers() for run, job in launcher.jobs(root).items()}
    except UserError as error:
        print(f"without job states: {error}", file=sys.stderr)
        jobs = {}
    rows = [
        row(folder, runs[folder].steps if folder in runs else 0, jobs.get(folder.name))
        for folder in folders
    ]
    states = {entry.run_id: entry.state for entry in rows}

    def told(entry: StatusRow, folder: Path) -> StatusRow:
        """Mark a run that waits for a shared prefix run as blocked, if the shared prefix run has
        stopped."""
        if entry.state in ("waiting", "cancelled"):
            prefix = _prefix_of(folder, runs.get(folder))
            if states.get(prefix) in STOPPED:
                why = f"its shared prefix run {prefix}: {states[prefix]}"
                return replace(entry, state="blocked", message=why)
        return entry

    return [told(entry, folder) for entry, folder in zip(rows, folders, strict=True)]


def _prefix_of(folder: Path, run: PlannedRun | None) -> str:
    """The id of the run's shared prefix run, from its plan or its config; empty if it has none."""
    if run is not None:
        return run.prefix.run_id if run.prefix else ""
    try:
        fork = config.load(config_path(folder)).execution.fork_from
    except UserError:
        return ""
    return Path(fork.folder).name if fork else ""


def matching(rows: Sequence[StatusRow], pattern: str, root: Path) -> list[StatusRow]:
    """The rows whose run ids match. Raises `UserError` if none does, or there are no rows."""
    if not rows:
        raise UserError(f"{root}: no run folder there; name the folder that holds the runs")
    chosen = [entry for entry in rows if matches(entry.run_id, pattern)]
    if pattern and not chosen:
        raise UserError(
            f"{root}: no run's name has {pattern!r} in it; `tst-study status` lists them"
        )
    return chosen


def stopped(study: Study, pattern: str) -> Callable[[PlannedRun], bool]:
    """A function that tells whether to retry a run: one that matches and failed or was stopped, a
    branch of such a shared prefix run, or the shared prefix run of such a branch."""
    rows = matching(rows_of(study), pattern, study.folder)
    chosen = {entry.run_id for entry in rows if entry.state in STOPPED}
    planned = Planner(study).decided()
    prefixes = {run.prefix.run_id for run in planned if run.prefix and run.run_id in chosen}

    def wanted(run: PlannedRun) -> bool:
        branches = run.prefix is not None and run.prefix.run_id in chosen
        return run.run_id in chosen | prefixes or branches

    return wanted


def check_is_there(root: Path) -> None:
    """Raise `UserError` if there is no such folder."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; submit the study first, or name its folder")


def check_is_one_study(root: Path) -> None:
    """Raise `UserError` if there is no such folder, or if it holds folders of several studies."""
    check_is_there(root)
    below = {path.parent for path in folders_below(root)}
    if below and root not in below:
        raise UserError(f"{root}: holds studies; name one of them, such as {min(below)}")


def folders_below(root: Path) -> list[Path]:
    """Run folders directly below a study's folder; if there are none, those at any depth."""
    if not root.is_dir():
        return []
    files, exists = ("status.json", "run.json", "job/config.toml"), os.path.exists
    folders = [
        root / name
        for name in os.listdir(root)
        if any(exists(f"{root}/{name}/{file}") for file in files)
    ]
    return sorted(folders) or run_record.find_run_folders(root)
