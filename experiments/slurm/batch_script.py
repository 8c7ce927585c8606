"""The batch script of a job: the options for sbatch, the set-up, and the start of `launch`.

The package submitit makes the text of the script, by a private method that only this module calls.
The public method also submits the job, but with a pickled function, and it renames the pickle after
`sbatch` has answered: if the submitting process is killed in between, the job finds nothing to run.
Our job needs no pickle. It knows its run folder, and runs the copy of the code in the study's
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
"""A character that stands in for a percent sign. It has no meaning in Unicode, and `script_text`
refuses a folder of runs whose path contains it."""
TASK = "tst_study.experiments.rank"
"""The module that each rank runs."""


def array_script(
    submission: Submission, code: Path, profile: Profile, resources: Resources, dependency: str = ""
) -> str:
    """Return the batch script of an array, which has one element for each run of a submission.

    `code`: the copy of the code that the jobs run. `dependency`: Slurm's words for the job that
    they wait for, such as `afterok:123`; empty if there is none. Raises `UserError` as
    `script_text` does.
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
        # If the profile names no account, the user may have set one in this variable.
        "account": profile.account or os.environ.get("SBATCH_ACCOUNT"),
        "signal_delay_s": profile.signal_seconds,
        "stderr_to_stdout": True,
        "wckey": None,  # else submitit sets one, which a cluster that checks them may refuse
        "setup": _setup(submission, code, profile),
        "additional_parameters": {
            "requeue": True,
            **({"kill-on-invalid-dep": "yes"} if dependency else {}),
            # Configs name corpora by paths relative to the folder where the study was submitted.
            "chdir": os.getcwd(),
            **resources.gpus(),
            # submitit writes an option that is false as `--name=False`.
            **{name: value for name, value in profile.sbatch.items() if value is not False},
        },
        # If a rank dies, the others are ended, too. A minute after the first rank has ended by
        # itself, the ranks that still run are ended. With `sbatch --export=NONE`, which some sites
        # advise, srun would drop what the set-up exported, the path of the code among it, unless it
        # is told otherwise.
        "srun_args": ["--kill-on-bad-exit=1", "--wait=60", "--export=ALL", *profile.srun],
    }
    # -P keeps the working directory, most likely a checkout, off the import path, where it would
    # shadow the copy of the code.
    command = f'{_python(profile)} -P -u -m {TASK} "$TST_RUN" "$TST_CODE"'
    if resources.gpus_per_node:
        command += " --gpu"
    return script_text(submission.folder, command, parameters, len(submission.runs))


def _python(profile: Profile) -> str:
    """Return the words of the shell command that starts Python.

    A container may set a working directory of its own. So with a container, a shell first changes
    to the folder where the study was submitted, to which the paths of corpora are relative.
    """
    words = shlex.quote(profile.python or sys.executable)
    if not profile.container and not any(word.startswith("--container") for word in profile.srun):
        return words
    enter = f"""/bin/sh -c 'cd "$0" && exec "$@"' {shlex.quote(os.getcwd())}"""
    return f"{profile.container} {enter} {words}".strip()


def _setup(submission: Submission, code: Path, profile: Profile) -> list[str]:
    """Return the lines of shell that run before the ranks start. If a line of the profile's `setup`
    fails, the run is marked as failed and the job ends."""
    listed = shlex.quote(str(submission.folder.absolute() / RUNS))
    line = f'sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {listed}'
    return [
        f'TST_RUN={shlex.quote(str(submission.study.absolute()))}/"$({line})"',
        f"TST_PYTHON={shlex.quote(sys.executable)} TST_CODE={shlex.quote(str(code))}",
        'source "$TST_CODE/tst_study/experiments/slurm/launch.sh" || exit 1',
        # The colon, a command that does nothing, is for lines that are only a comment: bash refuses
        # empty braces.
        *(f"{{ :\n{line}\n}} || tst_stop {shlex.quote(line)}" for line in profile.setup),
        f"cd {shlex.quote(os.getcwd())}",  # a line of the set-up may have changed it
        "trap - EXIT",
        'export PYTHONPATH="$TST_CODE${PYTHONPATH:+:$PYTHONPATH}"',
        "export PYTHONSAFEPATH=1",
        "export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}",
        # Since Slurm 22.05, srun does not take over the number of CPUs per task from its job.
        "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}",
        f"srun() {{ tst_launch {profile.retries} {profile.signal_seconds} "
        '"$(type -P srun)" "$@"; }',
    ]


def check_setup(lines: Sequence[str]) -> None:
    """Raise `UserError` for a line of a profile's `setup` that is not valid bash. In a batch script
    such a line would end the job before it could report anything."""
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
    """Return the text of a batch script that runs `command` by `srun`.

    `folder`: where the output goes. `parameters`: those of `submitit.SlurmExecutor`. `count`: the
    number of elements of the array. Raises `UserError` if the folder, or a parameter that is a
    string, holds control characters: a line break would add a line to the script.
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
            """Pretend that Slurm is installed. submitit requires it, but scripts are also written
            on machines without it."""
            return 1

    # In the name of an output file, Slurm takes % as the beginning of a pattern, and %% as a
    # percent sign. submitit replaces patterns too, so it must not see the folder's percent signs.
    executor = Executor(str(folder.absolute()).replace("%", PERCENT))
    executor.update_parameters(**parameters)
    executor.parameters["map_count"] = count
    text: str = executor._make_submission_file_text(command, uid="")
    return text.replace(PERCENT, "%%")
