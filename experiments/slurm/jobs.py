"""What Slurm says of a study's jobs, told by the comment that each submission carries.

Never by job id alone: ids begin anew when a controller loses its state.
"""

import getpass
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from experiments.launcher import Job
from experiments.slurm.commands import SlurmError, call

ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"}
    | {"PREEMPTED", "REVOKED", "TIMEOUT"}
)
"""Job states after which nothing comes; every other one is a job that will still do something."""
FAILED = frozenset({"FAILED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"})
NEVER = "DependencyNeverSatisfied"
"""Reason of a job that waits for one that failed."""
MARK = "tst-study:"
"""Begins the comment of every job; the submission's id follows."""

Key = tuple[str, int]
"""Submission and place in its array."""


@dataclass(frozen=True)
class SlurmJob:
    id: str
    """`123_4`."""
    state: str
    """Slurm's long name: PENDING, RUNNING, TIMEOUT, …"""
    reason: str = ""
    comment: str = ""
    name: str = ""
    """Beside the comment, which not all accounts keep; of a job that left the queue only."""

    def seen(self, remark: str) -> Job:
        """As any launcher says it, with a remark on its launches so far."""
        if self.is_active:
            if self.state == "RUNNING":
                return Job(self.id, "running", remark)
            return Job(self.id, "queued", "; ".join(filter(None, (self.reason, remark))))
        if not self.state:
            return Job(self.id, "forgotten", remark)
        cancelled = self.state == "CANCELLED" or self.reason == NEVER
        kind: Any = "failed" if self.state in FAILED else "cancelled" if cancelled else "ended"
        ended = f"job {self.id}: {self.state}"
        return Job(self.id, kind, "; ".join(filter(None, (ended, remark))))

    @property
    def is_active(self) -> bool:
        is_known = bool(self.state) and self.state not in ENDED
        return is_known and self.reason != NEVER


def in_the_queue() -> dict[Key, SlurmJob]:
    """All of this user's jobs that the controller remembers, also those that ended lately.

    Raises `SlurmError` where it cannot be asked.
    """
    out = call("squeue", "--noheader", "--array", "--states=all", f"--user={getpass.getuser()}",
               "--format=%F|%K|%T|%r|%k")  # fmt: skip
    jobs: dict[Key, SlurmJob] = {}
    for line in out.splitlines():
        array, place, state, reason, comment = (*line.split("|", 4), "", "", "", "")[:5]
        _note(jobs, place, SlurmJob(f"{array}_{place}", state, reason, comment))
    return jobs


def in_memory_or_accounts(jobs: Iterable[SlurmJob]) -> dict[SlurmJob, SlurmJob]:
    """What `scontrol`, else `sacct`, still know of jobs that left the queue.

    Empty where neither knows anything: without slurmdbd, a job is forgotten minutes after its
    end. A stranger's job that has got the same id is not taken for it.
    """
    wanted = list(jobs)
    ours = {(job.id, by): job for job in wanted for by in (job.comment, job.name)}
    found: dict[SlurmJob, SlurmJob] = {}
    for array in sorted({job.id.partition("_")[0] for job in wanted}):
        try:
            out = call("scontrol", "--oneliner", "show", "job", array)
        except SlurmError:
            continue
        for line in out.splitlines():
            fields = dict(re.findall(r"(\w+)=(\S*)", line))
            id = f"{fields.get('ArrayJobId')}_{fields.get('ArrayTaskId')}"
            if job := ours.get((id, fields.get("Comment", ""))):
                found[job] = SlurmJob(id, fields.get("JobState", ""), fields.get("Reason", ""))
    ids = ",".join(sorted({job.id for job in wanted if job not in found}))
    if ids:
        try:
            out = call("sacct", "--noheader", "--parsable2", "--allocations",
                       "--format=JobID,State,Comment,JobName", f"--jobs={ids}")  # fmt: skip
        except SlurmError:  # no accounting
            out = ""
        for line in out.splitlines():
            id, state, comment, name = (*line.split("|", 3), "", "", "")[:4]
            # Accounts keep comments only where AccountingStoreFlags says so.
            if job := ours.get((id, comment or name)):
                found[job] = SlurmJob(id, state.split(" ")[0])
    return found


def _note(jobs: dict[Key, SlurmJob], place: str, job: SlurmJob) -> None:
    if not job.comment.startswith(MARK) or not place.isdigit():
        return
    key = (job.comment.removeprefix(MARK), int(place))
    # A requeued task can be listed twice for a moment: what is alive counts.
    if key not in jobs or not jobs[key].is_active:
        jobs[key] = job
