"""What Slurm says of a study's jobs, told by the comment that each submission carries.

Never by job id alone: ids begin anew when a controller loses its state.
"""

import getpass
from dataclasses import dataclass
from typing import Any

from experiments.launcher import Job
from experiments.slurm.commands import call

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

    def seen(self, remark: str) -> Job:
        """As any launcher says it, with a remark on its launches so far."""
        if self.is_active:
            if self.state == "RUNNING":
                return Job(self.id, "running", remark)
            return Job(self.id, "queued", "; ".join(filter(None, (self.reason, remark))))
        if not self.state:  # the controller has forgotten it
            return Job(self.id, "ended", remark)
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
        if not comment.startswith(MARK) or not place.isdigit():
            continue
        key = (comment.removeprefix(MARK), int(place))
        # A requeued task can be listed twice for a moment: what is alive counts.
        if key not in jobs or not jobs[key].is_active:
            jobs[key] = SlurmJob(f"{array}_{place}", state, reason)
    return jobs
