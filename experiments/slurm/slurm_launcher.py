"""The launcher for Slurm clusters (`--launcher slurm`): each run is a job, which goes on while
nobody is logged in."""

import shutil
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from tst_study.errors import UserError
from tst_study.experiments.launcher import Job, Options, check_can_be_trained
from tst_study.experiments.launches import remark
from tst_study.experiments.plan.layouts import Allocation
from tst_study.experiments.plan.planned_run import PlannedRun
from tst_study.experiments.plan.planner import prepare
from tst_study.experiments.run_process import cancel_mark
from tst_study.experiments.slurm import follow_up, submission
from tst_study.experiments.slurm.batch_script import check_setup
from tst_study.experiments.slurm.commands import LimitError, SlurmError, advised, call, memory_words
from tst_study.experiments.slurm.profile import PLACES, Profile, load_profile, usual_place
from tst_study.experiments.slurm.submit import submit_to_slurm
from tst_study.experiments.study import Study
from tst_study.waiting import waiting

ROOM_SECONDS = 60.0
"""Seconds after which `--top-up` tries again to submit what Slurm had no room for."""
JOBS_PER_CALL = 200
"""The largest number of jobs that one call of `scancel` is given."""


class Slurm:
    """A `Launcher` (`experiments.launcher`). Only planning and submitting runs need the cluster's
    profile. The other commands do without it if it is missing or wrong."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @cached_property
    def profile(self) -> Profile:
        """The cluster's profile. `--parallel` takes precedence over its `parallel`."""
        profile = load_profile(self._options.profile)
        parallel = self._options.parallel
        return profile.model_copy(update={"parallel": parallel}) if parallel else profile

    @property
    def _seconds(self) -> float:
        """The time in which Slurm's programs must answer; 0 if no profile says it."""
        with suppress(UserError, OSError):
            return self.profile.answer_seconds if usual_place() else 0.0
        return 0.0

    def submit(self, study: Study, wanted: Callable[[PlannedRun], bool] = lambda run: True) -> int:
        """Prepare the text, queue the wanted runs, and return without waiting for them.

        Returns 1 if Slurm refused some of the runs or the record of a run cannot be read, else 0. A
        dry run prepares and queues nothing, and prints what would be queued. Raises `UserError`.
        """
        dry = self._options.dry
        if not dry:
            call("sbatch", "--version")  # before text is prepared, which may take hours
            if self._options.profile is None and usual_place() is None:
                raise UserError(
                    f"{PLACES[0]}: missing; docs/slurm.md shows one, or name another by --profile"
                )
        profile = self.profile
        check_setup(profile.setup)
        check_can_be_trained(study, wanted, self.allocation)
        if not dry:
            prepare(study)
        shares = None
        while True:
            with waiting("copying the code and submitting runs"):
                done = submit_to_slurm(study, profile, self._options, wanted, shares)
            if shares is None or done.new:
                print(*done.lines(), sep="\n", flush=True)
            if not (self._options.top_up and isinstance(done.refused, LimitError)):
                break
            shares = done.shares
            with waiting("waiting until Slurm has room"):
                time.sleep(ROOM_SECONDS)
        if dry and shutil.which("sbatch") is None:
            print("sbatch is not on this machine: no cluster was asked whether it takes these jobs")
        return 1 if done.refused or done.damaged else 0

    def jobs(self, root: Path) -> dict[str, Job]:
        """The study's jobs by run id. Slurm is asked only if the study was ever submitted to it.

        Raises `SlurmError` if Slurm does not answer.
        """
        found = submission.known_jobs(root, self._seconds)
        found.pop(follow_up.RUN, None)
        folders = {each.job_id: each.folder for each in submission.all_of(root)}
        for run, job in found.items():
            folder = folders.get(job.id.partition("_")[0], root)
            owner = f"job {job.id} of {job.owner}" if job.owner else ""
            words = filter(None, (owner, _explained(job, folder), remark(root / run)))
            found[run] = replace(job, remark="; ".join(words))
        return found

    def hint(self, root: Path, waiting: Collection[str]) -> str:
        """Say how to submit runs that wait for somebody to do so."""
        try:
            jobs = submission.known_jobs(root, self._seconds)
        except SlurmError:
            return ""
        own, command = jobs.get(follow_up.RUN), follow_up.command_of(root)
        left = [run for run in waiting if run not in jobs]
        if not left or not command or (own and own.is_active):
            return ""
        return f"{len(left)} can be submitted now: {command}"

    def cancel(self, root: Path, wanted: Callable[[str], bool]) -> set[str]:
        """Cancel the queued and running jobs of the wanted runs, and return the ids of these runs.

        The jobs are found by their comments (`submission`), so that no job of another study is
        cancelled. Each run is first marked as cancelled, so that nothing requeues it. Jobs of
        others are left alone. Raises `SlurmError` if Slurm does not answer.
        """
        jobs = [(run, job) for run, job in submission.tasks(root, self._seconds) if wanted(run)]
        own = [(run, job.id) for run, job in jobs if job.is_active and not job.owner]
        runs = {run for run, _ in own if run != follow_up.RUN}
        for run in runs:
            cancel_mark(root / run).touch()
        seconds = max([self._seconds, *(each.origin.seconds for each in submission.all_of(root))])
        for start in range(0, len(own), JOBS_PER_CALL):
            ids = (id for _, id in own[start : start + JOBS_PER_CALL])
            call("scancel", *ids, seconds=seconds)
        return runs

    def logs(self, root: Path, run_id: str) -> list[Path]:
        """Paths of the output of the run's batch scripts, newest last. If a job ended before its
        run had a log of its own, this output is all that it left."""
        return [
            array.folder / f"{array.job_id}_{array.runs.index(run_id)}_0_log.out"
            for array in submission.all_of(root)
            if array.job_id and run_id in array.runs
        ]

    def allocation(self, study: Study, run: PlannedRun) -> Allocation:
        """The resources that the study and the profile give to a run."""
        resources = self.profile.resources_of(study, run)
        on_gpu, device = resources.gpus_per_node > 0, self.profile.device
        return Allocation(resources.ranks, on_gpu, device, resources.tasks_per_node)


def _explained(job: Job, folder: Path) -> str:
    """Return what Slurm says of a job, and the key of `slurm.toml` behind it. That a batch script
    was killed for its memory may stand in its output alone, which lies in `folder`."""
    said = [job.remark]
    with suppress(OSError):
        if job.state in ("failed", "ended"):
            log = (folder / f"{job.id}_0_log.out").read_text(errors="replace")
            said.append(memory_words(log))
        said = [advised("; ".join(filter(None, said)), folder / "script.sh")]
    return "; ".join(filter(None, said))
