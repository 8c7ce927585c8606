"""A submission: one Slurm job array, with one array element for each run.

A submission is recorded before `sbatch` is called, so that no job is lost if the submitting process
is killed. Its folder, `<study>/slurm/<id>/`, holds the batch script (`script.sh`), the run ids
(`runs`), the job id that `sbatch` returned (`job.json`), and the output of the batch scripts.

The job's comment names the submission's id. If the submitting process is killed before it writes
`job.json`, the next command finds the job by that comment. A job is never recognised by its job id
alone, because Slurm counts job ids from the beginning again when a controller loses its state.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from tst_study.atomic_files import read_json, write_json
from tst_study.errors import UserError
from tst_study.experiments.launcher import Job
from tst_study.experiments.slurm.commands import SlurmError, call

FAILED = ("FAILED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
"""Slurm's final states of a job that failed."""
ENDED = (*FAILED, "CANCELLED", "COMPLETED", "NODE_FAIL", "PREEMPTED", "REVOKED", "TIMEOUT")
"""All of Slurm's final job states. A job in any other state may still run."""
NEVER = "DependencyNeverSatisfied"
"""The reason that Slurm gives for a pending job if the job that it waits for has failed."""
MARK = "tst-study:"
"""The beginning of every job's comment; the id of the submission follows."""
_JOB = TypeAdapter(dict[Literal["job"], Annotated[str, Field(pattern="^[0-9]+$")]])
"""The schema of `job.json`."""

Key = tuple[str, int]
"""The id of a submission, and the index of an element of its array."""
FOLDER = "slurm"
RUNS = "runs"
"""The file with one run id per line, in the order of the array. The batch script reads it."""


@dataclass(frozen=True)
class Submission:
    """A job array that was submitted, or is about to be."""

    folder: Path
    """The submission's folder, whose name is its id."""
    runs: tuple[str, ...]
    """Run ids in the order of the array."""

    @property
    def study(self) -> Path:
        """The folder of the study."""
        return self.folder.parents[1]

    @property
    def name(self) -> str:
        """The job's name, which depends on the study's folder and the list of runs.

        If the same runs are submitted twice, both jobs have the same name. Slurm's dependency
        `singleton`, which every job has, then lets only one of the two run at a time.
        """
        # Two checkouts may have studies of the same name. A job of one must not wait for a job of
        # the other.
        text = "\n".join([str(self.study.absolute()), *self.runs])
        return f"{self.study.name}-{sha256(text.encode()).hexdigest()[:8]}"

    @property
    def comment(self) -> str:
        """The comment by which the submission's jobs are recognised."""
        return f"{MARK}{self.folder.name}"

    @property
    def job_id(self) -> str | None:
        """The job id that `sbatch` returned; None if it was never recorded, or if the record is
        damaged: then the queue is asked, as after a kill."""
        with suppress(UserError):
            return (read_json(self.folder / "job.json", _JOB) or {}).get("job")
        return None


def new(root: Path, runs: Sequence[str]) -> Submission:
    """Return a submission with a new id, and write nothing yet. Ids sort by their time of
    creation."""
    id = f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{secrets.token_hex(3)}"
    return Submission(root / FOLDER / id, tuple(runs))


def submit(submission: Submission, script: str, lock: int) -> str:
    """Write the submission's folder, call `sbatch`, and record the job id. Returns the job id.

    `lock`: the file descriptor of the study's lock. `sbatch` inherits it, so that the lock is held
    until `sbatch` ends, even if this process is killed. Until then no other command can submit runs
    of the study. Raises `SlurmError` if Slurm does not take the job.
    """
    folder = submission.folder
    folder.mkdir(parents=True)
    (folder / "script.sh").write_text(script, encoding="utf8")
    (folder / RUNS).write_text("".join(f"{run}\n" for run in submission.runs), encoding="utf8")
    try:
        answer = call("sbatch", "--parsable", str(folder / "script.sh"), pass_fds=(lock,))
        # A site's sbatch may print a greeting before the job id.
        job = answer.strip().rpartition("\n")[2].partition(";")[0]
    except SlurmError:
        # Slurm may have accepted the job although its answer was lost.
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
    """Yield every run id of every submission of a study, oldest submission first, with its job.

    Submissions without a job id, such as those that never reached the queue, are left out. If the
    submitting process was killed after `sbatch`, the job id is looked up in the queue and recorded
    now. Slurm is asked only if there are submissions. A job that it no longer knows counts as
    ended. Raises `SlurmError` if Slurm does not answer.
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
    """The job of each run that ever had one, by run id: its active job if it has one, else the job
    of its last submission. Raises `SlurmError` if Slurm does not answer."""
    jobs: dict[str, Job] = {}
    for run, job in tasks(root):
        if run not in jobs or job.is_active or not jobs[run].is_active:
            jobs[run] = job
    return jobs


def _array_of(submission: Submission, known: dict[Key, Job]) -> str:
    """The job id of a submission, without an array index; empty if the submission is not in the
    queue (`known`)."""
    there = (job.id for (name, _), job in known.items() if name == submission.folder.name)
    return next(there, "").partition("_")[0]


def in_the_queue() -> dict[Key, Job]:
    """Return all jobs of this user that this package submitted and that the controller still
    remembers, which includes jobs that ended recently.

    Raises `SlurmError` if the controller does not answer.
    """
    out = call("squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}",
               "--format=%F|%K|%T|%r|%k")  # fmt: skip
    jobs: dict[Key, Job] = {}
    for line in out.splitlines():
        array, place, state, reason, comment = (*line.split("|", 4), "", "", "", "")[:5]
        if not comment.startswith(MARK) or not place.isdigit():
            continue
        key = (comment.removeprefix(MARK), int(place))
        # A requeued array element can be listed twice for a moment; the active entry counts.
        if key not in jobs or not jobs[key].is_active:
            jobs[key] = _job(f"{array}_{place}", state, reason)
    return jobs


def _job(id: str, state: str, reason: str) -> Job:
    """Return the `Job` for a state and a reason as Slurm gives them. `state` is in Slurm's long
    form: PENDING, TIMEOUT, …"""
    remark = f"job {id}: {state}"
    if state == "CANCELLED" or reason == NEVER:
        return Job(id, "cancelled", remark)
    if state in ENDED:
        return Job(id, "failed" if state in FAILED else "ended", remark)
    return Job(id, "running") if state == "RUNNING" else Job(id, "queued", reason)
