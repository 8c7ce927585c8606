"""The Slurm launcher: runs are jobs, which go on while nobody is logged in."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from tst_study.cost.prices import Prices
from tst_study.errors import UserError
from tst_study.experiments.launcher import Job, Options, check_can_be_trained
from tst_study.experiments.plan.layouts import Allocation
from tst_study.experiments.plan.planned_run import PlannedRun
from tst_study.experiments.run_process import cancel_mark
from tst_study.experiments.slurm import submission
from tst_study.experiments.slurm.batch_script import check_setup
from tst_study.experiments.slurm.commands import call
from tst_study.experiments.slurm.launch import remark
from tst_study.experiments.slurm.profile import PLACES, Profile, load_profile, template, usual_place
from tst_study.experiments.slurm.submission import SMALL
from tst_study.experiments.slurm.submit import submit_to_slurm
from tst_study.experiments.study import Study
from tst_study.waiting import waiting

JOBS_PER_CALL = 200
"""Most jobs that one call of `scancel` gets."""


class Slurm:
    """A `Launcher`. It reads the profile only when runs are planned or submitted."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @cached_property
    def profile(self) -> Profile:
        profile = load_profile(self._options.profile)
        parallel = self._options.parallel
        return profile.model_copy(update={"parallel": parallel}) if parallel else profile

    def submit(self, study: Study, wanted: Callable[[PlannedRun], bool] = lambda run: True) -> int:
        """Queue the runs and return at once: 1 if some of them could not be queued."""
        if not self._options.dry:
            call("sbatch", "--version")  # before text is prepared, which may take hours
        # A dry run on a machine without Slurm can do with the defaults.
        can_ask = not self._options.dry or shutil.which("sinfo") is not None
        if can_ask and self._options.profile is None and usual_place() is None:
            print(template())
            raise UserError(
                f"{PLACES[0]}: missing; write the lines above into it, with what your site asks "
                "for, or name another by --profile"
            )
        profile = self.profile
        check_setup(profile.setup)
        check_can_be_trained(study, wanted, self.allocation)
        if not self._options.dry:
            study.prepare()
        # The command that submits the runs which depend on results of these.
        at = replace(study, folder=study.folder.absolute())
        rest = self._options.again(at, "--launcher", "slurm", "--only-new") if study.scale else ()
        with waiting("copying the code and submitting runs"):
            done = submit_to_slurm(study, profile, self._options, wanted, rest)
        print(*done.lines(), sep="\n")
        return 1 if done.refused or done.damaged else 0

    def jobs(self, root: Path) -> dict[str, Job]:
        """The jobs by run id. Slurm is asked only if the study was ever submitted to it."""
        return {
            run: replace(job, remark="; ".join(filter(None, (job.remark, remark(root / run)))))
            for run, job in submission.known_jobs(root).items()
            if run not in SMALL
        }

    def cancel(self, root: Path, wanted: Callable[[str], bool]) -> set[str]:
        """Cancel jobs of this study, which carry its mark, and no others."""
        active = [(job.id, run) for _, run, job in submission.tasks(root) if job.is_active]
        ids = sorted(id for id, run in active if wanted(run))
        runs = {run for _, run in active if wanted(run) and run not in SMALL}
        for run in runs:
            cancel_mark(root / run).touch()
        for start in range(0, len(ids), JOBS_PER_CALL):
            call("scancel", *ids[start : start + JOBS_PER_CALL])
        return runs

    def logs(self, root: Path, run_id: str) -> list[Path]:
        """Output of the jobs' batch scripts, newest last: all there is of a job that ended before
        its run had a log of its own."""
        places = []
        for array in submission.all_of(root):
            job = array.job_id(root)
            if job and run_id in array.runs:
                place = array.runs.index(run_id)
                places.append(array.folder(root) / f"{job}_{place}_0_log.out")
        return places

    def allocation(self, run: PlannedRun) -> Allocation:
        resources = self.profile.resources_of(*run.names)
        on_gpu, device = self.profile.on_gpu(resources), self.profile.device
        return Allocation(resources.ranks, on_gpu, device, resources.tasks_per_node)

    def prices(self) -> Prices:
        how = self.profile
        return Prices(how.device, how.mfu, how.price_per_gpu_hour)
