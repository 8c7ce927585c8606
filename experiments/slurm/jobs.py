"""What Slurm says of a study's jobs, told by the comment that each submission carries, and what
`launch.sh` noted of a run's launches since it was last submitted.

Never by job id alone: ids begin anew when a controller loses its state.
"""

import getpass
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from tst_study.experiments.launcher import Job
from tst_study.experiments.run_process import Exit
from tst_study.experiments.slurm.commands import call

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


def in_the_queue() -> dict[Key, Job]:
    """All of this user's jobs that the controller remembers, also those that ended lately.

    Raises `SlurmError` where it cannot be asked.
    """
    out = call("squeue", "--noheader", "--array", "--states=all", f"--user={getpass.getuser()}",
               "--format=%F|%K|%T|%r|%k")  # fmt: skip
    jobs: dict[Key, Job] = {}
    for line in out.splitlines():
        array, place, state, reason, comment = (*line.split("|", 4), "", "", "", "")[:5]
        if not comment.startswith(MARK) or not place.isdigit():
            continue
        key = (comment.removeprefix(MARK), int(place))
        # A requeued task can be listed twice for a moment: what is alive counts.
        if key not in jobs or not jobs[key].is_active:
            jobs[key] = _job(f"{array}_{place}", state, reason)
    return jobs


def _job(id: str, state: str, reason: str) -> Job:
    """As any launcher says it. `state` is Slurm's long name: PENDING, RUNNING, TIMEOUT, …"""
    if state not in ENDED and reason != NEVER:
        return Job(id, "running") if state == "RUNNING" else Job(id, "queued", reason)
    cancelled = state == "CANCELLED" or reason == NEVER
    kind: Any = "failed" if state in FAILED else "cancelled" if cancelled else "ended"
    return Job(id, kind, f"job {id}: {state}")


@dataclass(frozen=True)
class Launch:
    outcome: str
    """An agreed status (`run_process.Exit`); `crash`; `set-up`; `limit`, when its time was up and
    no rank had stopped; `early`, when it was told to stop before its first step."""
    brought: bool
    """Whether it left a new checkpoint."""
    checkpoint: str
    """From which the next one goes on."""
    words: str


def launches_of(folder: Path) -> list[Launch]:
    """Every launch that was not the last and did not end with its node."""
    try:
        lines = (folder / "job" / "launches").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        _, outcome, before, after, _, words = (*line.split(" ", 5), *[""] * 6)[:6]
        found.append(Launch(outcome, before != after, after, words))
    return found


def remark(folder: Path) -> str:
    """What of it a person should know; nothing where all went well."""
    launches = [one for one in launches_of(folder) if one.outcome != str(Exit.HELD.value)]
    crashes = [one for one in launches if one.outcome == "crash"]
    idle = len([*takewhile(lambda one: not one.brought, reversed(launches))])
    said = f"launches in a row without a new checkpoint: {idle}" if idle else ""
    if crashes:
        said = f"crashed {len(crashes)} times, last {crashes[-1].words}"
    if launches:
        words, step = launches[-1].words, launches[-1].checkpoint
        of_the_last = {
            "set-up": f"set-up failed: {words}",
            "early": f"no time left after a start-up of {words}: more time in [resources]",
            "limit": f"stopped by the limit, resumed from step {step}",
        }
        said = of_the_last.get(launches[-1].outcome, said)
    avoided = folder / "job" / "avoided"
    avoids = f"avoids {avoided.read_text().strip()}" if avoided.exists() else ""
    return "; ".join(filter(None, (said, avoids)))
