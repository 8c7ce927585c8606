"""A submission: one Slurm job array, with one array element for each run.

A submission is recorded before `sbatch` is called, so that no job is lost if the submitting process
is killed. Its folder, `<study>/slurm/<id>/`, holds the batch script (`script.sh`), the run ids
(`runs`), who submitted them to which cluster (`origin.json`), the job id that `sbatch` returned
(`job.json`), and the output of the batch scripts.

The job's comment names the submission's id. If the submitting process is killed before it writes
`job.json`, the next command finds the job by that comment. A job is never recognised by its job id
alone, because Slurm counts job ids from the beginning again when a controller loses its state.

Elements that wait for another element of their array (`waits`) are told so after `sbatch`, and
until then the array is held. If the submitting process is killed in between, the next one goes on.
"""

import getpass
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter

from tst_study.atomic_files import read_json, write_json
from tst_study.errors import UserError
from tst_study.experiments.launcher import Job
from tst_study.experiments.slurm.commands import SECONDS, NoAnswerError, SlurmError, call
from tst_study.record.reader import is_over

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
_WAITS = TypeAdapter(dict[int, list[int]])
T = TypeVar("T")

Key = tuple[str, int]
"""The id of a submission, and the index of an element of its array."""
FOLDER = "slurm"
RUNS = "runs"
"""The file with one run id per line, in the order of the array. The batch script reads it."""
SECOND_LOOK = 2.0
"""Seconds after which the queue is asked again if jobs that it should list are missing: a job that
is being requeued may be missing for a moment, and a busy controller may answer with nothing."""


@dataclass(frozen=True)
class Origin:
    """Who submitted jobs, and where."""

    user: str = ""
    number: int = field(default_factory=os.getuid)
    """The user's number."""
    cluster: str = ""
    """Empty if it is not known."""
    seconds: float = SECONDS
    """The time in which Slurm must answer there."""


_ORIGIN = TypeAdapter(Origin)


@dataclass(frozen=True)
class Submission:
    """A job array that was submitted, or is about to be."""

    folder: Path
    """The submission's folder, whose name is its id."""
    runs: tuple[str, ...]
    """Run ids in the order of the array."""
    waits: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """For each element that others wait for, by its index, the indices of those others."""

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
        """The words with which the comments of the submission's jobs begin, and by which they are
        recognised."""
        return f"{MARK}{self.folder.name}"

    @property
    def origin(self) -> Origin:
        """Who submitted the jobs to which cluster; this user, if that was never recorded."""
        return _read(self.folder / "origin.json", _ORIGIN) or Origin()

    @property
    def job_id(self) -> str | None:
        """The job id that `sbatch` returned; None if it was never recorded, or if the record is
        damaged: then the queue is asked, as after a kill."""
        return (_read(self.folder / "job.json", _JOB) or {}).get("job")


def _read(path: Path, schema: TypeAdapter[T]) -> T | None:
    """Read a file of a submission; None if it is missing or damaged."""
    with suppress(UserError):
        return read_json(path, schema)
    return None


def new(
    root: Path, runs: Sequence[str], waits: Mapping[int, Sequence[int]] | None = None
) -> Submission:
    """Return a submission with a new id, and write nothing yet. Ids sort by their time of
    creation."""
    id = f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{secrets.token_hex(3)}"
    return Submission(root / FOLDER / id, tuple(runs), waits or {})


def submit(submission: Submission, script: str, lock: int, seconds: float = SECONDS) -> str:
    """Write the submission's folder, call `sbatch`, and record the job id. Returns the job id.

    `seconds`: the time in which Slurm must answer. `lock`: the file descriptor of the study's lock.
    `sbatch` inherits it, so that the lock is held until `sbatch` ends, even if this process is
    killed. Until then no other command can submit runs of the study. Raises `SlurmError` if Slurm
    does not take the job.
    """
    folder = submission.folder
    folder.mkdir(parents=True)
    (folder / "script.sh").write_text(script, encoding="utf8")
    cluster = settings(seconds).get("ClusterName", "")
    origin = Origin(getpass.getuser(), os.getuid(), cluster, seconds)
    write_json(folder / "origin.json", asdict(origin))
    if submission.waits:
        write_json(folder / "waits.json", submission.waits)
    (folder / RUNS).write_text("".join(f"{run}\n" for run in submission.runs), encoding="utf8")
    script_file = str(folder / "script.sh")
    try:
        answer = call("sbatch", "--parsable", script_file, pass_fds=(lock,), seconds=seconds)
        # A site's sbatch may print a greeting before the job id.
        job = answer.strip().rpartition("\n")[2].partition(";")[0]
    except SlurmError:
        # Slurm may have accepted the job although its answer was lost. A refused one may be listed
        # as failed.
        known = in_the_queue([submission], seconds)
        job = _array_of(submission, {key: one for key, one in known.items() if one.is_active})
        if not job:
            raise
    write_json(folder / "job.json", {"job": job})
    release(submission)
    return job


def release(submission: Submission, *, again: bool = False) -> None:
    """Tell the elements of an array that wait for other elements so, and let it go; do nothing if
    that is done. `again`: it may be done in part. Raises `SlurmError`; if Slurm refuses, the array
    is cancelled."""
    path, seconds = submission.folder / "waits.json", submission.origin.seconds
    if not path.exists() or not (job := submission.job_id):
        return
    for first, others in (read_json(path, _WAITS, f"scancel {job} and delete it") or {}).items():
        # Without `singleton`, which would keep elements of one array apart once their dependencies
        # differ. They wait for elements that have it.
        ids = f"{job}_[{','.join(map(str, others))}]"
        words = (f"JobId={ids}", f"Dependency=afterok:{job}_{first}")
        try:
            call("scontrol", "update", *words, seconds=seconds)
        except NoAnswerError:
            raise
        except SlurmError:
            if not again:  # else the elements have begun
                call("scancel", job, seconds=seconds)
                raise
    call("scontrol", "release", job, seconds=seconds)
    path.unlink()


def settings(seconds: float = SECONDS) -> dict[str, str]:
    """The settings of the cluster that Slurm's programs ask here; empty if they do not say them."""
    with suppress(SlurmError):
        text = call("scontrol", "show", "config", seconds=seconds)
        return dict(re.findall(r"^(\w+)\s*=\s*(\S+)", text, re.MULTILINE))
    return {}


def all_of(root: Path) -> list[Submission]:
    """All submissions of a study, oldest first."""
    return [
        Submission(
            path.parent, tuple(path.read_text(encoding="utf8", errors="replace").splitlines())
        )
        for path in sorted((root / FOLDER).glob(f"*/{RUNS}"))
    ]


def tasks(root: Path, seconds: float = 0.0) -> Iterator[tuple[str, Job]]:
    """Yield every run id of every submission of a study, oldest submission first, with its job. A
    submission without runs, whose job submits runs (`follow_up`), has the run id "".

    Submissions without a job id, such as those that never reached the queue, are left out. If the
    submitting process was killed after `sbatch`, the job id is looked up in the queue and recorded
    now. Slurm is asked only if there are submissions. A job that it no longer knows counts as
    ended, unless it was submitted to another cluster, which cannot be asked from here, or is
    another user's and jobs are private. `seconds`: the time in which Slurm must answer, if that is
    more than at the submission. Raises `SlurmError` if Slurm does not answer.
    """
    submissions = all_of(root)
    seconds = max([seconds, *(each.origin.seconds for each in submissions)])
    known = in_the_queue(submissions, seconds) if submissions else {}
    names = {submission.folder.name for submission in submissions}
    open_ = (_is_open(root / run) for each in submissions for run in each.runs)
    if names.isdisjoint(name for name, _ in known) and any(open_):
        time.sleep(SECOND_LOOK)
        known = in_the_queue(submissions, seconds)
    here: dict[str, str] = {}
    for submission in submissions:
        id, origin = submission.job_id, submission.origin
        if id is None and (id := _array_of(submission, known)):
            write_json(submission.folder / "job.json", {"job": id})
        owner = "" if origin.number == os.getuid() else origin.user
        for place, run in enumerate((submission.runs or ("",)) if id else ()):
            job = known.get((submission.folder.name, place))
            if job is None and origin.cluster:
                here = here or settings(seconds)
                is_away = here.get("ClusterName", origin.cluster) != origin.cluster
                owner = f"{origin.user} on {origin.cluster}" if is_away else owner
                if is_away or (owner and "jobs" in here.get("PrivateData", "")):
                    job = Job(f"{id}_{place}", "queued")
            yield run, replace(job or Job(f"{id}_{place}", "ended"), owner=owner)


def _is_open(folder: Path) -> bool:
    """Return whether a run is not over; True if its status is damaged."""
    with suppress(UserError):
        return not is_over(folder)
    return True


def known_jobs(root: Path, seconds: float = 0.0) -> dict[str, Job]:
    """The job of each run that ever had one, by run id: its active job if it has one, else the job
    of its last submission. Raises `SlurmError` if Slurm does not answer."""
    jobs: dict[str, Job] = {}
    for run, job in tasks(root, seconds):
        if run not in jobs or job.is_active or not jobs[run].is_active:
            jobs[run] = job
    return jobs


def _array_of(submission: Submission, known: dict[Key, Job]) -> str:
    """The job id of a submission, without an array index; empty if the submission is not in the
    queue (`known`)."""
    there = (job.id for (name, _), job in known.items() if name == submission.folder.name)
    return next(there, "").partition("_")[0]


def in_the_queue(of: Sequence[Submission] = (), seconds: float = SECONDS) -> dict[Key, Job]:
    """Return all jobs that this package submitted for this user, and for those of the submissions
    `of`, if the controller still remembers them, which includes jobs that ended recently.

    Raises `SlurmError` if the controller does not answer.
    """
    users = {os.getuid(), *(each.origin.number for each in of)}
    out = call("squeue", "--noheader", "--array", "--states=all",
               f"--user={','.join(map(str, sorted(users)))}", "--format=%F|%K|%T|%r|%k",
               seconds=seconds)  # fmt: skip
    jobs: dict[Key, Job] = {}
    for line in out.splitlines():
        array, place, state, reason, comment = (*line.split("|", 4), "", "", "", "")[:5]
        if not comment.startswith(MARK) or not place.isdigit():
            continue
        key = (comment.removeprefix(MARK).partition(" ")[0], int(place))
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
    if state in ("SUSPENDED", "STOPPED"):
        return Job(id, "running", remark)
    return Job(id, "running") if state == "RUNNING" else Job(id, "queued", reason)
