"""One launch of a run in a batch job: starts the ranks, and decides what becomes of the job.

`python -m tst_study.experiments.slurm.launch FOLDER RETRIES SECONDS srun …` takes the place of the
batch script's shell. It runs outside any container, where Slurm's programs are. The ranks may run
in a container without these programs. The ranks only train, and the first of them writes its exit
status (`run_process.Exit`) into `job/ended`.

If the run is over, has failed for good or was cancelled, the job ends. Otherwise the job is put
back into the queue. This happens if the ranks were stopped or crashed, if another process held the
run, and when the job's time is nearly up, even if the ranks are still training. Launches are
counted (`launches`); after too many without a new checkpoint the run is given up, and the job ends.

`python -m tst_study.experiments.slurm.launch FOLDER WORDS` marks the run as failed, because a line
of the set-up failed; WORDS say which.
"""

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from tst_study.atomic_files import DiskAwayError, insist
from tst_study.errors import UserError
from tst_study.experiments.launches import counted, give_up, given_up
from tst_study.experiments.run_process import Exit, cancel_mark, last_checkpoint
from tst_study.experiments.slurm.commands import NoAnswerError, SlurmError, call, memory_words

PATIENCE = 600.0
"""For this many seconds, calls are repeated while Slurm's controller or the file system of the run
does not answer."""
ASK_SECONDS = 600.0
"""For at most this many seconds, what Slurm said about the end of the job's time is believed."""
KILL_SECONDS = 60.0
"""Seconds to wait until Slurm ends this job after it has put the job back into the queue."""
ADD_TO_PATH = "add its folder to PATH in `setup` of slurm.toml"
RAISE = ": raise memory_gb"
"""What is said of a launch that was killed because its job has no more memory."""


def supervise(folder: Path, retries: int, signal_seconds: int, command: Sequence[str]) -> int:
    """Start the ranks, wait until they end or the job's time is nearly up, and then put the job
    back into the queue if the run needs another launch. Returns the exit status for the job.

    `retries` and `signal_seconds`: the profile's. `command`: the srun that starts the ranks.
    """
    from submitit import JobEnvironment

    # Slurm sends SIGTERM when it wants the job to end. This process must not end then: it waits for
    # the ranks, which write a checkpoint first.
    signal.signal(signal.SIGTERM, lambda *unused: None)
    job = JobEnvironment().job_id
    (folder / "job" / "ended").unlink(missing_ok=True)
    if cancel_mark(folder).exists():  # its job was still in the queue
        return Exit.PREEMPTED
    if shutil.which(command[0]) is None:
        give_up(folder, f"srun: not on the PATH of node {os.uname().nodename}; {ADD_TO_PATH}")
        return Exit.FAILED
    before, begun = last_checkpoint(folder), os.fstat(2).st_size
    with insist(lambda: open(folder / "job" / "srun.txt", "wb"), PATIENCE, OSError) as errors:
        ranks = subprocess.Popen(command, stderr=errors)
    try:
        # Up to a minute is kept in reserve for what follows. When the job's time is up, Slurm ends
        # this process together with the ranks.
        _wait(ranks, job, min(signal_seconds / 4, 60))
        ended, words = insist(lambda: _end(folder, ranks.returncode, begun), PATIENCE, OSError)
    except subprocess.TimeoutExpired:
        ended, words = "", "stopped by the limit"
    if ended in (str(Exit.OVER.value), str(Exit.FAILED.value)):
        return int(ended)
    try:
        _check_may_requeue(job, folder)
        if ended != str(Exit.HELD.value):
            launches = insist(lambda: counted(folder, before, words), PATIENCE, DiskAwayError)
            # With as much memory as before, the next launch would end in the same way.
            if why := given_up(launches.idle, 0 if RAISE in words else retries, words):
                if ranks.poll() is None:  # ranks that are still running would overwrite the status
                    call("scancel", "--signal=KILL", job)
                give_up(folder, why)
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


def _wait(ranks: subprocess.Popen[bytes], job: str, spare: float) -> None:
    """Wait for the ranks. Raises `TimeoutExpired` when `spare` seconds of the job's time are left.
    Slurm is asked for the end again and again: it moves if the job is suspended, or if somebody
    changes the limit."""
    end = math.inf
    while True:
        with suppress(SlurmError, ValueError):
            text = call("squeue", "--noheader", f"--jobs={job}", "--format=%e").strip()
            end = math.inf if text == "N/A" else datetime.fromisoformat(text).timestamp()
        left = end - spare - time.time()
        if left <= 0:
            raise subprocess.TimeoutExpired("srun", 0.0)
        with suppress(subprocess.TimeoutExpired):
            ranks.wait(min(left, ASK_SECONDS))
            return


def _end(folder: Path, status: int, begun: int) -> tuple[str, str]:
    """Return the status that the first rank left in `job/ended`, empty if there is none, and words
    that say how the ranks ended. `status`: srun's exit status. `begun`: how long the job's output
    was when they began, as earlier launches had left it. Raises `OSError`."""
    errors = (folder / "job" / "srun.txt").read_text(errors="replace")
    print(errors, end="", file=sys.stderr)
    why, output = memory_words(errors), Path("/proc/self/fd/2")
    if not why and output.is_file():  # the job's, where Slurm says what it has ended
        why = memory_words(output.read_bytes()[begun:].decode(errors="replace"))
    ended = ""
    with suppress(FileNotFoundError):
        ended = (folder / "job" / "ended").read_text().strip()
    # srun names the tasks that ended badly, in the order in which they did.
    told = re.findall(r"^srun: error: ([^ ]*: tasks? .*)", errors, re.MULTILINE)
    words = next((line for line in told if why in line), (*told, f"status {status}")[0])
    if why or words.endswith(": Killed"):
        words += f" ({why})" * (why not in words)
        words += RAISE if why else ", for its memory? Raise memory_gb"
        cpus, per_cpu = (
            os.environ.get(name, "0") for name in ("SLURM_CPUS_ON_NODE", "SLURM_MEM_PER_CPU")
        )
        megabytes = int(os.environ.get("SLURM_MEM_PER_NODE", int(cpus) * int(per_cpu)))
        words += f", now {megabytes / 1024:.3g}" * bool(megabytes)
    if ended == words.rpartition(" ")[2] == str(Exit.PREEMPTED.value):
        words = "stopped by a signal"
    return ended, words


def _check_may_requeue(job: str, folder: Path) -> None:
    """Raise `SlurmError` if the run was cancelled, or if the job is not running any more, for
    example because Slurm itself is requeueing it."""
    ask = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    state = insist(lambda: call(*ask).strip(), PATIENCE, NoAnswerError)
    if cancel_mark(folder).exists():
        state = "cancelled"
    if state != "RUNNING":
        raise SlurmError(f"job {job} is {state or 'not to be found'}")


if __name__ == "__main__":
    run_folder, *rest = sys.argv[1:]
    if len(rest) == 1:
        give_up(Path(run_folder), f"set-up failed: {rest[0]}")
        sys.exit(1)
    limit, seconds, *srun = rest
    sys.exit(supervise(Path(run_folder), int(limit), int(seconds), srun))
