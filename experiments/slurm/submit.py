"""Submits the runs of a study that need a job (`launcher.Needs`) to Slurm, so that no run is
submitted twice or forgotten.

They are submitted in job arrays of up to `Profile.array` runs. The runs of one array ask for the
same resources. A run that forks from a shared prefix run (`plan.planner`) waits for it: within
their array if the prefix run is in the same one (`Submission.waits`), else the whole array waits.
If the prefix run is not done and has no job, the run is not submitted.

If more runs depend on results, a last small job submits them when the others have ended
(`follow_up`).
"""

import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from tst_study.experiments.code_copy import FOLDER, keep_code
from tst_study.experiments.launcher import Job, Needs, Options, submission_lock
from tst_study.experiments.plan.planned_run import PlannedRun, is_over, state
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.run_process import submitted_anew
from tst_study.experiments.slurm import commands, follow_up, submission
from tst_study.experiments.slurm.batch_script import array_script
from tst_study.experiments.slurm.commands import ARRAY, WAITS, LimitError, SlurmError, advised, call
from tst_study.experiments.slurm.profile import Profile, Resources
from tst_study.experiments.slurm.submission import SECOND_LOOK, known_jobs
from tst_study.experiments.study import Study


@dataclass
class Shares:
    """Shares `Profile.parallel` among the arrays of a submission, so that it bounds all of them
    together."""

    left: int
    """How many more runs may train at a time."""
    parallel: int
    runs: int
    """How many runs are to be submitted in all."""
    given: deque[tuple[str, int]] = field(default_factory=deque)
    """Job and share of each array, oldest first, without those whose share was passed on."""

    def of(self, count: int) -> tuple[str, int]:
        """Return the share of an array of `count` runs, and Slurm's words for what it waits for: if
        nothing is left, it takes over the share of an earlier array when that one has ended."""
        if self.left:
            return "", min(self.left, max(1, self.parallel * count // self.runs))
        job, share = self.given[0]
        return f"afterany:{job}", share

    def give(self, job: str, share: int) -> None:
        """Note the share of an array that was submitted."""
        if self.left:
            self.left -= share
        else:
            self.given.popleft()
        self.given.append((job, share))


@dataclass
class Submitted(Needs):
    """The findings and actions of one call of `submit_to_slurm`."""

    dry: bool = False
    new: list[PlannedRun] = field(default_factory=list)
    """Runs that were submitted; in a dry run, those that would be."""
    blocked: list[PlannedRun] = field(default_factory=list)
    """Runs that were not submitted because their shared prefix run is not done and has no job."""
    arrays: list[str] = field(default_factory=list)
    """A line that describes each new array."""
    refused: SlurmError | None = None
    """Why Slurm refused an array. No array is submitted after that one."""
    largest: int = 0
    """The size to which arrays had to be cut, because Slurm takes no larger ones; 0 if it took
    them."""
    first_script: str = ""
    """The batch script of the first new array."""
    undecided: int = 0
    """The expected number of the study's further runs. They cannot be submitted yet, because they
    depend on results that are missing: those of a learning-rate sweep, for example."""
    follow_up: str = ""
    """What submits these further runs, or how to."""
    shares: Shares | None = None
    others: list[str] = field(default_factory=list)
    """Whose jobs train the adopted runs that are not this user's."""

    def lines(self) -> list[str]:
        """Return the lines to print: counts, the new arrays and what was not submitted; in a dry
        run also the first script."""
        count = len(self.arrays)
        text = [
            f"{len(self.over)} finished, {len(self.adopted)} queued or running already",
            f"{len(self.new)} {'to be ' if self.dry else ''}submitted in {count} "
            f"{'array' if count == 1 else 'arrays'}",
            *self.arrays,
        ]
        if self.others:
            text.append(f"left to whoever submitted them: {', '.join(self.others)}")
        if self.stopped:
            text.append(
                f"{len(self.stopped)} not submitted: failed or stopped earlier; `tst-study retry` "
                "does so"
            )
        if self.blocked:
            text.append(
                f"{len(self.blocked)} not submitted: no job trains their shared prefix run; submit "
                "again when it is done"
            )
        if self.largest:
            text.append(f"Slurm refused larger arrays; say array = {self.largest} in slurm.toml")
        if self.refused:
            missing = len(self.open) - len(self.new) - len(self.blocked)
            room = isinstance(self.refused, LimitError)
            how = "submit --top-up does so as Slurm has room" if room else "submit again to do so"
            text += [f"refused: {self.refused}", f"{missing} not submitted; {how}"]
        if self.undecided:
            text.append(f"{self.undecided} more depend on these results: {self.follow_up}")
        text += [f"not submitted: {reason}" for reason in self.damaged]
        return [*text, "", self.first_script] if self.dry else text


def submit_to_slurm(
    study: Study,
    profile: Profile,
    options: Options,
    wanted: Callable[[PlannedRun], bool] = lambda run: True,
    shares: Shares | None = None,
) -> Submitted:
    """Submit every wanted run that needs a job, and return without waiting for the runs.

    A dry run submits nothing; if this machine has `sbatch`, a dry run asks whether Slurm would take
    the arrays. `shares`: those of an earlier call, of which this one is a part. Raises `UserError`,
    for example if Slurm refuses the first array for good.
    """
    planning, root, dry = Planner(study, unprepared=options.dry), study.folder, options.dry
    asks = not dry or shutil.which("sbatch") is not None
    with nullcontext(-1) if dry else submission_lock(root) as lock:
        decided = planning.decided()
        runs = [run for run in decided if wanted(run)]
        jobs = known_jobs(root, profile.answer_seconds) if asks else {}
        had = [run for run in runs if run.run_id in jobs and not jobs[run.run_id].is_active]
        if not all(map(is_over, had)):  # look again before these runs get another job
            time.sleep(SECOND_LOOK)
            jobs = known_jobs(root, profile.answer_seconds)
        result = Submitted(dry=dry, undecided=max(0, len(planning.whole()) - len(decided)))
        result.sort(runs, jobs, only_new=options.top_up)
        theirs = [jobs[run.run_id] for run in result.adopted if run.run_id in jobs]
        result.others = sorted({f"jobs of {job.owner}" for job in theirs if job.owner})
        own = (job for job in jobs.values() if job.is_active and not job.owner)
        held = {job.id.partition("_")[0] for job in own}
        for earlier in [] if dry else submission.all_of(root):
            if earlier.job_id in held:  # the command that submitted it may have been killed
                submission.release(earlier, again=True)
        code = root / FOLDER / "…"
        if not dry and (result.open or result.undecided):
            code = keep_code(root, study.files)
        needs = {run.fingerprint: profile.resources_of(study, run) for run in result.open}
        rest, size = list(result.open), profile.array
        shares = shares or Shares(profile.parallel, profile.parallel, len(rest))
        result.shares = shares
        while found := _next_array(rest, needs, jobs, size):
            resources, dependency, members = found
            array = submission.new(root, [run.run_id for run in members], _waits(members))
            after, share = shares.of(len(members))
            before = ",".join(filter(None, (dependency, after)))
            script = array_script(array, code, profile, resources, before, share)
            result.first_script = result.first_script or script
            job = f"array{len(result.arrays) + 1}"
            try:
                if not dry:
                    for run in members:
                        submitted_anew(run.config, run.folder)
                    job = submission.submit(array, script, lock, profile.answer_seconds)
                elif asks:
                    # This replaces the script's dependency, whose job a dry run has not submitted.
                    call(
                        *("sbatch", "--test-only", "--dependency=singleton"),
                        standard_input=script,
                        seconds=profile.answer_seconds,
                    )
            except SlurmError as error:
                error.args = (advised(str(error), script),)
                is_limit = isinstance(error, LimitError)
                if array.job_id is None and not isinstance(error, commands.NoAnswerError):
                    shutil.rmtree(array.folder, ignore_errors=True)
                if not is_limit and not result.arrays:
                    raise
                if is_limit and len(members) > 1 and WAITS not in str(error):
                    size = len(members) // 2  # there may be room for fewer
                    result.largest = size if ARRAY in str(error) else result.largest
                    continue
                result.refused = error
                break
            waits = f", after {before.replace('after', '').split(':', 1)[-1]}" if before else ""
            result.arrays.append(
                f"{job}: runs: {len(members)}, at a time: {share}; each: {resources}{waits}"
            )
            result.new += members
            shares.give(job, share)
            taken = {run.fingerprint for run in members}
            rest = [run for run in rest if run.fingerprint not in taken]
            for place, run in enumerate(members):
                jobs[run.run_id] = Job(f"{job}_{place}", "queued")
        result.blocked = [] if result.refused else rest
        if result.undecided:
            result.follow_up = follow_up.arranged(
                study, profile, options, code, jobs, lock, is_new=bool(result.new)
            )
    return result


def _next_array(
    rest: Sequence[PlannedRun], needs: Mapping[str, Resources], jobs: Mapping[str, Job], size: int
) -> tuple[Resources, str, list[PlannedRun]] | None:
    """Return the resources, the dependency and the runs of the next array, which has at most `size`
    runs; None if no run can be submitted.

    The dependency is in Slurm's words, such as `afterok:123_4`, and empty if there is none. `rest`:
    the runs that have no job yet, each after its shared prefix run. `needs`: their resources, by
    fingerprint.
    """
    here = {run.fingerprint for run in rest}
    chosen: tuple[Resources, str] | None = None
    members: list[PlannedRun] = []
    for run in rest:
        dependency, prefix = "", run.prefix
        if prefix and prefix.fingerprint in here:
            if needs[prefix.fingerprint] != needs[run.fingerprint]:
                continue  # until the prefix run has a job
        elif prefix and state(prefix) != "done":
            job = jobs.get(prefix.run_id)
            if job is None or not job.is_active:
                continue
            dependency = f"afterok:{job.id}"
        key = (needs[run.fingerprint], dependency)
        chosen = chosen or key
        if key == chosen and len(members) < size:
            members.append(run)
    return (*chosen, members) if chosen else None


def _waits(members: Sequence[PlannedRun]) -> dict[int, list[int]]:
    """Return which runs of an array wait for which (`Submission.waits`)."""
    places = {run.fingerprint: place for place, run in enumerate(members)}
    waits: dict[int, list[int]] = {}
    for place, run in enumerate(members):
        if run.prefix and run.prefix.fingerprint in places:
            waits.setdefault(places[run.prefix.fingerprint], []).append(place)
    return waits
