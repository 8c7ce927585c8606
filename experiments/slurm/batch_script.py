"""The batch script of a job: its options, its set-up, and the start of `launch`.

submitit writes the script. Only a private method of its returns the text, and this is the only
module that calls it. submitit's public way to a job pickles a function and renames the pickle after
`sbatch` has answered; if the submitting process is killed in between, the job finds nothing to run.
Our job needs no pickle: it knows its run folder, and runs the copy of the code in the study's
folder (`code_copy`).
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tst_study.errors import UserError
from tst_study.experiments.slurm.profile import Profile, Resources
from tst_study.experiments.slurm.submission import RUNS, Submission

PERCENT = "\ue000"
"""Stands for a percent sign: a character without a meaning, which no folder of runs may hold."""
TASK = "tst_study.experiments.slurm.task"


def array_script(
    submission: Submission,
    code: Path,
    profile: Profile,
    resources: Resources,
    dependency: str = "",
) -> str:
    """The batch script of an array: one element for each run of a submission.

    `code`: the copy of the code that the jobs run. `dependency`: Slurm's words for the job that
    they wait for.
    """
    memory = f"{round(resources.memory_gb * 1024)}M" if resources.memory_gb else None
    parameters = {
        "job_name": submission.name,
        "comment": submission.comment,
        "dependency": f"{dependency},singleton".removeprefix(","),
        "array_parallelism": profile.parallel,
        "nodes": resources.nodes,
        "ntasks_per_node": resources.tasks_per_node,
        "cpus_per_task": resources.cpus_per_task,
        "mem": memory,
        "time": resources.time,
        "partition": resources.partition,
        # Users may set the account in this variable; the profile comes first.
        "account": profile.account or os.environ.get("SBATCH_ACCOUNT"),
        "signal_delay_s": profile.signal_seconds,
        "stderr_to_stdout": True,
        "wckey": None,  # submitit's own; a cluster that keeps such keys may refuse it
        "setup": _setup(submission, code, profile),
        "additional_parameters": {
            "requeue": True,
            **({"kill-on-invalid-dep": "yes"} if dependency else {}),
            # Paths of corpora are relative to the folder where the study was submitted.
            "chdir": os.getcwd(),
            **resources.gpus(),
            **profile.sbatch,
        },
        # One dead rank ends the others, and none outlives the first to end by a minute.
        "srun_args": ["--kill-on-bad-exit=1", "--wait=60", *profile.srun],
    }
    # -P: the working directory, most likely a checkout, must not shadow the copy of the code.
    command = f'{_python(profile)} -P -u -m {TASK} "$TST_RUN"'
    if resources.gpus_per_node:
        command += " --gpu"
    return script_text(submission.folder, command, parameters, len(submission.runs))


def _python(profile: Profile) -> str:
    """The words that start Python. In a container it starts in the folder where the study was
    submitted, because paths of corpora are relative to it and an image has a working directory of
    its own."""
    words = shlex.quote(profile.python or sys.executable)
    if not profile.container and not any(word.startswith("--container") for word in profile.srun):
        return words
    enter = f"""/bin/sh -c 'cd "$0" && exec "$@"' {shlex.quote(os.getcwd())}"""
    return f"{profile.container} {enter} {words}".strip()


def _setup(submission: Submission, code: Path, profile: Profile) -> list[str]:
    """Lines of shell before the ranks start. Each line of the profile must succeed."""
    listed = shlex.quote(str(submission.folder.absolute() / RUNS))
    line = f'sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {listed}'
    return [
        f'TST_RUN={shlex.quote(str(submission.study.absolute()))}/"$({line})"',
        f"TST_PYTHON={shlex.quote(sys.executable)} TST_CODE={shlex.quote(str(code))}",
        'source "$TST_CODE/tst_study/experiments/slurm/launch.sh" || exit 1',
        # The colon is for lines that are only a comment.
        *(f"{{ :\n{line}\n}} || tst_stop {shlex.quote(line)}" for line in profile.setup),
        "trap - EXIT",
        'export PYTHONPATH="$TST_CODE${PYTHONPATH:+:$PYTHONPATH}"',
        "export PYTHONSAFEPATH=1",
        "export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}",
        # Since Slurm 22.05 a step does not inherit this from its job.
        "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}",
        f"srun() {{ tst_launch {profile.retries} {profile.signal_seconds} "
        '"$(type -P srun)" "$@"; }',
    ]


def check_setup(lines: Sequence[str]) -> None:
    """Raise `UserError` for a line of a profile's `setup` that bash cannot read: it would end the
    batch script before anything could be said about it."""
    for line in lines:
        done = subprocess.run(
            ["bash", "-n"], input=f"{{ :\n{line}\n}}\n", capture_output=True, text=True
        )
        if done.returncode:
            complaint = done.stderr.partition("\n")[0].removeprefix("bash: ")
            raise UserError(
                f"setup = {line!r}: bash cannot read it ({complaint}); correct the line"
            )


def script_text(folder: Path, command: str, parameters: Mapping[str, Any], count: int) -> str:
    """The text of a batch script that runs `command` by `srun`.

    `folder`: where the output goes. `parameters`: those of `submitit.SlurmExecutor`. `count`: the
    number of elements of the array. Raises `UserError` if a value would add a line to the script.
    """
    from submitit import SlurmExecutor

    options = {"folder of runs": folder.absolute(), **parameters}
    options |= parameters.get("additional_parameters", {})
    for key, value in options.items():
        if not str(value).isprintable():
            raise UserError(
                f"{key} = {str(value)!r}: holds control characters, which would be more lines of "
                "the batch script; rename it"
            )

    class Executor(SlurmExecutor):  # type: ignore[misc]
        @classmethod
        def affinity(cls) -> int:
            """Say that Slurm is here; a script can be written where it is not."""
            return 1

    # In the name of an output file Slurm takes % for the beginning of a pattern, and %% for a
    # percent sign. submitit replaces patterns too, so it gets to see none of the folder's.
    executor = Executor(str(folder).replace("%", PERCENT))
    executor.update_parameters(**parameters)
    executor.parameters["map_count"] = count
    text: str = executor._make_submission_file_text(command, uid="")
    return text.replace(PERCENT, "%%")
