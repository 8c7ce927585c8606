"""Cancelling jobs: only when asked to, and only jobs that carry this study's mark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments.slurm import submission
from experiments.slurm.commands import call
from experiments.slurm.jobs import in_the_queue

AT_ONCE = 200
"""Jobs per call of `scancel`."""


def cancel_jobs(root: Path, wanted: Callable[[str], bool]) -> list[str]:
    """Cancel the active jobs of the runs whose ids are `wanted`; returns those runs."""
    known = in_the_queue()
    ids: dict[str, str] = {}
    for one in submission.all_of(root):
        for place, run in enumerate(one.runs):
            job = known.get((one.id, place))
            if job is not None and job.is_active and wanted(run):
                ids[job.id] = run
    jobs = sorted(ids)
    for start in range(0, len(jobs), AT_ONCE):
        call("scancel", *jobs[start : start + AT_ONCE])
    return [ids[job] for job in jobs]
