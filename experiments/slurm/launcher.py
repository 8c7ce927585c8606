"""Which runs of a study need a job, and how they are handed to Slurm: never twice, never lost.

Truth is the run's own status first, then its lock, then the queue. What is over is skipped, what
is queued or running is adopted, and the rest is submitted in arrays: one per kind of resources
and per trunk to wait for, no longer than the cluster allows.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from experiments import planner
from experiments.code_copy import keep_code
from experiments.planner import PlannedRun, Planner
from experiments.slurm import submission
from experiments.slurm.commands import setting
from experiments.slurm.jobs import Job, in_memory_or_accounts, in_the_queue
from experiments.slurm.profile import Profile, Resources
from experiments.slurm.submission import COLLECT, Submission
from experiments.study import Study
from tst_study import run_lock
from tst_study.config import to_toml
from tst_study.run_record import FINAL_STATES

SECOND_LOOK = 2.0
"""Seconds behind which a job that was not in the queue is looked for again: a requeued one may be
missing for a moment."""
DEFAULT_MAX_ARRAY = 1001


@dataclass
class Submitted:
    """What a call of `submit` found and did."""

    over: list[PlannedRun] = field(default_factory=list)
    adopted: list[PlannedRun] = field(default_factory=list)
    """Queued or running already."""
    new: list[PlannedRun] = field(default_factory=list)
    held_back: list[PlannedRun] = field(default_factory=list)
    """Their trunk is trained outside Slurm, or not to be trained now: no job to wait for."""
    jobs: list[str] = field(default_factory=list)
    collect: str | None = None
    undecided: int = 0
    """Runs that wait for results of these, such as that of a sweep."""

    def lines(self) -> list[str]:
        text = [f"{len(self.over)} over, {len(self.adopted)} queued or running already"]
        text.append(f"{len(self.new)} submitted in {len(self.jobs)} arrays")
        if self.jobs:
            text[-1] += f": {', '.join(self.jobs[:8])}{' …' if len(self.jobs) > 8 else ''}"
        if self.held_back:
            text.append(f"{len(self.held_back)} held back: their trunk has no job to wait for")
        if self.undecided:
            text.append(f"{self.undecided} more hang on their results: submit again then")
        if self.collect:
            text.append(f"job {self.collect} collects the study when all of them have ended")
        return text


def submit_to_slurm(
    study: Study,
    root: Path,
    profile: Profile,
    *,
    share: bool = True,
    collects: bool = True,
    only: Callable[[PlannedRun], bool] = lambda run: True,
) -> Submitted:
    """Hand every run that needs it to Slurm; returns at once. Raises `UserError`."""
    planning = Planner(study, root, share)
    with _the_only_submitter(root) as lock:
        runs = [run for run in planning.decided() if only(run)]
        result, open_ = Submitted(undecided=_undecided(planning)), []
        jobs = _jobs_looked_for_twice(root, runs)
        for run in runs:
            job = jobs.get(run.run_id)
            if planner.state(run) in FINAL_STATES:
                result.over.append(run)
            elif (job and job.is_active) or run_lock.is_held(run.folder):
                result.adopted.append(run)
            else:
                open_.append(run)
        handing = _Handing(study, root, profile, lock, jobs, result)
        if open_:
            handing.hand_over(open_)
            if collects:
                handing.collect_behind(result.adopted)
    return result


def _undecided(planning: Planner) -> int:
    return max(0, len(planning.whole()) - len(planning.decided()))


def known_jobs(root: Path) -> dict[str, Job]:
    """The latest job of each run that ever had one; those whose answer was lost are adopted.

    A job that Slurm no longer knows has no state. Raises `SlurmError` where nobody answers.
    """
    submissions = submission.all_of(root)
    if not submissions:
        return {}
    known = in_the_queue()
    submission.adopt(submissions, root, known)
    return submission.latest_jobs(submissions, root, known)


def _jobs_looked_for_twice(root: Path, runs: Sequence[PlannedRun]) -> dict[str, Job]:
    """A second look, where a run that had a job is about to get another."""
    jobs = known_jobs(root)
    had = [run for run in runs if run.run_id in jobs and not jobs[run.run_id].is_active]
    if any(planner.state(run) not in FINAL_STATES for run in had):
        time.sleep(SECOND_LOOK)
        return known_jobs(root)
    return jobs


def explained(jobs: dict[str, Job]) -> dict[str, Job]:
    """The same, with what `scontrol` or `sacct` know of jobs that left the queue."""
    gone = {job.id for job in jobs.values() if not job.state}
    if not gone:
        return jobs
    more = in_memory_or_accounts(gone)
    return {run: more.get(job.id, job) for run, job in jobs.items()}


@contextmanager
def _the_only_submitter(root: Path) -> Iterator[int]:
    """One submitter per study at a time; yields the descriptor of the lock."""
    (root / submission.FOLDER).mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / submission.FOLDER / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass
class _Handing:
    study: Study
    root: Path
    profile: Profile
    lock: int
    jobs: dict[str, Job]
    result: Submitted

    def hand_over(self, runs: Sequence[PlannedRun]) -> None:
        """Trunks and runs without one first: branches name the job that they wait for."""
        code = keep_code(self.root)
        longest = self.profile.max_array or int(setting("MaxArraySize") or DEFAULT_MAX_ARRAY)
        for waits in (False, True):
            groups: dict[tuple[Resources, str], list[PlannedRun]] = defaultdict(list)
            for run in runs:
                if bool(run.trunk) != waits:
                    continue
                dependency = self._dependency(run)
                if dependency is None:
                    self.result.held_back.append(run)
                else:
                    resources = self.profile.resources_of(run.config.name)
                    groups[resources, dependency].append(run)
            for (resources, dependency), members in groups.items():
                for start in range(0, len(members), longest):
                    chunk = members[start : start + longest]
                    self._submit(chunk, resources, dependency, code)

    def collect_behind(self, adopted: Sequence[PlannedRun]) -> None:
        """A job that draws and reports when everything has ended, whatever came of it."""
        if not self.result.jobs:
            return
        arrays = [
            self.jobs[run.run_id].id.partition("_")[0] for run in adopted if run.run_id in self.jobs
        ]
        waits = ":".join(sorted({*self.result.jobs, *arrays}))
        name = f"{self.root.name}-{COLLECT}"
        one = submission.new(name, (COLLECT,), keep_code(self.root), f"afterany:{waits}")
        mail = (
            {"mail-user": self.profile.mail, "mail-type": "END,FAIL"} if self.profile.mail else {}
        )
        profile = self.profile.model_copy(update={"sbatch": {**self.profile.sbatch, **mail}})
        partition = self.profile.resources.partition
        resources = Resources(time=self.profile.collect_time, partition=partition)
        self.result.collect = submission.submit(one, self.root, profile, resources, self.lock)

    def _dependency(self, run: PlannedRun) -> str | None:
        """None where the run must wait for what no job can wait for."""
        if run.trunk is None or planner.state(run.trunk) == "done":
            return ""
        job = self.jobs.get(run.trunk.run_id)
        return f"afterok:{job.id}" if job and job.is_active else None

    def _submit(
        self, runs: list[PlannedRun], resources: Resources, dependency: str, code: Path
    ) -> None:
        one = submission.new(self.root.name, [run.run_id for run in runs], code, dependency)
        for run in runs:
            self._write_job_folder(one, run, resources)
        job = submission.submit(one, self.root, self.profile, resources, self.lock)
        self.result.jobs.append(job)
        self.result.new += runs
        for place, run in enumerate(runs):
            self.jobs[run.run_id] = Job(f"{job}_{place}", "PENDING")

    def _write_job_folder(self, one: Submission, run: PlannedRun, resources: Resources) -> None:
        folder = run.folder / "job"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").write_text(to_toml(run.config), encoding="utf8")
        script = submission.script_of_one_run(one, run.run_id, self.root, self.profile, resources)
        (folder / "run.sh").write_text(script, encoding="utf8")


def check_with_slurm(study: Study, root: Path, profile: Profile, share: bool) -> list[str]:
    """What `sbatch --test-only` says of each kind of job that the study needs; submits nothing."""
    import tempfile

    from experiments.slurm.commands import SlurmError, call

    runs = Planner(study, root, share, unprepared=True).decided()
    kinds: dict[Resources, list[PlannedRun]] = defaultdict(list)
    for run in runs:
        if planner.state(run) not in FINAL_STATES:
            kinds[profile.resources_of(run.config.name)].append(run)
    lines = []
    for resources, members in kinds.items():
        one = submission.new(root.name, [members[0].run_id], Path("code"))
        text = submission.script_text(one, Path(root), profile, resources)
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
            script.write(text)
            script.flush()
            try:
                call("sbatch", "--test-only", script.name)
                said = "accepted"
            except SlurmError as error:
                said = str(error)
        lines.append(f"{len(members)} runs on {_said(resources)}: {said}")
    return lines


def _said(resources: Resources) -> str:
    where = f" of {resources.partition}" if resources.partition else ""
    return (
        f"{resources.nodes} nodes{where}, {resources.ranks} tasks, "
        f"{resources.gpus_per_node} GPUs each, {resources.time}"
    )
