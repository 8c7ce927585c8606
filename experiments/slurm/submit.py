"""Decides which runs of a study need a job, and submits them to Slurm, so that no run is submitted
twice or forgotten.

First, each run's own record is read. Runs that are over are skipped. Runs whose record cannot be
read are named, and not submitted. Then the queue and the run's lock are checked. Runs that are
queued or training are left alone, unless they were cancelled.

All other runs are submitted in job arrays of up to `Profile.array` runs. The runs of one array ask
for the same resources, and wait for the same job or for none. A run waits for a job if it forks
from a shared prefix run (`plan.planner`) that is still to be trained; if the prefix run has no job,
the run that forks from it is not submitted."""

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

from tst_study import file_lock
from tst_study.experiments.launcher import Job, Options, submission_lock
from tst_study.experiments.plan.planned_run import PlannedRun, is_over, state, state_and_damage
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.run_process import cancel_mark, submitted_anew
from tst_study.experiments.slurm import submission
from tst_study.experiments.slurm.batch_script import array_script
from tst_study.experiments.slurm.code_copy import FOLDER, keep_code
from tst_study.experiments.slurm.commands import SlurmError, call
from tst_study.experiments.slurm.profile import Profile, Resources
from tst_study.experiments.slurm.submission import known_jobs
from tst_study.experiments.study import Study
from tst_study.record.reader import FINAL_STATES

SECOND_LOOK = 2.0
"""Seconds after which the queue is asked again if an unfinished run has had a job, but has no
active one now: a job that is being requeued may be missing from the queue for a moment."""


@dataclass
class Submitted:
    """The findings and actions of one call of `submit_to_slurm`."""

    dry: bool
    over: list[PlannedRun] = field(default_factory=list)
    """Runs that are done or have diverged."""
    adopted: list[PlannedRun] = field(default_factory=list)
    """Runs that are queued or training already."""
    new: list[PlannedRun] = field(default_factory=list)
    """Runs that were submitted; in a dry run, those that would be."""
    blocked: list[PlannedRun] = field(default_factory=list)
    """Runs that were not submitted because their shared prefix run is not done and has no job."""
    arrays: list[str] = field(default_factory=list)
    """A line that describes each new array."""
    refused: str = ""
    """The reason why Slurm refused an array. No array is submitted after that one. Empty if Slurm
    took all arrays."""
    damaged: list[str] = field(default_factory=list)
    """The run id of each run whose record cannot be read, and why."""
    first_script: str = ""
    """The batch script of the first new array."""
    undecided: int = 0
    """The expected number of the study's further runs. They cannot be submitted yet, because they
    depend on results that are missing: those of a learning-rate sweep, for example."""

    def lines(self) -> list[str]:
        """Return the lines to print: counts, the new arrays and what was not submitted; in a dry
        run also the first script."""
        text = [
            f"{len(self.over)} finished, {len(self.adopted)} queued or running already",
            f"{len(self.new)} {'to be ' if self.dry else ''}submitted in {len(self.arrays)} "
            f"{'array' if len(self.arrays) == 1 else 'arrays'}",
            *self.arrays,
        ]
        if self.blocked:
            text.append(
                f"{len(self.blocked)} not submitted: no job trains their shared prefix run; submit "
                "again when it is done"
            )
        if self.refused:
            text.append(f"refused: {self.refused}; submit again when Slurm takes more")
        if self.undecided:
            text.append(
                f"{self.undecided} more depend on these results: submit again when they are there"
            )
        text += [f"not submitted: {reason}" for reason in self.damaged]
        return [*text, "", self.first_script] if self.dry else text


def submit_to_slurm(
    study: Study,
    profile: Profile,
    options: Options,
    wanted: Callable[[PlannedRun], bool] = lambda run: True,
) -> Submitted:
    """Submit every wanted run that needs a job, and return without waiting for the runs.

    A dry run submits nothing; if this machine has `sbatch`, a dry run asks whether Slurm would take
    the arrays. Raises `UserError`, for example if Slurm refuses the first array.
    """
    planning, root, dry = Planner(study, unprepared=options.dry), study.folder, options.dry
    asks = not dry or shutil.which("sbatch") is not None
    with nullcontext(-1) if dry else submission_lock(root) as lock:
        decided = planning.decided()
        runs = [run for run in decided if wanted(run)]
        jobs = known_jobs(root) if asks else {}
        had = [run for run in runs if run.run_id in jobs and not jobs[run.run_id].is_active]
        if not all(map(is_over, had)):  # look again before these runs get another job
            time.sleep(SECOND_LOOK)
            jobs = known_jobs(root)
        result = Submitted(dry, undecided=max(0, len(planning.whole()) - len(decided)))
        open_ = _without_a_job(runs, jobs, result)
        code = root / FOLDER / "…" if dry or not open_ else keep_code(root, study.files)
        for resources, dependency, members in _arrays(study, open_, profile, jobs, result):
            array = submission.new(root, [run.run_id for run in members])
            script = array_script(array, code, profile, resources, dependency)
            result.first_script = result.first_script or script
            job = f"array{len(result.arrays) + 1}"
            try:
                if not dry:
                    for run in members:
                        submitted_anew(run.config, run.folder)
                    job = submission.submit(array, script, lock)
                elif asks:
                    # This replaces the script's dependency, whose job a dry run has not submitted.
                    call("sbatch", "--test-only", "--dependency=singleton", standard_input=script)
            except SlurmError as error:
                if not result.arrays:
                    raise
                result.refused = str(error)
                break
            waits = f", after {dependency.partition(':')[2]}" if dependency else ""
            result.arrays.append(f"{job}: runs: {len(members)}; each: {resources}{waits}")
            result.new += members
            for place, run in enumerate(members):
                jobs[run.run_id] = Job(f"{job}_{place}", "queued")
    return result


def _without_a_job(
    runs: Iterable[PlannedRun], jobs: dict[str, Job], result: Submitted
) -> list[PlannedRun]:
    """Return the runs that need a job, and add the others to `result`."""
    open_ = []
    for run in runs:
        job = jobs.get(run.run_id)
        state_there, damage = state_and_damage(run)
        if state_there in FINAL_STATES:
            result.over.append(run)
        elif damage:
            result.damaged.append(f"{run.run_id}: {damage}")
        # The old job of a cancelled run may take a while to end. The run is submitted again all the
        # same.
        elif not cancel_mark(run.folder).exists() and (
            (job is not None and job.is_active) or file_lock.is_held(run.folder)
        ):
            result.adopted.append(run)
        else:
            open_.append(run)
    return open_


def _arrays(
    study: Study,
    runs: Iterable[PlannedRun],
    profile: Profile,
    jobs: dict[str, Job],
    result: Submitted,
) -> Iterator[tuple[Resources, str, list[PlannedRun]]]:
    """Yield the resources, the dependency and the runs of each array. The dependency is in Slurm's
    words, such as `afterok:123_4`, and empty if there is none.

    Branches (runs that fork from a shared prefix run) come last, because they wait for the job of
    that run. By then `jobs` has this job: the caller adds the jobs of each array before it asks for
    the next array. If a shared prefix run is not done and has no active job, its branches go into
    `result.blocked` instead.
    """
    for waiting in (False, True):
        groups: dict[tuple[Resources, str], list[PlannedRun]] = defaultdict(list)
        for run in runs:
            if bool(run.prefix) != waiting:
                continue
            dependency = ""
            if run.prefix and state(run.prefix) != "done":
                job = jobs.get(run.prefix.run_id)
                if job is None or not job.is_active:
                    result.blocked.append(run)
                    continue
                dependency = f"afterok:{job.id}"
            groups[profile.resources_of(study, run), dependency].append(run)
        for (resources, dependency), members in groups.items():
            for start in range(0, len(members), profile.array):
                yield resources, dependency, members[start : start + profile.array]
