"""One array of runs: written down before `sbatch` is called, so that nobody's death loses it.

`<study>/slurm/<id>/` holds `intent.json`, `script.sh`, what `sbatch` answered in `job.json`, and
the output of tasks that died before their run had a log. The id is the job's comment: whoever
comes next finds the jobs of a submission whose `job.json` was never written.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from experiments.slurm.commands import SlurmError, call
from experiments.slurm.jobs import MARK, Job, Key, same_jobs
from experiments.slurm.profile import Profile, Resources
from tst_study.atomic_files import write_json
from tst_study.errors import UserError

FOLDER = "slurm"
COLLECT = "collect"
TASK = "experiments.slurm.task"


@dataclass(frozen=True)
class Submission:
    id: str
    name: str
    """Of the job: equal for equal lists of runs, so that `singleton` keeps two submitters apart."""
    runs: tuple[str, ...]
    """Run ids, in the order of the array; the one entry `collect` stands for that command."""
    code: str
    """Folder of the code that the jobs run."""
    created: float
    dependency: str = ""

    def folder(self, root: Path) -> Path:
        return root / FOLDER / self.id

    def job_id(self, root: Path) -> str | None:
        """What `sbatch` answered; None where nobody lived to write it down."""
        try:
            answer: dict[str, str] = json.loads((self.folder(root) / "job.json").read_bytes())
        except FileNotFoundError:
            return None
        return answer["job"]


def new(name: str, runs: Sequence[str], code: Path, dependency: str = "") -> Submission:
    now = time.time()
    id = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{secrets.token_hex(3)}"
    digest = sha256("\n".join(runs).encode()).hexdigest()[:8]
    return Submission(id, f"{name}-{digest}", tuple(runs), str(code), now, dependency)


def submit(one: Submission, root: Path, profile: Profile, resources: Resources, lock: int) -> str:
    """Write the intent, call `sbatch`, write its answer; returns the job id.

    `lock`: descriptor of the study's lock, which `sbatch` keeps open too, so that a submitter who
    is killed in between does not let the next one in before the answer is there to be found.
    """
    folder = one.folder(root)
    folder.mkdir(parents=True)
    script = folder / "script.sh"
    script.write_text(script_text(one, root, profile, resources), encoding="utf8")
    write_json(folder / "intent.json", asdict(one))
    try:
        out = call("sbatch", str(script), pass_fds=(lock,))
    except SlurmError as error:
        # It may have been accepted all the same: only the answer was lost.
        from experiments.slurm.jobs import in_the_queue

        there = same_jobs(in_the_queue(), one.id)
        if not there:
            write_json(folder / "job.json", {"job": "", "refused": str(error)})
            raise
        out = f"job {next(iter(there.values())).id.partition('_')[0]}"
    from submitit import SlurmExecutor

    job: str = SlurmExecutor._get_job_id_from_submission_command(out)
    write_json(folder / "job.json", {"job": job})
    return job


def script_text(one: Submission, root: Path, profile: Profile, resources: Resources) -> str:
    """The batch script, by submitit; run `sbatch` on it again and it does the same again."""
    if one.runs == (COLLECT,):
        command = ["-m", "tst_study", COLLECT, str(root.absolute())]
        return _script(one, root, profile, resources, command, whole_array=True)
    command = ["-m", TASK, str(root.absolute()), one.id]
    return _script(one, root, profile, resources, command, whole_array=True)


def script_of_one_run(
    one: Submission, run: str, root: Path, profile: Profile, resources: Resources
) -> str:
    """The same for a single run: `sbatch <run folder>/job/run.sh` takes it up where it stands."""
    command = ["-m", TASK, str(root.absolute()), "--run", run]
    return _script(one, root, profile, resources, command, whole_array=False)


def _script(
    one: Submission,
    root: Path,
    profile: Profile,
    resources: Resources,
    command: list[str],
    *,
    whole_array: bool,
) -> str:
    from submitit import SlurmExecutor

    try:
        executor = SlurmExecutor(one.folder(root))
    except RuntimeError as error:
        raise UserError(f"{error} Submit on a login node, or with --launcher local") from None
    executor.update_parameters(**_parameters(one, profile, resources, whole_array=whole_array))
    if whole_array:
        executor.parameters["map_count"] = len(one.runs)
        executor.parameters["array_parallelism"] = profile.parallel
    python = shlex.quote(profile.python or sys.executable)
    # -P: the working directory, most likely a checkout, must not shadow the copy of the code.
    words = f"{python} -P -u {shlex.join(command)}"
    command_line = f"{profile.container} {words}".strip()
    text: str = executor._make_submission_file_text(command_line, uid="")
    return text


def _parameters(
    one: Submission, profile: Profile, resources: Resources, *, whole_array: bool
) -> dict[str, Any]:
    # Corpora and trunks are named from where the study was submitted.
    more: dict[str, Any] = {"requeue": True, "chdir": os.getcwd(), **profile.sbatch}
    conditions = ["singleton"] if whole_array else []
    if one.dependency and whole_array:
        conditions.insert(0, one.dependency)
        more["kill-on-invalid-dep"] = "yes"
    wanted = {
        "job_name": one.name,
        "comment": f"{MARK}{one.id}" if whole_array else None,
        "dependency": ",".join(conditions) or None,
        "nodes": resources.nodes,
        "ntasks_per_node": resources.tasks_per_node,
        "gpus_per_node": resources.gpus_per_node or None,
        "cpus_per_task": resources.cpus_per_task,
        "mem": f"{round(resources.memory_gb * 1024)}M" if resources.memory_gb else None,
        "time": resources.time,
        "partition": resources.partition,
        "account": profile.account,
        "qos": profile.qos,
        "constraint": profile.constraint,
        "exclude": profile.exclude,
        "signal_delay_s": profile.signal_seconds,
        "stderr_to_stdout": True,
        "additional_parameters": more,
        "setup": _setup(one, profile),
        # One dead rank takes the others down; none outlives the first to end by a minute.
        "srun_args": ["--kill-on-bad-exit=1", "--wait=60"],
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _setup(one: Submission, profile: Profile) -> list[str]:
    lines = [f"module load {shlex.quote(name)}" for name in profile.modules]
    return [
        *lines,
        *profile.setup,
        f"export PYTHONPATH={shlex.quote(one.code)}${{PYTHONPATH:+:$PYTHONPATH}}",
        "export PYTHONSAFEPATH=1",
        "export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}",
        # Since Slurm 22.05 a step no longer takes it over from its job.
        "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}",
    ]


def all_of(root: Path) -> list[Submission]:
    """Every submission of a study, oldest first. Raises `UserError` where one is damaged."""
    found = []
    for path in (root / FOLDER).glob("*/intent.json"):
        try:
            values = json.loads(path.read_bytes())
            one = Submission(**{**values, "runs": tuple(values["runs"])})
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}: damaged ({error}); move {path.parent} away") from None
        if one.id != path.parent.name:  # an id becomes a path, so that it must be one of ours
            raise UserError(f"{path}: id {one.id!r} is not its folder's name; move it away")
        found.append(one)
    return sorted(found, key=lambda one: one.created)


def adopt(submissions: Sequence[Submission], root: Path, known: dict[Key, Job]) -> None:
    """Write down the job ids of submissions whose submitter died behind `sbatch`."""
    for one in submissions:
        if one.job_id(root) is None:
            there = same_jobs(known, one.id)
            if there:
                job = next(iter(there.values())).id.partition("_")[0]
                write_json(one.folder(root) / "job.json", {"job": job})


def latest_jobs(
    submissions: Sequence[Submission], root: Path, known: dict[Key, Job]
) -> dict[str, Job]:
    """The job of each run that has one: an active one, else that of its last submission."""
    jobs: dict[str, Job] = {}
    for one in submissions:
        id = one.job_id(root)
        for place, run in enumerate(one.runs):
            job = known.get((one.id, place))
            if job is None and id:
                job = Job(f"{id}_{place}", "")
            if job is not None and (run not in jobs or job.is_active or not jobs[run].is_active):
                jobs[run] = job
    return jobs
