"""How far runs are, read from their folders alone."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tst_study.checkpoints.places import checkpoint_place
from tst_study.config import schema as config
from tst_study.errors import UserError
from tst_study.experiments.launcher import Job, launchers
from tst_study.experiments.plan.planned_run import DAMAGED, PlannedRun, matches
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.run_process import cancel_mark, config_path
from tst_study.experiments.studies.catalogue import on_device
from tst_study.experiments.study import Study
from tst_study.record import lock as run_lock
from tst_study.record import reader as run_record
from tst_study.text import duration

QUIET_SECONDS = 60.0
"""For which a run may say nothing, whatever its steps take: an evaluation, a checkpoint."""
FULL_BYTES = 2**20
STOPPED = frozenset({"failed", "preempted", "interrupted", "cancelled", "blocked", DAMAGED})
"""States in which nothing happens until the run is submitted again."""


@dataclass(frozen=True)
class StatusRow:
    run_id: str
    state: str
    """A state of the run record, or before there was any: `waiting`; `cancelled`, which nothing
    but a new submission undoes; `blocked` by a trunk that will not end by itself. `interrupted`
    says that it runs, but no process does."""
    step: int
    steps: int
    phase: str
    loss: float | None
    """Of the last training step that was logged: of bags, while it is superposed."""
    tokens_per_second: float | None
    seconds_left: float | None
    message: str
    job: str = ""
    """Of Slurm: `123_4`."""
    held_out: float | None = None
    """Next-token loss of the last evaluation, by which runs are compared."""


def row(folder: Path, steps: int = 0, job: Job | None = None) -> StatusRow:
    """The state of one run folder, which need not exist yet; `steps` are those planned for it."""
    try:
        status = run_record.read_status(folder)
        state, message = _state(status, folder, job)
    except UserError as error:
        status, state, message = None, DAMAGED, str(error)
    said: Mapping[str, Any] = status or {"step": 0, "steps": 0}
    running = status is not None and state == "running"
    if status is not None and running:
        message = "; ".join(filter(None, (_silent(status), message)))
    if status is not None and state in ("failed", "interrupted", "preempted"):
        message = "; ".join(filter(None, (message, _obstacle(folder))))
    evaluation = run_record.last_evaluation(folder)
    return StatusRow(
        run_id=folder.name,
        state=state,
        step=said["step"],
        steps=said["steps"] or steps,
        phase=said.get("phase", "") if running else "",
        loss=said.get("loss"),
        tokens_per_second=said.get("tokens_per_second") if running else None,
        seconds_left=said.get("seconds_left") if running else None,
        message=message,
        job=job.id if job else "",
        held_out=evaluation and evaluation["nats_per_token"],
    )


def _state(status: run_record.Status | None, folder: Path, job: Job | None) -> tuple[str, str]:
    """With a message. The run's own word comes first, then its lock, then what its launcher knows
    of its job."""
    state, message = (status["state"], status["message"]) if status else ("waiting", "")
    remark, queued = (job.remark, job.state) if job else ("", "")
    if state in run_record.FINAL_STATES:
        return state, message
    if run_lock.is_held(folder) or queued == state == "running":
        said = remark if queued == "running" and remark else message
        return "running", said if state == "running" else "starting"
    if job is not None and job.is_active:
        return "queued", "starting" if queued == "running" else remark
    if state in ("waiting", "preempted") and cancel_mark(folder).exists():
        return "cancelled", message or "before it began"
    if state == "waiting":
        return queued if queued in ("failed", "cancelled") else state, remark
    if state == "running":
        return "failed" if queued == "failed" else "interrupted", remark or message
    return state, message


def _silent(status: run_record.Status) -> str:
    """Says so of a run that is longer without a word than two of its steps, and than what stands
    between steps usually takes."""
    lag = time.time() - status["heartbeat"]
    left, steps = status.get("seconds_left"), status["steps"] - status["step"]
    usual = left / steps if left and steps else 0.0
    if lag <= max(2 * usual, QUIET_SECONDS):
        return ""
    return f"silent for {duration(lag)}: hangs? (a step takes {duration(usual)})"


def _obstacle(folder: Path) -> str:
    """What stands in the way of the run's next launch, and what to do about it."""
    with suppress(OSError):
        if not os.access(folder, os.W_OK, effective_ids=True):
            number = folder.stat().st_uid
            owner = f"user {number}"
            with suppress(KeyError):  # known by a name
                owner = pwd.getpwuid(number).pw_name
            return f"its folder is {owner}'s: have it handed over, or submit with --runs elsewhere"
        if shutil.disk_usage(folder).free < FULL_BYTES:
            return "the disk is full: make room, then retry"
    return ""


def rows_of(study: Study) -> list[StatusRow]:
    """Every run that the study has decided on and every other one in its folder. `UserError` where
    its corpora are not prepared."""
    return _rows(study.folder, Planner(study).decided())


def rows_below(root: Path) -> list[StatusRow]:
    """All runs of a study's folder, also those that failed before they wrote a record."""
    check_is_there(root)
    return _rows(root, [])


def _rows(root: Path, planned: Iterable[PlannedRun]) -> list[StatusRow]:
    """With their jobs; without any, which is said, where nobody answers for those."""
    runs = {run.folder: run for run in planned}
    known = {folder.name for folder in runs}
    folders = [*runs, *(path for path in folders_below(root) if path.name not in known)]
    try:
        jobs = {run: job for one in launchers() for run, job in one.jobs(root).items()}
    except UserError as error:
        say_once(f"without job states: {error}")
        jobs = {}
    rows = [
        row(folder, runs[folder].steps if folder in runs else 0, jobs.get(folder.name))
        for folder in folders
    ]
    states = {one.run_id: one.state for one in rows}

    def told(one: StatusRow, folder: Path) -> StatusRow:
        """What waits for a trunk that stopped is told apart."""
        if one.state not in ("waiting", "cancelled"):
            return one
        trunk = _trunk_of(folder, runs.get(folder))
        state = states.get(trunk, "done")
        if state in STOPPED:
            return replace(one, state="blocked", message=f"its trunk {trunk}: {state}")
        if one.state == "waiting" and state not in run_record.FINAL_STATES and not one.message:
            return replace(one, message=f"for its trunk {trunk}: {state}")
        return one

    return [told(one, folder) for one, folder in zip(rows, folders, strict=True)]


def _trunk_of(folder: Path, run: PlannedRun | None) -> str:
    """By its config, where no plan is at hand."""
    if run is not None:
        return run.trunk.run_id if run.trunk else ""
    try:
        fork = config.load(config_path(folder)).execution.fork_from
    except UserError:
        return ""
    return Path(fork.folder).name if fork else ""


def matching(rows: Sequence[StatusRow], pattern: str, root: Path) -> list[StatusRow]:
    """Those whose names match. Raises `UserError` where none does, or there is none."""
    if not rows:
        raise UserError(f"{root}: no run folder there; name the folder that holds the runs")
    found = [one for one in rows if matches(one.run_id, pattern)]
    if pattern and not found:
        raise UserError(
            f"{root}: no run's name has {pattern!r} in it; `tst-study status` lists them"
        )
    return found


def of_folder(root: Path, device: str | None = None) -> Study:
    """The runs of a folder as a study: each as it was handed to its launcher last, and nothing
    more. Raises `UserError`."""
    execution = on_device(device)
    check_is_one_study(root)
    configs = []
    for folder in folders_below(root):
        there = [path for path in (config_path(folder), folder / "run.json") if path.exists()]
        if not there:  # it failed before it wrote either
            continue
        try:
            asked = config.load(there[0])
        except UserError as error:
            say_once(f"without {folder.name}: {error}")
            continue
        fork = asked.execution.fork_from
        # What waits for its trunk's checkpoint comes when that is there.
        if fork is None or checkpoint_place(Path(fork.folder), fork.step).exists():
            configs.append(asked.executed(**execution))
    if not configs:
        raise UserError(f"{root}: holds no runs")
    runs = f"Runs of {root}"
    return Study(str(root), "", runs, "", {}, lambda results: configs, root, share=False)


def stopped(study: Study, pattern: str) -> Callable[[PlannedRun], bool]:
    """Says whether a run failed or was stopped, or its trunk did, or it is the trunk of such."""
    rows = matching(rows_of(study), pattern, study.folder)
    chosen = {one.run_id for one in rows if one.state in STOPPED}
    planned = Planner(study).decided()
    trunks = {run.trunk.run_id for run in planned if run.trunk and run.run_id in chosen}

    def wanted(run: PlannedRun) -> bool:
        branches = run.trunk is not None and run.trunk.run_id in chosen
        return run.run_id in chosen | trunks or branches

    return wanted


def check_is_there(root: Path) -> None:
    """Raises `UserError`."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; submit the study first, or name its folder")


def check_is_one_study(root: Path) -> None:
    """Raises `UserError`, also for a folder whose studies have folders of their own."""
    check_is_there(root)
    below = {path.parent for path in folders_below(root)}
    if below and root not in below:
        raise UserError(f"{root}: holds studies; name one of them, such as {min(below)}")


@cache
def say_once(line: str) -> None:
    """To people, on whose screen it stays however often a live one is renewed."""
    print(line, file=sys.stderr)


def folders_below(root: Path) -> list[Path]:
    """Folders of runs; those of a study, that is, at the first level, else wherever they lie."""
    if not root.is_dir():
        return []
    names, exists = ("status.json", "run.json", "job/config.toml"), os.path.exists
    found = [
        root / folder
        for folder in os.listdir(root)
        if any(exists(f"{root}/{folder}/{name}") for name in names)
    ]
    return sorted(found) or run_record.find_run_folders(root)
