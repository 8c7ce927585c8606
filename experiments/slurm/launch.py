"""One launch of a run in a batch job: starts the ranks, and decides what becomes of the job.

`python -m tst_study.experiments.slurm.launch FOLDER RETRIES SECONDS srun …` takes the place of the
batch script's shell. It runs outside any container, where Slurm's programs are. The ranks may run
in a container without these programs. The ranks only train, and the first of them writes its exit
status (`run_process.Exit`) into `job/ended`.

If the run is over, has failed for good or was cancelled, the job ends. Otherwise the job is put
back into the queue. This happens if the ranks were stopped or crashed, if another process held the
run, and when the job's time is nearly up, even if the ranks are still training. The file
`job/launches` counts the launches, and how many in a row ended without a new checkpoint. After too
many of these (`launcher.given_up`) the run is marked as failed, and the job ends.

`python -m tst_study.experiments.slurm.launch FOLDER WORDS` marks the run as failed, because a line
of the set-up failed; WORDS say which.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter

from tst_study.atomic_files import DiskAwayError, disk_errors_named, insist, write_json
from tst_study.config.schema import load
from tst_study.errors import UserError
from tst_study.experiments.launcher import given_up
from tst_study.experiments.run_process import Exit, cancel_mark, config_path, last_checkpoint
from tst_study.experiments.slurm.commands import NoAnswerError, SlurmError, call
from tst_study.record.reader import is_over, read_status
from tst_study.record.writer import mark

PATIENCE = 600.0
"""For this many seconds, calls are repeated while Slurm's controller or the file system of the run
does not answer."""
KILL_SECONDS = 60.0
"""Seconds to wait until Slurm ends this job after it has put the job back into the queue."""


@dataclass(frozen=True)
class Launches:
    """Counts of a run's launches since its last submission, and how the last of them ended.

    When a launch's ranks have ended, or its time is nearly up, it counts if the run needs another
    launch. It does not count if its node died, if Slurm itself requeued the job, if the run was
    cancelled, or if another process held the run.
    """

    number: int = 0
    idle: int = 0
    """The number of consecutive launches, up to the last one, that left no new checkpoint."""
    last: str = ""
    """Words that say how the last launch ended."""


def launches_of(folder: Path) -> Launches:
    """Read the counts of a run's launches. They are 0 if the file that holds them is missing or
    damaged, so that `tst-study status` can always show the study."""
    # Other errors of the disk are raised: where it is away, the counts may still be there.
    with suppress(FileNotFoundError, IsADirectoryError, ValueError):
        return TypeAdapter(Launches).validate_json((folder / "job" / "launches").read_bytes())
    return Launches()


def remark(folder: Path) -> str:
    """Summarise a run's launches for people. The text is empty if no launch has been counted."""
    launches = launches_of(folder)
    if not launches.number:
        return ""
    idle = f", in a row without a new checkpoint: {launches.idle}" if launches.idle else ""
    return f"launched again: {launches.number}{idle}, last: {launches.last}"


def supervise(folder: Path, retries: int, signal_seconds: int, command: Sequence[str]) -> int:
    """Start the ranks, wait until they end or the job's time is nearly up, and then put the job
    back into the queue if the run needs another launch. Returns the exit status for the job.

    `retries` and `signal_seconds`: the profile's. `command`: the srun that starts the ranks.
    """
    # Slurm sends SIGTERM when it wants the job to end. This process must not end then: it waits for
    # the ranks, which write a checkpoint first.
    signal.signal(signal.SIGTERM, lambda *unused: None)
    job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    (folder / "job" / "ended").unlink(missing_ok=True)
    if cancel_mark(folder).exists():  # its job was still in the queue
        return Exit.PREEMPTED
    if shutil.which(command[0]) is None:
        mark_failed(
            folder,
            f"srun: not on the PATH of node {os.uname().nodename}; add its folder to PATH in "
            "`setup` of slurm.toml",
        )
        return Exit.FAILED
    before = last_checkpoint(folder)
    with insist(lambda: open(folder / "job" / "srun.txt", "wb"), PATIENCE, OSError) as errors:
        ranks = subprocess.Popen(command, stderr=errors)
    try:
        # Up to a minute is kept in reserve for what follows. When the job's time is up, Slurm ends
        # this process together with the ranks.
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
                if ranks.poll() is None:  # ranks that are still running would overwrite the status
                    call("scancel", "--signal=KILL", job)
                mark_failed(folder, why)
                print(why, file=sys.stderr)
                return 1
        # Slurm ends the job by SIGTERM, which may come before `scontrol` has returned. Blocking the
        # signal makes it wait for `sigtimedwait` below.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        insist(lambda: call("scontrol", "requeue", job), PATIENCE, NoAnswerError)
    except UserError as error:
        print(f"not requeued: {error}; submit again to go on", file=sys.stderr)
        ranks.wait()
        return Exit.PREEMPTED if isinstance(error, SlurmError) else 1
    # If this process ended before the signal from Slurm, the job would count as failed.
    signal.sigtimedwait({signal.SIGTERM}, KILL_SECONDS)
    return Exit.PREEMPTED


def _seconds_left(job: str, spare: float) -> float | None:
    """Return the seconds that are left until `spare` seconds before the job's time is up; None if
    its time is not limited, or if Slurm does not answer."""
    with suppress(SlurmError, ValueError):
        end = call("squeue", "--noheader", f"--jobs={job}", "--format=%e").strip()
        return max(0.0, datetime.fromisoformat(end).timestamp() - spare - time.time())
    return None


def _end(folder: Path, status: int) -> tuple[str, str]:
    """Return the status that the first rank left in `job/ended`, empty if there is none, and words
    that say how the ranks ended. `status`: srun's exit status. Raises `OSError`."""
    errors = (folder / "job" / "srun.txt").read_text(errors="replace")
    print(errors, end="", file=sys.stderr)
    ended = ""
    with suppress(FileNotFoundError):
        ended = (folder / "job" / "ended").read_text().strip()
    # srun names the tasks that ended badly, in the order in which they did.
    match = re.search(r"^srun: error: ([^ ]*: tasks? .*)", errors, re.MULTILINE)
    words = match[1] if match else f"status {status}"
    if ended == words.rpartition(" ")[2] == str(Exit.PREEMPTED.value):
        words = "stopped by a signal"
    return ended, words


def _check_may_requeue(job: str, folder: Path) -> None:
    """Raise `SlurmError` if the run was cancelled, or if the job is not running any more, for
    example because Slurm itself is requeueing it."""
    ask = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    state = insist(lambda: call(*ask).strip(), PATIENCE, SlurmError)
    if cancel_mark(folder).exists():
        state = "cancelled"
    if state != "RUNNING":
        raise SlurmError(f"job {job} is {state or 'not to be found'}")


def _counted(folder: Path, before: int, words: str) -> Launches:
    """Count a launch and return the new counts. `before`: the step of the last checkpoint when the
    launch began; `words`: how it ended. Raises `UserError` if the counts cannot be written. The job
    must then not be requeued, because uncounted launches could go on for ever."""
    path = folder / "job" / "launches"
    with disk_errors_named(path):
        launches = launches_of(folder)
        idle = 0 if last_checkpoint(folder) > before else launches.idle + 1
        counted = Launches(launches.number + 1, idle, words)
        write_json(path, asdict(counted))
    return counted


def mark_failed(folder: Path, why: str) -> None:
    """Mark a run as failed, unless it is over. Its ranks must have ended or been killed, since they
    would overwrite the status. If the run is given up, the last message that the ranks left is
    added after `why`."""
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
