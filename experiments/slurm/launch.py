"""One launch of a run in a batch job: starts the ranks, and decides what becomes of the job.

`python -m tst_study.experiments.slurm.launch FOLDER RETRIES SECONDS srun …` takes the place of the
batch script's shell. It runs outside any container, where Slurm's programs are; the ranks may run
in a container without them. They only train, and the first of them leaves an agreed status (`Exit`)
in `job/ended`. A run that is over or has failed for good ends its job. Every other launch puts the
job back into the queue, unless it was cancelled: one that was stopped, that crashed, that found the
run held by another process, or whose time is nearly up, whatever its ranks do. `job/launches`
counts the launches, and those in a row that left no new checkpoint; after too many of these
(`given_up`) the run is marked as failed instead.

`python -m tst_study.experiments.slurm.launch FOLDER WORDS` notes that the set-up has failed.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from tst_study.atomic_files import DiskAwayError, disk_errors_named, insist, write_json
from tst_study.config.schema import load
from tst_study.errors import UserError
from tst_study.experiments.launcher import given_up
from tst_study.experiments.run_process import Exit, cancel_mark, config_path, last_checkpoint
from tst_study.experiments.slurm.commands import NoAnswerError, SlurmError, call
from tst_study.record.reader import is_over, read_status
from tst_study.record.writer import mark

PATIENCE = 600.0
"""Seconds for which a controller, or the file system of the run, may be away."""
KILL_SECONDS = 60.0
"""Seconds within which Slurm ends a job that it has put back into the queue."""


@dataclass(frozen=True)
class Launches:
    """Launches that have put a run's job back into the queue since its last submission.

    A launch is not counted before it has ended, nor where its node died or it found the run held by
    another process.
    """

    number: int = 0
    idle: int = 0
    """Launches in a row, up to the last one, that left no new checkpoint."""
    last: str = ""
    """How the last one ended."""


def launches_of(folder: Path) -> Launches:
    with suppress(FileNotFoundError, ValueError, TypeError):  # damage must not hide the study
        return Launches(**json.loads((folder / "job" / "launches").read_bytes()))
    return Launches()


def remark(folder: Path) -> str:
    """Summarise a run's launches for people; empty until the first one has ended with its job put
    back into the queue."""
    launches = launches_of(folder)
    if not launches.number:
        return ""
    idle = f", in a row without a new checkpoint: {launches.idle}" if launches.idle else ""
    return f"launched again: {launches.number}{idle}, last: {launches.last}"


def supervise(folder: Path, retries: int, signal_seconds: int, command: Sequence[str]) -> int:
    """Start the ranks, wait until they end or the job's time is nearly up, and put the job back
    into the queue unless the run needs no more launches. Returns the exit status of the job."""
    # Slurm tells a job that it ends. The ranks write a checkpoint first.
    signal.signal(signal.SIGTERM, lambda *unused: None)
    job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    (folder / "job" / "ended").unlink(missing_ok=True)
    before = last_checkpoint(folder)
    with insist(lambda: open(folder / "job" / "srun.txt", "wb"), PATIENCE, OSError) as errors:
        ranks = subprocess.Popen(command, stderr=errors)
    try:
        # Up to a minute is kept in reserve: Slurm would end this process with the ranks.
        ranks.wait(_seconds_left(job, min(signal_seconds / 4, 60)))
        ended, words = insist(lambda: _end(folder, ranks.returncode), PATIENCE, OSError)
    except subprocess.TimeoutExpired:
        ended, words = "", "stopped by the limit"
    if ended in (str(Exit.OVER.value), str(Exit.FAILED.value)):
        return int(ended)
    try:
        _check_may_requeue(job, folder)
        if ended != str(Exit.HELD.value):
            launches = insist(lambda: _counted(folder, before, words), PATIENCE, DiskAwayError)
            if why := given_up(launches.idle, retries, words):
                if ranks.poll() is None:  # slow ranks must not overwrite the status
                    call("scancel", "--signal=KILL", job)
                mark_failed(folder, why)
                print(why, file=sys.stderr)
                return 1
        # Slurm may send its SIGTERM to this job before `scontrol` has the answer; blocked, the
        # signal waits for `sigtimedwait` below.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        insist(lambda: call("scontrol", "requeue", job), PATIENCE, NoAnswerError)
    except UserError as error:
        print(f"not requeued: {error}; submit again to go on", file=sys.stderr)
        ranks.wait()
        return Exit.PREEMPTED if isinstance(error, SlurmError) else 1
    # An exit before Slurm's own signal would have the job noted as failed.
    signal.sigtimedwait({signal.SIGTERM}, KILL_SECONDS)
    return Exit.PREEMPTED


def _seconds_left(job: str, spare: float) -> float | None:
    """Seconds until `spare` before the job's time is up; None if it has no end, or nobody
    answers."""
    with suppress(SlurmError, ValueError):
        end = call("squeue", "--noheader", f"--jobs={job}", "--format=%e").strip()
        return max(0.0, datetime.fromisoformat(end).timestamp() - spare - time.time())
    return None


def _end(folder: Path, status: int) -> tuple[str, str]:
    """The agreed status of ranks that have ended, empty if they left none, and how they ended.
    Raises `OSError`."""
    errors = (folder / "job" / "srun.txt").read_text(errors="replace")
    print(errors, end="", file=sys.stderr)
    ended = ""
    with suppress(FileNotFoundError):
        ended = (folder / "job" / "ended").read_text().strip()
    # srun names the tasks that ended badly, the first to do so first.
    match = re.search(r"^srun: error: ([^ ]*: tasks? .*)", errors, re.MULTILINE)
    words = match[1] if match else f"status {status}"
    if ended == words.rpartition(" ")[2] == str(Exit.PREEMPTED.value):
        words = "stopped by a signal"
    return ended, words


def _check_may_requeue(job: str, folder: Path) -> None:
    """Raise `SlurmError` where the run was cancelled or the job no longer runs, such as one that
    Slurm itself is requeueing."""
    ask = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    state = insist(lambda: call(*ask).strip(), PATIENCE, SlurmError)
    if cancel_mark(folder).exists():
        state = "cancelled"
    if state != "RUNNING":
        raise SlurmError(f"job {job} is {state or 'not to be found'}")


def _counted(folder: Path, before: int, words: str) -> Launches:
    """Count a launch. Raises `UserError`: launches that were not counted would be made for
    ever."""
    path = folder / "job" / "launches"
    with disk_errors_named(path):
        launches = launches_of(folder)
        idle = 0 if last_checkpoint(folder) > before else launches.idle + 1
        counted = Launches(launches.number + 1, idle, words)
        write_json(path, asdict(counted))
    return counted


def mark_failed(folder: Path, why: str) -> None:
    """Mark a run whose ranks are gone as failed, unless it is over. Where it is given up, the last
    message of its ranks is kept behind the reason."""
    status = read_status(folder)
    if not is_over(folder):
        last_words = status["message"] if status and why.startswith("given up") else ""
        mark(
            folder, load(config_path(folder)), "failed", ": ".join(filter(None, (why, last_words)))
        )


if __name__ == "__main__":
    run_folder, *rest = sys.argv[1:]
    if len(rest) == 1:
        mark_failed(Path(run_folder), f"set-up failed: {rest[0]}")
        sys.exit(1)
    limit, seconds, *srun = rest
    sys.exit(supervise(Path(run_folder), int(limit), int(seconds), srun))
