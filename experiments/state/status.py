"""How far runs are, read from their folders alone."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from experiments.launcher import Job, jobs_of
from experiments.plan.planned_run import PlannedRun, matches
from experiments.plan.planner import Planner
from experiments.run_process import cancel_mark, config_path
from experiments.study import Study
from tst_study.atomic_files import write_json
from tst_study.config import schema as config
from tst_study.errors import UserError
from tst_study.record import lock as run_lock
from tst_study.record import reader as run_record
from tst_study.text import duration

QUIET_SECONDS = 60.0
"""For which a run may say nothing, whatever its steps take: an evaluation, a checkpoint."""
FULL_BYTES = 2**20
KEPT = ".status.json"
"""In a study's folder: the rows of its runs that are over, which do not change any more."""
STOPPED = frozenset({"failed", "preempted", "interrupted", "cancelled", "blocked"})
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
    lag: float | None = None
    """Seconds since the run last said anything, while it runs."""
    job: str = ""
    """Of Slurm: `123_4`."""
    held_out: float | None = None
    """Next-token loss of the last evaluation, by which runs are compared."""


def row(folder: Path, steps: int = 0, job: Job | None = None) -> StatusRow:
    """The state of one run folder, which need not exist yet; `steps` are those planned for it.

    The run's own word comes first, then its lock, then what its launcher knows of its job.
    """
    status = run_record.read_status(folder)
    id = job.id if job else ""
    if status is None:
        state, message = _without_a_word(folder, job)
        return StatusRow(folder.name, state, 0, steps, "", None, None, None, message, job=id)
    state, message = status["state"], status["message"]
    if state not in run_record.FINAL_STATES:
        state, message = _checked(state, message, folder, job)
    running, evaluation = state == "running", run_record.last_evaluation(folder)
    lag = max(0.0, time.time() - status["heartbeat"]) if running else None
    if lag is not None and (said := _silent(lag, status)):
        message = "; ".join(filter(None, (said, message)))
    if state in ("failed", "interrupted", "preempted"):
        message = "; ".join(filter(None, (message, _obstacle(folder))))
    return StatusRow(
        run_id=folder.name,
        state=state,
        step=status["step"],
        steps=status["steps"] or steps,
        phase=status.get("phase", "") if running else "",
        loss=status.get("loss"),
        tokens_per_second=status.get("tokens_per_second") if running else None,
        seconds_left=status.get("seconds_left") if running else None,
        message=message,
        lag=lag,
        job=id,
        held_out=evaluation and evaluation["nats_per_token"],
    )


def _silent(lag: float, status: run_record.Status) -> str:
    """Says so of a run that is longer without a word than two of its steps, and than what stands
    between steps usually takes."""
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


def _without_a_word(folder: Path, job: Job | None) -> tuple[str, str]:
    if job is not None and job.is_active:
        return _in_the_queue(job)
    said = job.remark if job else ""
    if cancel_mark(folder).exists():
        return "cancelled", "before it began"
    return (job.state if job and job.state in ("failed", "cancelled") else "waiting"), said


def _in_the_queue(job: Job) -> tuple[str, str]:
    return "queued", "starting" if job.state == "running" else job.remark


def _checked(state: str, message: str, folder: Path, job: Job | None) -> tuple[str, str]:
    """What the run said last, held against lock and queue."""
    if run_lock.is_held(folder) or (job and job.state == state == "running"):
        remark = job.remark if job and job.state == "running" else ""
        return "running", (remark or message) if state == "running" else "starting"
    if job is not None and job.is_active:
        return _in_the_queue(job)
    if state == "running":
        failed = job is not None and job.state == "failed"
        return "failed" if failed else "interrupted", (job and job.remark) or message
    if state == "preempted" and cancel_mark(folder).exists():
        return "cancelled", message
    return state, message


def rows_of(
    study: Study, root: Path, share: bool = True, jobs: Mapping[str, Job] | None = None
) -> list[StatusRow]:
    """Every run that the study has decided on and every other one in its folder, with their jobs,
    which are asked for where they are not given. `UserError` where its corpora are not prepared."""
    planned = Planner(study, root, share).decided()
    jobs = jobs_of(root) if jobs is None else jobs
    known = {run.folder.name for run in planned}
    others = [path for path in _folders_below(root) if path.name not in known]
    trunks = {run.run_id: run.trunk.run_id for run in planned if run.trunk}
    steps = {run.folder: run.steps for run in planned} | dict.fromkeys(others, 0)
    return _blocked(_rows(root, steps, jobs), trunks)


def _rows(root: Path, folders: Mapping[Path, int], jobs: Mapping[str, Job]) -> list[StatusRow]:
    """A row for each folder, with the steps that are planned for it."""
    kept, found, rows = _kept(root), {}, []
    for folder, steps in folders.items():
        stamp, job = _stamp(folder), jobs.get(folder.name)
        stamped = kept.get(folder.name)
        if stamped is not None and stamped[0] == stamp:
            one = StatusRow(**{**stamped[1], "job": job.id if job else ""})
        else:
            one = row(folder, steps, job)
        if one.state in run_record.FINAL_STATES:
            found[folder.name] = [stamp, vars(one)]
        rows.append(one)
    if found and any(kept.get(name, [0])[0] != known[0] for name, known in found.items()):
        with suppress(UserError, OSError):  # somebody else's folder, perhaps
            write_json(root / KEPT, found)
    return rows


def _kept(root: Path) -> dict[str, list[Any]]:
    """By the run's name: what its files were like, and its row."""
    with suppress(OSError, ValueError):
        kept = json.loads((root / KEPT).read_bytes())
        if isinstance(kept, dict) and all(_is_row(one) for one in kept.values()):
            return kept
    return {}


def _is_row(kept: object) -> bool:
    return (
        isinstance(kept, list)
        and len(kept) == 2
        and isinstance(kept[1], dict)
        and kept[1].keys() == StatusRow.__dataclass_fields__.keys()
    )


def _stamp(folder: Path) -> list[int]:
    """Changes with what a row is made of."""
    stamp = []
    for name in ("status.json", "evals.jsonl"):
        try:
            there = os.stat(f"{folder}/{name}")
        except OSError:
            stamp += [0, 0]
        else:
            stamp += [there.st_mtime_ns, there.st_size]
    return stamp


def stopped(study: Study, root: Path, pattern: str, share: bool) -> Callable[[PlannedRun], bool]:
    """Says whether a run failed or was stopped, or its trunk did, or it is the trunk of such."""
    check_matches(study, root, pattern, share)
    jobs = jobs_if_known(root)
    states = {one.run_id: one.state for one in rows_of(study, root, share, jobs)}
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


def check_matches(study: Study, root: Path, pattern: str, share: bool) -> None:
    """Raises `UserError` where no run's name matches, planned or there already."""
    planned = Planner(study, root, share, unprepared=True)
    names = {run.run_id for run in (*planned.decided(), *planned.whole())}
    if not any(matches(name, pattern) for name in names | {p.name for p in _folders_below(root)}):
        raise UserError(f"{root}: no run's name has {pattern!r} in it")


def _blocked(rows: list[StatusRow], trunks: Mapping[str, str]) -> list[StatusRow]:
    """The same, with what waits for a trunk that stopped told apart; `trunks` by their branches."""
    states = {one.run_id: one.state for one in rows}

    def told(one: StatusRow) -> StatusRow:
        trunk = trunks.get(one.run_id, "")
        state = states.get(trunk, "done")
        if one.state in ("waiting", "cancelled") and state in STOPPED:
            return replace(one, state="blocked", message=f"its trunk {trunk}: {state}")
        if one.state == "waiting" and state not in run_record.FINAL_STATES and not one.message:
            return replace(one, message=f"for its trunk {trunk}: {state}")
        return one

    return [told(one) for one in rows]


def rows_below(root: Path, jobs: Mapping[str, Job] | None = None) -> list[StatusRow]:
    """All runs of a study's folder, also those that failed before they wrote a record; without
    their jobs, which is said, where nobody answers for those."""
    check_is_there(root)
    jobs = jobs_if_known(root) if jobs is None else jobs
    folders = _folders_below(root)
    rows = _rows(root, dict.fromkeys(folders, 0), jobs)
    unheard = {one.run_id for one in rows if one.state in ("waiting", "cancelled")}
    trunks = {path.name: _trunk_of(path) for path in folders if path.name in unheard}
    return _blocked(rows, trunks)


def check_is_there(root: Path) -> None:
    """Raises `UserError`."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; submit the study first, or name its folder")


def check_is_one_study(root: Path) -> None:
    """Raises `UserError`, also for a folder whose studies have folders of their own."""
    check_is_there(root)
    below = {path.parent for path in _folders_below(root)}
    if below and root not in below:
        raise UserError(f"{root}: holds studies; name one of them, such as {min(below)}")


def jobs_if_known(root: Path) -> dict[str, Job]:
    """Those of a folder's runs; without any, which is said, where nobody answers for them."""
    try:
        return jobs_of(root)
    except UserError as error:
        say_once(f"without job states: {error}")
        return {}


@cache
def say_once(line: str) -> None:
    """To people, on whose screen it stays however often a live one is renewed."""
    print(line, file=sys.stderr)


def _trunk_of(folder: Path) -> str:
    try:
        fork = config.load(config_path(folder)).execution.fork_from
    except UserError:
        fork = None
    return Path(fork.folder).name if fork else ""


def _folders_below(root: Path) -> list[Path]:
    """Folders of runs; those of a study, that is, at the first level, else wherever they lie."""
    if not root.is_dir():
        return []
    names = ("status.json", "run.json", "job/config.toml")
    with os.scandir(root) as entries:
        paths = [entry.path for entry in entries if entry.is_dir()]
    exists = os.path.exists
    found = [Path(path) for path in paths if any(exists(f"{path}/{name}") for name in names)]
    return sorted(found) or run_record.find_run_folders(root)
