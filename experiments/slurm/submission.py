"""A submission: one array of runs, recorded before `sbatch` is called so that a kill loses nothing.

`<study>/slurm/<id>/` holds `script.sh`, `runs`, the answer of `sbatch` in `job.json`, and the
output of batch scripts. The job's comment names the id. If the submitting process is killed before
it writes `job.json`, the next command finds the job by that comment. Jobs are never recognised by
their ids alone: these begin anew when a controller loses its state.
"""

import getpass
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from tst_study.atomic_files import write_json
from tst_study.experiments.launcher import Job
from tst_study.experiments.slurm.commands import SlurmError, call

FAILED = ("FAILED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
ENDED = (*FAILED, "CANCELLED", "COMPLETED", "NODE_FAIL", "PREEMPTED", "REVOKED", "TIMEOUT")
"""Final job states. A job in any other state may still run."""
NEVER = "DependencyNeverSatisfied"
"""Slurm's reason for a job that waits for one that has failed."""
MARK = "tst-study:"
"""How the comment of every job begins; the id of its submission follows."""

Key = tuple[str, int]
"""The id of a submission, and an index in its array."""
FOLDER = "slurm"
RUNS = "runs"
"""The file with one run id per line, in the order of the array. The batch script reads it."""


@dataclass(frozen=True)
class Submission:
    folder: Path
    """Its folder, whose name is its id."""
    runs: tuple[str, ...]
    """Run ids in the order of the array."""

    @property
    def study(self) -> Path:
        """The folder of the study."""
        return self.folder.parents[1]

    @property
    def name(self) -> str:
        """The job's name. Equal lists of runs have equal names, so that `singleton` lets only one
        of two equal jobs run at a time."""
        # Two checkouts may have studies of the same name; a job must not wait for the other's.
        text = "\n".join([str(self.study.absolute()), *self.runs])
        return f"{self.study.name}-{sha256(text.encode()).hexdigest()[:8]}"

    @property
    def comment(self) -> str:
        """The comment by which its jobs are recognised."""
        return f"{MARK}{self.folder.name}"

    @property
    def job_id(self) -> str | None:
        """The job id that `sbatch` returned; None if it was never recorded."""
        try:
            answer: dict[str, str] = json.loads((self.folder / "job.json").read_bytes())
        except FileNotFoundError:
            return None
        return answer["job"]


def new(root: Path, runs: Sequence[str]) -> Submission:
    """A submission with a new id. Ids sort by their time."""
    id = f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{secrets.token_hex(3)}"
    return Submission(root / FOLDER / id, tuple(runs))


def submit(submission: Submission, script: str, lock: int) -> str:
    """Record the intent, call `sbatch` and record its answer. Returns the job id.

    `lock`: the descriptor of the study's lock. `sbatch` inherits it, so that if this process is
    killed, no other command submits anything before the job is in the queue. Raises `SlurmError`.
    """
    folder = submission.folder
    folder.mkdir(parents=True)
    (folder / "script.sh").write_text(script, encoding="utf8")
    (folder / RUNS).write_text("".join(f"{run}\n" for run in submission.runs), encoding="utf8")
    try:
        answer = call("sbatch", "--parsable", str(folder / "script.sh"), pass_fds=(lock,))
        job = answer.strip().partition(";")[0]
    except SlurmError:
        # The job may have been accepted, with only the answer lost.
        job = _array_of(submission, in_the_queue())
        if not job:
            raise
    write_json(folder / "job.json", {"job": job})
    return job


def all_of(root: Path) -> list[Submission]:
    """All submissions of a study, oldest first."""
    return [
        Submission(
            path.parent, tuple(path.read_text(encoding="utf8", errors="replace").splitlines())
        )
        for path in sorted((root / FOLDER).glob(f"*/{RUNS}"))
    ]


def tasks(root: Path) -> Iterator[tuple[str, Job]]:
    """Yield every run of every submission of a study, oldest first, with its job. Submissions that
    never reached the queue are left out.

    Slurm is asked only if there are submissions. A job that it no longer knows has ended. If the
    submitting process was killed after `sbatch`, the job id is recorded now. Raises `SlurmError` if
    Slurm does not answer.
    """
    submissions = all_of(root)
    known = in_the_queue() if submissions else {}
    for submission in submissions:
        id = submission.job_id
        if id is None and (id := _array_of(submission, known)):
            write_json(submission.folder / "job.json", {"job": id})
        if id:
            for place, run in enumerate(submission.runs):
                job = known.get((submission.folder.name, place))
                yield run, job or Job(f"{id}_{place}", "ended")


def known_jobs(root: Path) -> dict[str, Job]:
    """The job of each run that ever had one: an active job, else that of the last submission.
    Raises `SlurmError` if Slurm does not answer."""
    jobs: dict[str, Job] = {}
    for run, job in tasks(root):
        if run not in jobs or job.is_active or not jobs[run].is_active:
            jobs[run] = job
    return jobs


def _array_of(submission: Submission, known: dict[Key, Job]) -> str:
    """The job id of a submission in the queue; empty if the queue does not have it."""
    there = (job.id for (name, _), job in known.items() if name == submission.folder.name)
    return next(there, "").partition("_")[0]


def in_the_queue() -> dict[Key, Job]:
    """Return all jobs of this user that this package submitted and the controller remembers,
    including those that ended lately.

    Raises `SlurmError` if the controller does not answer.
    """
    out = call("squeue", "--noheader", "--array", "--states=all", f"--user={getpass.getuser()}",
               "--format=%F|%K|%T|%r|%k")  # fmt: skip
    jobs: dict[Key, Job] = {}
    for line in out.splitlines():
        array, place, state, reason, comment = (*line.split("|", 4), "", "", "", "")[:5]
        if not comment.startswith(MARK) or not place.isdigit():
            continue
        key = (comment.removeprefix(MARK), int(place))
        # A requeued task can be listed twice for a moment; the entry that is alive counts.
        if key not in jobs or not jobs[key].is_active:
            jobs[key] = _job(f"{array}_{place}", state, reason)
    return jobs


def _job(id: str, state: str, reason: str) -> Job:
    """A job as every launcher describes it. `state` is Slurm's long name: PENDING, TIMEOUT, …"""
    remark = f"job {id}: {state}"
    if state == "CANCELLED" or reason == NEVER:
        return Job(id, "cancelled", remark)
    if state in ENDED:
        return Job(id, "failed" if state in FAILED else "ended", remark)
    return Job(id, "running") if state == "RUNNING" else Job(id, "queued", reason)
