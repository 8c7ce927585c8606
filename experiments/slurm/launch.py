"""One launch of a run in a batch job: starts the ranks, and decides what becomes of the job.

`python -m tst_study.experiments.slurm.launch FOLDER RETRIES SECONDS EXCLUDED srun …` takes the
place of the batch script's shell. It runs outside any container, where Slurm's programs are; the
ranks may run in a container without them. They only train, and the first of them leaves an agreed
status (`Exit`) in `job/ended`. Every other end is a crash. A run that was stopped, has crashed or
was held by another process goes back into the queue; so does one whose time is nearly up, whatever
its ranks do. Each launch leaves a line in `job/launches` (time, outcome, last checkpoint before and
after, first node to fail, words). `given_up` decides when the run has had enough of them.

`python -m tst_study.experiments.slurm.launch FOLDER WORDS` notes that the set-up has failed.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from pathlib import Path

from tst_study.atomic_files import DiskAwayError, disk_errors_named, insist
from tst_study.config.schema import load
from tst_study.errors import UserError
from tst_study.experiments.launcher import given_up
from tst_study.experiments.run_process import Exit, cancel_mark, config_path, last_checkpoint
from tst_study.experiments.slurm.commands import NoAnswerError, SlurmError, call
from tst_study.record.reader import is_over, read_status
from tst_study.record.writer import mark

PATIENCE = 600.0
"""Seconds for which a controller, or the file system of the run, may be away."""
HELD, STOPPED = str(Exit.HELD.value), str(Exit.PREEMPTED.value)


@dataclass(frozen=True)
class Launch:
    """A line of `job/launches`."""

    outcome: str
    """An agreed status (`Exit`); `crash`; `set-up`, if that failed; `limit`, if time was up and no
    rank had stopped; `early`, if the run was told to stop before its first step."""
    before: str
    """Step of the last checkpoint when the launch began."""
    after: str
    """Step of the last checkpoint when it ended."""
    node: str
    """The first node to fail, or `-`."""
    words: str


def launches_of(folder: Path) -> list[Launch]:
    """Return the recorded launches since the run was last submitted. A launch leaves no line while
    it runs, where it finished or failed the run, or where its node died."""
    with suppress(FileNotFoundError):
        lines = (folder / "job" / "launches").read_text(errors="replace").splitlines()
        return [Launch(*(*line.split(" ", 5)[1:], *[""] * 5)[:5]) for line in lines]
    return []


def idle_launches(launches: Sequence[Launch]) -> int:
    """Launches in a row, up to the last one, that left no new checkpoint. One that found the run
    held by another process does not count."""
    counted = [launch for launch in launches if launch.outcome != HELD]
    return len([*takewhile(lambda launch: launch.before == launch.after, reversed(counted))])


def remark(folder: Path) -> str:
    """A summary of a run's launches for people; empty if all went well."""
    launches = [launch for launch in launches_of(folder) if launch.outcome != HELD]
    crashes = [launch for launch in launches if launch.outcome == "crash"]
    idle = idle_launches(launches)
    summary = f"launches in a row without a new checkpoint: {idle}" if idle else ""
    if crashes:
        summary = f"crashes: {len(crashes)}, last: {crashes[-1].words}"
    if launches:
        last = launches[-1]
        by_outcome = {
            "set-up": f"set-up failed: {last.words}",
            "early": f"no time left after a start-up of {last.words}: more time in [resources]",
            "limit": f"stopped by the limit, resumed from step {last.after}",
        }
        summary = by_outcome.get(last.outcome, summary)
    avoided = folder / "job" / "avoided"
    avoids = f"avoids {avoided.read_text().strip()}" if avoided.exists() else ""
    return "; ".join(filter(None, (summary, avoids)))


@dataclass
class Supervisor:
    """Holds what one launch needs to know until its end."""

    folder: Path
    retries: int
    signal_seconds: int
    """How long before the end of its time Slurm warns the ranks."""
    excluded: str
    """Nodes that the profile excludes already."""
    job: str = field(default_factory=lambda: _job_id())
    told: bool = False
    """Whether Slurm has told this job to end. Its ranks write a checkpoint first."""
    ends: float | None = None
    """When the job's time is up, if it has an end."""

    def run(self, command: Sequence[str]) -> int:
        """Start the ranks, wait for their end or for that of the time; returns the exit status."""
        signal.signal(signal.SIGTERM, self._tell)
        job = self.folder / "job"
        (job / "ended").unlink(missing_ok=True)
        began, before = time.time(), last_checkpoint(self.folder)
        with insist(lambda: open(job / "srun.txt", "wb"), PATIENCE, OSError) as errors:
            ranks = subprocess.Popen(command, stderr=errors)
        if self._time_is_up(ranks):
            outcome, node, words = "limit", "-", "stopped by the limit"
        else:
            outcome, node, words = insist(
                lambda: self._outcome(ranks.returncode, began), PATIENCE, OSError
            )
        if outcome in (str(Exit.OVER.value), str(Exit.FAILED.value)):
            return int(outcome)
        try:
            self._check_may_requeue()
            insist(lambda: note(self.folder, outcome, before, node, words), PATIENCE, DiskAwayError)
            if why := self._had_enough(outcome, words):
                if outcome == "limit":  # slow ranks must not overwrite the status
                    call("scancel", "--signal=KILL", self.job)
                mark_failed(self.folder, why)
                print(why, file=sys.stderr)
                return 1
            self._requeue()
        except UserError as error:
            print(f"not requeued: {error}; submit again to go on", file=sys.stderr)
            ranks.wait()
            return Exit.PREEMPTED if isinstance(error, SlurmError) else 1
        # An exit before Slurm's own signal would have the job noted as failed.
        deadline = time.monotonic() + 60
        while not self.told and time.monotonic() < deadline:
            time.sleep(0.1)
        return Exit.PREEMPTED

    def _tell(self, *unused: object) -> None:
        self.told = True

    def _time_is_up(self, ranks: "subprocess.Popen[bytes]") -> bool:
        """Wait for the ranks; return True if the time runs out first. Up to a minute of it is kept
        in reserve to requeue the job, since Slurm would end this process with the ranks."""
        spare = min(self.signal_seconds / 4, 60)
        while True:
            self.ends = _end_of_time(self.job) or self.ends
            left = self.ends - spare - time.time() if self.ends else 600.0
            if left <= 0:
                return True
            with suppress(subprocess.TimeoutExpired):
                ranks.wait(min(left, 600.0))  # then it is asked again: the end may have been moved
                return False

    def _outcome(self, status: int, began: float) -> tuple[str, str, str]:
        """Outcome, node and words of a launch whose ranks have ended. Raises `OSError`."""
        job, outcome = self.folder / "job", ""
        errors = (job / "srun.txt").read_text(errors="replace")
        print(errors, end="", file=sys.stderr)
        with suppress(FileNotFoundError):
            outcome = (job / "ended").read_text().strip()
        # srun names the tasks that ended badly, the first to do so first.
        match = re.search(r"^srun: error: ([^ ]*: tasks? .*)", errors, re.MULTILINE)
        first = match[1] if match else ""
        if outcome in (STOPPED, "early"):
            if first and not first.endswith(f" {STOPPED}"):
                outcome = ""  # another rank died before
            else:
                first = ""
        if outcome not in ("0", "1", STOPPED, "early", HELD):
            # A warning may come before anybody listens to it.
            outcome = "early" if first.endswith("User defined signal 2") else "crash"
        if outcome == "early":
            first = f"{time.time() - began:.0f} s"
            # Slurm warns up to a minute early; if it came sooner, the job was preempted.
            if self.ends and time.time() <= self.ends - self.signal_seconds - 90:
                outcome = STOPPED
        alone = os.environ["SLURM_JOB_NUM_NODES"] == "1"
        node = os.environ["SLURM_JOB_NODELIST"] if alone else first.partition(":")[0]
        return outcome, (node if outcome == "crash" else "") or "-", first or f"status {status}"

    def _check_may_requeue(self) -> None:
        """Raise `SlurmError` where the job was cancelled, or is about to be requeued anyway."""
        ask = ("squeue", "--noheader", f"--jobs={self.job}", "--format=%T")
        state = insist(lambda: call(*ask).strip(), PATIENCE, SlurmError)
        if state != "RUNNING" or cancel_mark(self.folder).exists():
            raise SlurmError(f"job {self.job} is {state or 'not to be found'}")

    def _had_enough(self, outcome: str, words: str) -> str:
        """Why the run is given up, if it is."""
        launches = launches_of(self.folder)
        why = given_up(idle_launches(launches), self.retries, "" if outcome == STOPPED else words)
        if why and outcome == "early":
            return (
                f"given up: no time left after a start-up of {words}: raise its time in [resources]"
            )
        return why

    def _requeue(self) -> None:
        """Put the job back into the queue. Raises `SlurmError` where that is refused."""
        bad = self._bad_nodes()
        # The controller ends this job from here on: SIGTERM is blocked until the rest is done.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            insist(lambda: call("scontrol", "requeue", self.job), PATIENCE, NoAnswerError)
            if bad:  # only a job in the queue can be told which nodes to leave out
                nodes = ",".join(filter(None, (self.excluded, *bad)))
                call("scontrol", "update", f"JobId={self.job}", f"ExcNodeList={nodes}")
                (self.folder / "job" / "avoided").write_text(",".join(bad) + "\n")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _bad_nodes(self) -> list[str]:
        """Nodes on which this run crashed twice, as long as enough others are up."""
        crashes = Counter(
            launch.node for launch in launches_of(self.folder) if launch.outcome == "crash"
        )
        bad = sorted(node for node, times in crashes.items() if times > 1 and node != "-")
        if not bad:
            return []
        partition = os.environ["SLURM_JOB_PARTITION"]
        up = call("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N",
                  "--states=idle,mixed,allocated,completing")  # fmt: skip
        return bad if len({*up.split()} - {*bad}) >= int(os.environ["SLURM_JOB_NUM_NODES"]) else []


def note(folder: Path, outcome: str, before: int, node: str, words: str) -> None:
    """Add a line to `job/launches`. Raises `UserError`: launches that leave no line would not be
    counted, and would be made for ever."""
    path, after = folder / "job" / "launches", last_checkpoint(folder)
    with disk_errors_named(path), open(path, "a", encoding="utf8") as file:
        file.write(f"{time.time():.0f} {outcome} {before} {after} {node} {words}\n")


def mark_failed(folder: Path, why: str) -> None:
    """Write the last word of a run whose ranks are gone; what they said last stays beside it."""
    status = read_status(folder)
    if not is_over(folder):
        last_words = status["message"] if status and why.startswith("given up") else ""
        mark(
            folder, load(config_path(folder)), "failed", ": ".join(filter(None, (why, last_words)))
        )


def _job_id() -> str:
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    if array:
        return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]


def _end_of_time(job: str) -> float | None:
    """When the job's time is up; None if it has no end, or nobody answers."""
    with suppress(SlurmError, ValueError):
        end = call("squeue", "--noheader", f"--jobs={job}", "--format=%e").strip()
        return datetime.fromisoformat(end).timestamp()
    return None


if __name__ == "__main__":
    run_folder, *rest = sys.argv[1:]
    if len(rest) == 1:
        note(Path(run_folder), "set-up", 0, os.environ.get("SLURMD_NODENAME", "-"), rest[0])
        mark_failed(Path(run_folder), f"set-up failed: {rest[0]}")
    else:
        retries, seconds, excluded, *command = rest
        sys.exit(Supervisor(Path(run_folder), int(retries), int(seconds), excluded).run(command))
