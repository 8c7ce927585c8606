"""The batch script of an array: the options for sbatch, the set-up, and the start of `launch`.

A job knows its run folder, and runs the copy of the code in the study's folder (`code_copy`).
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tst_study.errors import UserError
from tst_study.experiments.slurm.profile import Profile, Resources
from tst_study.experiments.slurm.submission import RUNS, Submission

RANK = "tst_study.experiments.rank"
"""The module that each rank runs."""
EVERY_JOB = ("comment", "export", "get-user-env", "mail-type", "mail-user", "qos", "wckey")
"""Options of sbatch in a profile that also go to the job that submits runs."""


def array_script(
    submission: Submission,
    code: Path,
    profile: Profile,
    resources: Resources,
    dependency: str = "",
    parallel: int | None = None,
) -> str:
    """Return the batch script of an array, which has one element for each run of a submission.

    `code`: the copy of the code that the jobs run. `dependency`: Slurm's words for the jobs that
    all elements wait for, such as `afterok:123`; empty if there are none. `parallel`: how many
    elements may run at a time; by default as the profile says. Raises `UserError` as `script_text`
    does.
    """
    ranks = [
        *("--unbuffered", f"--output={output(submission.folder)}"),
        # If a rank dies, the others are ended, too. A minute after the first rank has ended by
        # itself, the ranks that still run are ended.
        *("--kill-on-bad-exit=1", "--wait=60"),
        # With `sbatch --export=NONE`, which some sites advise, srun would drop what the set-up
        # exported, the path of the code among it, unless it is told otherwise.
        "--export=ALL",
        *profile.srun,
    ]
    # -P keeps the working directory, most likely a checkout, off the import path, where it would
    # shadow the copy of the code.
    launch = f'tst_launch {profile.retries} {profile.signal_seconds} "$(type -P srun)"'
    command = (
        f'{launch} {shlex.join(ranks)} {_python(profile)} -P -u -m {RANK} "$TST_RUN" "$TST_CODE"'
    )
    lines = [*_setup(submission, code, profile), command + " --gpu" * bool(resources.gpus_per_node)]
    parallel = parallel or profile.parallel
    return _script(submission, profile, resources, lines, dependency, profile.sbatch, parallel)


def follow_up_script(
    submission: Submission, code: Path, profile: Profile, dependency: str, words: Sequence[str]
) -> str:
    """Return the batch script of the job that runs `tst-study` with these words."""
    sbatch = {name: how for name, how in profile.sbatch.items() if name in EVERY_JOB}
    run = shlex.join([sys.executable, "-P", "-m", "tst_study", *words])
    lines = [f"PYTHONPATH={shlex.quote(str(code))} exec {run}"]
    return _script(submission, profile, profile.follow_up_resources, lines, dependency, sbatch)


def _script(
    submission: Submission,
    profile: Profile,
    resources: Resources,
    lines: Sequence[str],
    dependency: str,
    sbatch: Mapping[str, str | int | bool],
    parallel: int = 1,
) -> str:
    memory = f"{round(resources.memory_gb * 1024)}M" if resources.memory_gb else None
    gres = ",".join(filter(None, (resources.gpus(), str(sbatch.get("gres", "")))))
    options = {
        "nodes": resources.nodes,
        "ntasks-per-node": resources.tasks_per_node,
        "cpus-per-task": resources.cpus_per_task,
        "mem": memory,
        "time": resources.time,
        "partition": resources.partition,
        # If the profile names no account, the user may have set one in this variable.
        "account": profile.account or os.environ.get("SBATCH_ACCOUNT"),
        **sbatch,
        "job-name": submission.name,
        "comment": f"{submission.comment} {sbatch.get('comment', '')}".strip(),
        "dependency": f"{dependency},singleton".removeprefix(","),
        "kill-on-invalid-dep": "yes",
        # `submission.release` lets the jobs go when each knows the job that it waits for.
        "hold": bool(submission.waits),
        "array": f"0-{max(0, len(submission.runs) - 1)}%{parallel}",
        "gres": gres or None,
        "signal": f"USR2@{profile.signal_seconds}",
        "requeue": True,
    }
    return script_text(submission.folder, options, lines)


def script_text(folder: Path, options: Mapping[str, object], lines: Sequence[str]) -> str:
    """Return the text of a batch script: options of sbatch, and lines of shell.

    An option whose value is None or False is left out. The job runs where this process does, and
    its output goes into `folder`. Raises `UserError` if a value holds control characters: a line
    break would add a line to the script.
    """
    places = {"output": output(folder), "open-mode": "append", "chdir": os.getcwd()}
    text = ["#!/bin/bash"]
    for name, value in sorted({**places, **options}.items()):
        if not str(value).isprintable():
            key = "folder of runs" if name == "output" else name
            raise UserError(
                f"{key} = {str(value)!r}: holds control characters, which would be more lines of "
                "the batch script; rename it"
            )
        if value is True:
            text.append(f"#SBATCH --{name}")
        elif value is not None and value is not False:
            text.append(f"#SBATCH --{name}={shlex.quote(str(value))}")
    return "\n".join([*text, "", *lines, ""])


def output(folder: Path) -> str:
    """The output of an array's elements, as a pattern of Slurm's. In it, %% is a percent sign."""
    return f"{str(folder.absolute()).replace('%', '%%')}/%A_%a_0_log.out"


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
        f"export TST_ANSWER_SECONDS={profile.answer_seconds}",
        'source "$TST_CODE/tst_study/experiments/slurm/launch.sh" || exit 1',
        # The colon, a command that does nothing, is for lines that are only a comment: bash refuses
        # empty braces.
        *(f"{{ :\n{line}\n}} || tst_stop {shlex.quote(line)}" for line in profile.setup),
        f"cd {shlex.quote(os.getcwd())}",  # a line of the set-up may have changed it
        "trap - EXIT",
        'export PYTHONPATH="$TST_CODE${PYTHONPATH:+:$PYTHONPATH}"',
        "export PYTHONSAFEPATH=1",
        "export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}",
        "export SUBMITIT_EXECUTOR=slurm",  # by which submitit knows where a rank learns its number
        # Since Slurm 22.05, srun does not take over the number of CPUs per task from its job.
        "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}",
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
            raise UserError(f"setup = {line!r}: bash cannot read it ({complaint}); correct it")
