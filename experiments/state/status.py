"""The state and the progress of runs, read from their folders and from the jobs of the
launchers."""

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tst_study import file_lock
from tst_study.errors import UserError
from tst_study.experiments.launcher import Job, launchers
from tst_study.experiments.plan.planned_run import DAMAGED, PlannedRun, matches
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.run_process import cancel_mark, submitted_config
from tst_study.experiments.study import Study
from tst_study.record import reader as run_record

STOPPED = frozenset({"failed", "preempted", "interrupted", "cancelled", "blocked", DAMAGED})
"""States in which no launcher continues a run by itself, so that somebody has to act."""


@dataclass(frozen=True)
class StatusRow:
    """The status of one run: a line of `tst-study status`."""

    run_id: str
    state: str
    """The state in the run's record, or one of these:

    - `waiting`: there is no record yet.
    - `queued`: a launcher has a job for the run, but the job does not train the run yet.
    - `cancelled`: the run was cancelled, and has not been submitted again.
    - `blocked`: the run waits for a shared prefix run that will not finish by itself.
    - `interrupted`: the record says `running`, but no process trains the run.
    - `failed`: also if the run's job failed before the run could record how it ended.
    - `damaged`: the record cannot be read.
    """
    step: int
    steps: int
    phase: str
    """The phase of a run that is training; otherwise empty."""
    loss: float | None
    """Training loss of the last step that was logged, in nats; in the superposition phase it is the
    bag loss."""
    tokens_per_second: float | None
    """None unless the run is training, as with `seconds_left`."""
    seconds_left: float | None
    message: str
    job: str = ""
    """Slurm's job id, such as `123_4`; empty without a job."""
    held_out: float | None = None
    """Next-token loss on held-out text at the last evaluation, in nats per token. Its final value
    is the one by which runs are compared."""


def row(folder: Path, steps: int = 0, job: Job | None = None, header: bool = True) -> StatusRow:
    """Return the status of one run, whose folder need not exist yet.

    `steps`: the planned number of steps, used while the run's record does not give one. `job`: the
    run's job, if a launcher has one. `header`: whether to look if `run.json` is damaged.
    """
    evaluation = None
    try:
        evaluation = run_record.last_evaluation(folder)
        status = run_record.read_status(folder)
        state, message = _state(status, folder, job)
        # A run that failed early has no header, and a running one may be of another version.
        if header and state != "running" and (folder / "run.json").exists():
            run_record.read_header(folder)
    except UserError as error:
        status, state, message = None, DAMAGED, str(error)
    known_status: Mapping[str, Any] = status or {"step": 0, "steps": 0}
    running = status is not None and state == "running"
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
    """Return the state and a message. A record that says how the run ended for good comes first,
    then the run's lock, then its job, and then the rest of the record."""
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


def rows_of_study(study: Study, headers: bool = True) -> list[StatusRow]:
    """Return the status of every run that is decided so far (`Planner.decided`), and of the shared
    prefix runs that were trained before. Raises `UserError` if the study's corpora are not
    prepared."""
    decided = Planner(study).decided()
    left = {folder.name for folder in _left(study, decided)}
    return [entry for entry in rows_in(study.folder, decided, headers) if entry.run_id not in left]


def left_runs(study: Study, *, for_good: bool = True) -> list[Path]:
    """Return the folders of runs that the study asked for once, and does not ask for any more.

    They stay on disk, and are neither missing nor judged. Shared prefix runs are not among them.
    Raises `UserError` as `rows_of_study` does and, with `for_good`, while results are missing on
    which it depends whether the study asks for them again.
    """
    planner = Planner(study)
    left = _left(study, decided := planner.decided())
    if for_good and left and len(decided) < len(planner.whole()):
        raise UserError(f"{study.folder}: lacks results that --left depends on; submit it first")
    return left


def _left(study: Study, decided: Iterable[PlannedRun]) -> list[Path]:
    asked = {run.folder for run in decided}
    others = [folder for folder in folders_below(study.folder) if folder not in asked]
    return [folder for folder in others if _role(folder) != "trunk"]


def _role(folder: Path) -> str:
    """Return the role in a run's record or, before it has one, in the config of its job; empty if
    neither can be read."""
    with suppress(UserError):
        return str(run_record.read_header(folder)["role"])
    with suppress(UserError):
        return submitted_config(folder).role
    return ""


def rows_below(root: Path, headers: bool = True) -> list[StatusRow]:
    """Return the status of all runs in a folder, including those that failed before they had a
    record. Raises `UserError` as `check_holds_runs` does."""
    check_holds_runs(root)
    return rows_in(root, [], headers)


def rows_in(root: Path, planned: Iterable[PlannedRun], headers: bool = True) -> list[StatusRow]:
    """Return the status of the planned runs and of all other runs in a folder, with their jobs. If
    a launcher does not answer, that is printed, and the rows are made without any job."""
    runs = {run.folder: run for run in planned}
    known = {folder.name for folder in runs}
    folders = [*runs, *(path for path in folders_below(root) if path.name not in known)]
    try:
        jobs = {run: job for launcher in launchers() for run, job in launcher.jobs(root).items()}
    except UserError as error:
        print(f"without job states: {error}", file=sys.stderr)
        jobs = {}
    rows = [
        row(folder, runs[folder].steps if folder in runs else 0, jobs.get(folder.name), headers)
        for folder in folders
    ]
    states = {entry.run_id: entry.state for entry in rows}

    def told(entry: StatusRow, folder: Path) -> StatusRow:
        """Return the row as `blocked` if the run waits for a shared prefix run that has stopped,
        or with the archived state if it need not be trained; else return it as it is."""
        planned_run = runs.get(folder)
        if entry.state == "waiting" and planned_run and planned_run.recorded:
            state, loss = planned_run.recorded
            finite = loss if math.isfinite(loss) else None
            return replace(entry, state=state, held_out=finite, step=entry.steps)
        if entry.state in ("waiting", "cancelled"):
            prefix = _prefix_of(folder, planned_run)
            if states.get(prefix) in STOPPED:
                why = f"its shared prefix run {prefix}: {states[prefix]}"
                return replace(entry, state="blocked", message=why)
        return entry

    return [told(entry, folder) for entry, folder in zip(rows, folders, strict=True)]


def _prefix_of(folder: Path, run: PlannedRun | None) -> str:
    """Return the id of the run's shared prefix run, from the planned run or else from the config in
    the run's folder; empty if there is none."""
    if run is not None:
        return run.prefix.run_id if run.prefix else ""
    with suppress(UserError):
        if fork := submitted_config(folder).execution.fork_from:
            return Path(fork.folder).name
    return ""


def matching(rows: Sequence[StatusRow], pattern: str, root: Path) -> list[StatusRow]:
    """Return the rows whose run ids match. Raises `UserError` if none matches."""
    chosen = [entry for entry in rows if matches(entry.run_id, pattern)]
    if pattern and not chosen:
        raise UserError(f"{root}: no run's name holds {pattern!r}; `tst-study status` lists them")
    return chosen


def stopped(study: Study, pattern: str) -> Callable[[PlannedRun], bool]:
    """Return a function that tells whether a run is to be retried.

    The runs to retry are those that match and whose state is one of `STOPPED`. If such a run is a
    shared prefix run, its branches are retried too. If it is a branch, its shared prefix run is
    retried too. Raises `UserError` as `check_holds_runs` and `matching` do.
    """
    check_holds_runs(study.folder)
    rows = matching(rows_of_study(study), pattern, study.folder)
    chosen = {entry.run_id for entry in rows if entry.state in STOPPED}
    planned = Planner(study).decided()
    prefixes = {run.prefix.run_id for run in planned if run.prefix and run.run_id in chosen}

    def wanted(run: PlannedRun) -> bool:
        branches = run.prefix is not None and run.prefix.run_id in chosen
        return run.run_id in chosen | prefixes or branches

    return wanted


def check_holds_runs(root: Path) -> None:
    """Raise `UserError` if there is no such folder, or no run lies directly in it."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; submit the study first, or name its folder")
    if folders_below(root):
        return
    if deeper := run_record.find_run_folders(root):
        raise UserError(f"{root}: is no study's folder; name one, such as {deeper[0].parent}")
    raise UserError(f"{root}: no run folder there; name the folder that holds the runs")


def folders_below(root: Path) -> list[Path]:
    """Return the run folders directly below a study's folder, which need not exist."""
    if not root.is_dir():
        return []
    files, exists = ("status.json", "run.json", "job/config.toml"), os.path.exists
    return sorted(
        root / name
        for name in os.listdir(root)
        if any(exists(f"{root}/{name}/{file}") for file in files)
    )
