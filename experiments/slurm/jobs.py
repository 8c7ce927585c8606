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

    def seen(self, remark: str = "") -> Job:
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
        _note(jobs, comment, place, SlurmJob(f"{array}_{place}", state, reason))
    return jobs


def in_memory_or_accounts(ids: Iterable[str]) -> dict[str, SlurmJob]:
    """What `scontrol`, else `sacct`, still know of jobs that left the queue, by `123_4`.

    Empty where neither knows anything: without slurmdbd, a job is forgotten minutes after its
    end.
    """
    wanted = sorted(set(ids))
    found: dict[str, SlurmJob] = {}
    for array in sorted({one.partition("_")[0] for one in wanted}):
        try:
            out = call("scontrol", "--oneliner", "show", "job", array)
        except SlurmError:
            continue
        for line in out.splitlines():
            fields = dict(re.findall(r"(\w+)=(\S*)", line))
            id = f"{fields.get('ArrayJobId')}_{fields.get('ArrayTaskId')}"
            found[id] = SlurmJob(id, fields.get("JobState", ""), fields.get("Reason", ""))
    missing = [one for one in wanted if one not in found]
    if missing:
        try:
            out = call("sacct", "--noheader", "--parsable2", "--allocations",
                       "--format=JobID,State", f"--jobs={','.join(missing)}")  # fmt: skip
        except SlurmError:  # no accounting
            out = ""
        for line in out.splitlines():
            id, _, state = line.partition("|")
            found[id] = SlurmJob(id, state.split(" ")[0])
    return {id: job for id, job in found.items() if id in wanted}


def _note(jobs: dict[Key, SlurmJob], comment: str, place: str, job: SlurmJob) -> None:
    if not comment.startswith(MARK) or not place.isdigit():
        return
    key = (comment.removeprefix(MARK), int(place))
    # A requeued task can be listed twice for a moment: what is alive counts.
    if key not in jobs or not jobs[key].is_active:
        jobs[key] = job
