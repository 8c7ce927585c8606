"""The jobs of a study, as Slurm knows them.

A job is recognised by its comment, which names its submission, never by its id alone: ids begin
anew when a controller loses its state.
"""

import getpass
from typing import Any

from tst_study.experiments.launcher import Job
from tst_study.experiments.slurm.commands import call

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
