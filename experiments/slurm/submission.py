"""A submission: one array of runs, recorded before `sbatch` is called so that a kill loses nothing.

`<study>/slurm/<id>/` holds `intent.json`, `script.sh`, `runs`, the answer of `sbatch` in
`job.json`, and the output of batch scripts. The job's comment names the id. If the submitting
process is killed before it writes `job.json`, the next command finds the job by that comment.
Jobs are never recognised by their ids alone: these begin anew when a controller loses its state.
"""

import getpass
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tst_study.atomic_files import write_json
from tst_study.errors import UserError
from tst_study.experiments.launcher import Job
from tst_study.experiments.slurm.commands import SlurmError, call

ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"}
    | {"PREEMPTED", "REVOKED", "TIMEOUT"}
)
"""Final job states. A job in any other state may still run."""
FAILED = frozenset({"FAILED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"})
NEVER = "DependencyNeverSatisfied"
"""Slurm's reason for a job that waits for one that has failed."""
MARK = "tst-study:"
"""How the comment of every job begins; the id of its submission follows."""

Key = tuple[str, int]
"""The id of a submission, and an index in its array."""
FOLDER = "slurm"
COLLECT, REST = "collect", "submit-rest"
SMALL = (COLLECT, REST)
"""Names that small jobs, which train nothing, have in the place of a run id."""
RUNS = "runs"
"""The file with one run id per line, in the order of the array. The batch script reads it."""


@dataclass(frozen=True)
class Submission:
    id: str
    name: str
    """The job's name. Equal lists of runs have equal names, so that `singleton` lets only one of
    two equal jobs run at a time."""
    runs: tuple[str, ...]
    """Run ids in the order of the array, or the name of a small job."""
    code: str
    """The folder of the code that the jobs run."""
    created: float
    dependency: str = ""

    @property
    def comment(self) -> str:
        """The comment by which its jobs are recognised."""
        return f"{MARK}{self.id}"

    def folder(self, root: Path) -> Path:
        return root / FOLDER / self.id

    def job_id(self, root: Path) -> str | None:
        """The job id that `sbatch` returned; None if it was never recorded."""
        try:
            answer: dict[str, str] = json.loads((self.folder(root) / "job.json").read_bytes())
        except FileNotFoundError:
            return None
        return answer["job"]


def new(root: Path, what: str, runs: Sequence[str], code: Path, dependency: str = "") -> Submission:
    """A submission with a new id. `what` is added to the study's name in the job's name."""
    now = time.time()
    id = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{secrets.token_hex(3)}"
    # Two checkouts may have studies of the same name; a job must not wait for the other's.
    digest = sha256("\n".join([str(root.absolute()), *runs]).encode()).hexdigest()[:8]
    return Submission(id, f"{root.name}{what}-{digest}", tuple(runs), str(code), now, dependency)


def submit(submission: Submission, root: Path, script: str, lock: int) -> str:
    """Record the intent, call `sbatch` and record its answer. Returns the job id.

    `lock`: the descriptor of the study's lock. `sbatch` inherits it, so that if this process is
    killed, no other command submits anything before the job is in the queue. Raises `SlurmError`.
    """
    folder = submission.folder(root)
    folder.mkdir(parents=True)
    (folder / "script.sh").write_text(script, encoding="utf8")
    (folder / RUNS).write_text("".join(f"{run}\n" for run in submission.runs), encoding="utf8")
    write_json(folder / "intent.json", asdict(submission))
    try:
        answer = call("sbatch", "--parsable", str(folder / "script.sh"), pass_fds=(lock,))
        job = answer.strip().partition(";")[0]
    except SlurmError as error:
        # The job may have been accepted, with only the answer lost.
        job = _array_of(submission, in_the_queue())
        if not job:
            write_json(folder / "job.json", {"job": "", "refused": str(error)})
            raise
    write_json(folder / "job.json", {"job": job})
    return job


def all_of(root: Path) -> list[Submission]:
    """All submissions of a study, oldest first. Raises `UserError` if a record is damaged."""
    submissions = []
    for path in (root / FOLDER).glob("*/intent.json"):
        try:
            values = json.loads(path.read_bytes())
            submission = Submission(**{**values, "runs": tuple(values["runs"])})
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}: damaged ({error}); move {path.parent} away") from None
        if submission.id != path.parent.name:  # an id becomes a path, and must not lead elsewhere
            raise UserError(f"{path}: id {submission.id!r} is not its folder's name; move it away")
        submissions.append(submission)
    return sorted(submissions, key=lambda submission: submission.created)


def tasks(root: Path) -> Iterator[tuple[Submission, str, Job]]:
    """Every run of every submission of a study, oldest first, with its job.

    Slurm is asked only if there are submissions. A job that it no longer knows has ended. If the
    submitting process was killed after `sbatch`, the job id is recorded now. Raises `SlurmError` if
    Slurm does not answer.
    """
    submissions = all_of(root)
    known = in_the_queue() if submissions else {}
    for submission in submissions:
        id = submission.job_id(root)
        if id is None and (id := _array_of(submission, known)):
            write_json(submission.folder(root) / "job.json", {"job": id})
        for place, run in enumerate(submission.runs):
            job = known.get((submission.id, place))
            if job is not None or id:
                yield submission, run, job or Job(f"{id}_{place}", "ended")


def known_jobs(root: Path) -> dict[str, Job]:
    """The job of each run that ever had one: an active job, else that of the last submission.
    Raises `SlurmError` if Slurm does not answer."""
    jobs: dict[str, Job] = {}
    for _, run, job in tasks(root):
        if run not in jobs or job.is_active or not jobs[run].is_active:
            jobs[run] = job
    return jobs


def _array_of(submission: Submission, known: dict[Key, Job]) -> str:
    """The job id of a submission in the queue; empty if the queue does not have it."""
    there = (job.id for (name, _), job in known.items() if name == submission.id)
    return next(there, "").partition("_")[0]


def in_the_queue() -> dict[Key, Job]:
    """All jobs of this user that the controller remembers, including those that ended lately.

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
    if state not in ENDED and reason != NEVER:
        return Job(id, "running") if state == "RUNNING" else Job(id, "queued", reason)
    cancelled = state == "CANCELLED" or reason == NEVER
    kind: Any = "failed" if state in FAILED else "cancelled" if cancelled else "ended"
    return Job(id, kind, f"job {id}: {state}")
