"""Decides which runs of a study need a job, and submits them to Slurm: none twice, none lost.

The run's status is trusted first, then its lock, then the queue. Runs that are over are skipped,
and runs that are queued or training are left alone. The others are submitted in arrays: one for
each kind of resources and each shared prefix run to wait for, no longer than the cluster allows. A
small job waits for all of them; it collects the study, or submits the runs that depend on their
results."""

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tst_study import file_lock
from tst_study.errors import UserError
from tst_study.experiments.launcher import Job, Options, submission_lock
from tst_study.experiments.plan.planned_run import PlannedRun, is_over, state, state_and_damage
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.run_process import cancel_mark, submitted_anew
from tst_study.experiments.slurm import submission
from tst_study.experiments.slurm.batch_script import array_script, command_script
from tst_study.experiments.slurm.code_copy import FOLDER, keep_code
from tst_study.experiments.slurm.commands import SlurmError, call, setting
from tst_study.experiments.slurm.profile import Profile, Resources
from tst_study.experiments.slurm.submission import COLLECT, REST, SMALL, known_jobs
from tst_study.experiments.studies.catalogue import STUDIES
from tst_study.experiments.study import Study
from tst_study.record.reader import FINAL_STATES

SECOND_LOOK = 2.0
"""Seconds after which the queue is asked again for a job that it did not have: one that is being
requeued may be missing for a moment."""
DEFAULT_MAX_ARRAY = 1001


@dataclass
class Submitted:
    """The findings and actions of one call of `submit`."""

    root: Path
    profile: Profile
    known: dict[str, Job]
    """Jobs, by run id."""
    lock: int
    """Descriptor of the study's lock."""
    dry: bool = False
    asks: bool = True
    """Slurm is asked; a dry run needs none."""
    over: list[PlannedRun] = field(default_factory=list)
    adopted: list[PlannedRun] = field(default_factory=list)
    """Runs that are queued or training already."""
    new: list[PlannedRun] = field(default_factory=list)
    not_queued: list[PlannedRun] = field(default_factory=list)
    """Runs that are not queued: Slurm refused them or an array before them, or no job trains their
    shared prefix run."""
    jobs: dict[str, str] = field(default_factory=dict)
    """Descriptions of the new arrays, by job id."""
    follow_ups: dict[str, str] = field(default_factory=dict)
    """Job ids of new small jobs, by kind."""
    refused: list[str] = field(default_factory=list)
    """Slurm's reasons for what it refused."""
    damaged: list[str] = field(default_factory=list)
    """Runs whose record cannot be read, and why."""
    first_script: str = ""
    undecided: int = 0
    """Number of runs that depend on results of these, as those after a sweep do."""

    def lines(self) -> list[str]:
        text = [
            f"{len(self.over)} finished, {len(self.adopted)} queued or running already",
            f"{len(self.new)} {'to be ' if self.dry else ''}submitted in "
            f"{len(self.jobs)} {'array' if len(self.jobs) == 1 else 'arrays'}",
            *(f"{job}: {what}" for job, what in self.jobs.items()),
        ]
        if self.not_queued:
            text.append(
                f"{len(self.not_queued)} not submitted: submit again when Slurm takes more, or "
                "their shared prefix run is done"
            )
        if self.undecided:
            rest = self.follow_ups.get(REST)
            after = f"job {rest} submits them then" if rest else "submit again then"
            text.append(f"{self.undecided} more depend on their results: {after}")
        if COLLECT in self.follow_ups:
            job = self.follow_ups[COLLECT]
            text.append(f"job {job} collects the study when all of them have ended")
        text += [f"refused: {reason}" for reason in self.refused]
        text += [f"not submitted: {reason}; move its folder away" for reason in self.damaged]
        if not self.asks:
            text.append("sbatch is not on this machine: no cluster was asked whether it takes them")
        return [*text, "", self.first_script] if self.dry else text

    def hand_over(self, runs: Sequence[PlannedRun]) -> None:
        """Submit runs. Those that wait for no shared prefix run come first: branches need their
        shared prefix run's job."""
        if not runs:
            return
        most = int((self.asks and setting("MaxArraySize")) or DEFAULT_MAX_ARRAY)
        longest = self.profile.max_array or most
        if longest > most:
            raise UserError(
                f"max_array = {longest}: the cluster takes arrays of at most {most} runs "
                "(MaxArraySize); say less, or leave max_array out"
            )
        code = self.root / FOLDER / "…" if self.dry else keep_code(self.root)
        for waits in (False, True):
            groups: dict[tuple[Resources, str], list[PlannedRun]] = defaultdict(list)
            for run in runs:
                if bool(run.prefix) != waits:
                    continue
                prefix = run.prefix if run.prefix and state(run.prefix) != "done" else None
                job = self.known.get(prefix.run_id) if prefix else None
                if self.refused or (prefix and not (job and job.is_active)):
                    self.not_queued.append(run)
                    continue
                dependency = f"afterok:{job.id}" if job else ""
                groups[self.profile.resources_of(*run.names), dependency].append(run)
            for (resources, dependency), members in groups.items():
                for start in range(0, len(members), longest):
                    chunk = members[start : start + longest]
                    self._submit(chunk, resources, dependency, code)

    def check_small_jobs(self) -> None:
        """Raise `UserError` where Slurm would refuse the job that collects the study: once its runs
        are queued, it is too late to correct the profile."""
        array = submission.new(self.root, f"-{COLLECT}", (COLLECT,), self.root / FOLDER / "…")
        script = command_script(array, self.root, self.profile, [COLLECT], inside=True)
        try:
            call("sbatch", "--test-only", standard_input=script)
        except SlurmError as error:
            raise SlurmError(
                f"the job that collects the study: {error}; correct slurm.toml, whose [small] is "
                "about such jobs, or say --no-collect"
            ) from None

    def follow_up(self, rest: Sequence[str], collecting: Sequence[str]) -> None:
        """Submit a small job that starts when all runs have ended, however they ended. It runs the
        command that submits the `rest` if there is one, else the command that collects."""
        kind, words = (REST, rest) if rest else (COLLECT, collecting)
        active = [job for run, job in self.known.items() if job.is_active and run not in SMALL]
        there = self.known.get(kind)
        # One that is queued already waits for older jobs only.
        if not self.jobs and (
            (there and there.is_active)
            or not (active or (kind == COLLECT and not self.adopted and not self._is_collected()))
        ):
            return
        waits = ":".join(sorted({job.id.partition("_")[0] for job in active}))
        dependency = f"afterany:{waits}" if waits else ""
        array = submission.new(self.root, f"-{kind}", (kind,), keep_code(self.root), dependency)
        script = command_script(array, self.root, self.profile, words, inside=kind == COLLECT)
        try:
            job = submission.submit(array, self.root, script, self.lock)
        except SlurmError as error:
            self.refused.append(f"{kind}: {error}; see [small] in slurm.toml")
            return
        self.follow_ups[kind] = job

    def _is_collected(self) -> bool:
        """Whether the study was collected after the last of the runs that are over had ended."""
        report = self.root / "report" / "collected.json"
        ends = [(run.folder / "status.json").stat().st_mtime for run in self.over]
        return not ends or (report.exists() and report.stat().st_mtime >= max(ends))

    def _submit(
        self, runs: list[PlannedRun], resources: Resources, dependency: str, code: Path
    ) -> None:
        """Submit one array; nothing, once Slurm has refused one."""
        if self.refused:
            self.not_queued += runs
            return
        array = submission.new(self.root, "", [run.run_id for run in runs], code, dependency)
        script = array_script(array, self.root, self.profile, resources)
        for run in () if self.dry else runs:
            submitted_anew(run.config, run.folder)
        self.first_script = self.first_script or script
        try:
            if self.dry:
                if self.asks:  # the job that it waits for does not exist
                    call("sbatch", "--test-only", "--dependency=singleton", standard_input=script)
                job = f"array{len(self.jobs) + 1}"
            else:
                job = submission.submit(array, self.root, script, self.lock)
        except SlurmError as error:
            if not self.jobs:
                raise
            self.refused.append(str(error))
            self.not_queued += runs
            return
        waits = f", after {dependency.partition(':')[2]}" if dependency else ""
        self.jobs[job] = f"runs: {len(runs)}; each: {resources}{waits}"
        self.new += runs
        for place, run in enumerate(runs):
            self.known[run.run_id] = Job(f"{job}_{place}", "queued")


def submit_to_slurm(
    study: Study,
    profile: Profile,
    options: Options,
    wanted: Callable[[PlannedRun], bool] = lambda run: True,
    rest: Sequence[str] = (),
) -> Submitted:
    """Submit every run that needs a job, and return at once.

    `rest`: the words of the command that submits the runs which depend on these; it has `only_new`
    set, so that it does not try failing runs for ever. Raises `UserError`, also if Slurm accepted
    nothing.
    """
    planning, root = Planner(study, unprepared=options.dry), study.folder
    asks = not options.dry or shutil.which("sbatch") is not None
    with nullcontext(-1) if options.dry else submission_lock(root) as lock:
        decided, open_ = planning.decided(), []
        runs = [run for run in decided if wanted(run)]
        jobs = known_jobs(root) if asks else {}
        had = [run for run in runs if run.run_id in jobs and not jobs[run.run_id].is_active]
        if not all(map(is_over, had)):  # they are about to get another job: make sure of it
            time.sleep(SECOND_LOOK)
            jobs = known_jobs(root)
        result = Submitted(root, profile, jobs, lock, options.dry, asks)
        result.undecided = max(0, len(planning.whole()) - len(decided))
        for run in runs:
            job = result.known.get(run.run_id)
            state_there, damage = state_and_damage(run)
            if state_there in FINAL_STATES:
                result.over.append(run)
            elif damage:
                result.damaged.append(f"{run.run_id}: {damage}")
            # A cancelled run may take a while to end; it is submitted again all the same.
            elif not cancel_mark(run.folder).exists() and (
                (job is not None and job.is_active) or file_lock.is_held(run.folder)
            ):
                result.adopted.append(run)
            elif not (options.only_new and job):
                open_.append(run)
        collects = options.collects and bool(open_)
        if collects and not options.dry:
            result.check_small_jobs()
        result.hand_over(open_)
        if collects and options.dry and asks:  # a dry run tells of the runs first
            result.check_small_jobs()
        if not (result.undecided and rest and (result.jobs or not options.only_new)):
            rest = ()
        if options.collects and not options.dry:
            place = str(root.absolute())
            # The study's name tells which runs never began; a folder of runs does not.
            named = [study.name, "--scale", study.scale, "--runs", place]
            result.follow_up(rest, [COLLECT, *(named if study.name in STUDIES else [place])])
    return result
