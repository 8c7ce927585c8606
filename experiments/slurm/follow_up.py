"""The small job that submits the runs of a study which depend on results, such as those of a
learning-rate sweep, when the jobs that give these results have ended.

It is a submission without runs, and runs `tst-study submit … --top-up` with the study's copy of the
code. Where jobs may not submit jobs it fails, and `status` prints the command.
"""

import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter

from tst_study.atomic_files import read_json, write_json
from tst_study.errors import UserError
from tst_study.experiments.launcher import Job, Options
from tst_study.experiments.slurm import submission
from tst_study.experiments.slurm.batch_script import script_text
from tst_study.experiments.slurm.commands import SlurmError, call
from tst_study.experiments.slurm.profile import Profile
from tst_study.experiments.study import Study

RUN = ""
"""The run id under which the job is listed (`submission.tasks`)."""
_WORDS = TypeAdapter(list[str])
SHARED = ("comment", "export", "get-user-env", "mail-type", "mail-user", "qos", "wckey")
"""Options of sbatch that this job shares with those of the runs."""


def arranged(
    study: Study,
    profile: Profile,
    options: Options,
    code: Path,
    jobs: Mapping[str, Job],
    lock: int,
    *,
    is_new: bool,
) -> str:
    """Submit the job if it is needed, and return words that say what submits the further runs.

    `jobs`: those of the study, by run id. `is_new`: whether some of them are new. Then a job that
    is queued already is replaced, because it would not wait for them. Arguments as those of
    `submission.submit`.
    """
    if options.dry:
        return "a last small job will submit them"
    path = study.folder / submission.FOLDER / "command.json"
    if options.command:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, list(options.command))
    own, command = jobs.get(RUN), command_of(study.folder)
    active = sorted({job.id.partition("_")[0] for r, job in jobs.items() if r and job.is_active})
    if not command or not active:
        return f"when they are there: {command}" if command else "submit again when they are there"
    words = f"submits them; or do so by: {command}"
    if own and own.is_active and not is_new:
        return f"job {own.id} {words}"
    one = submission.new(study.folder, ())
    resources = profile.follow_up_resources
    settings = {
        "job-name": one.name,
        "comment": one.comment,
        "array": "0",
        "dependency": f"afterany:{':'.join(active)},singleton",
        "ntasks": 1,
        "cpus-per-task": resources.cpus_per_task,
        "mem": f"{round(resources.memory_gb * 1024)}M" if resources.memory_gb else None,
        "time": resources.time,
        "partition": resources.partition,
        "account": profile.account or os.environ.get("SBATCH_ACCOUNT"),
        **{name: how for name, how in profile.sbatch.items() if name in SHARED},
    }
    if "comment" in profile.sbatch:
        settings["comment"] = f"{one.comment} {profile.sbatch['comment']}"
    python = f"{shlex.quote(sys.executable)} -P -m tst_study {shlex.join(_words(study.folder))}"
    lines = [f"PYTHONPATH={shlex.quote(str(code))} PYTHONSAFEPATH=1 exec {python}"]
    try:
        script = script_text(one.folder, settings, lines)
        job = submission.submit(one, script, lock, profile.answer_seconds)
        if own and own.state == "queued":
            call("scancel", own.id)
    except SlurmError as error:
        return f"when they are there: {command} (a job that would do so was refused: {error})"
    return f"job {job} {words}"


def _words(root: Path) -> list[str]:
    with suppress(UserError):
        words = read_json(root / submission.FOLDER / "command.json", _WORDS) or []
        return [*(word for word in words if word != "--top-up"), *["--top-up"] * bool(words)]
    return []


def command_of(root: Path) -> str:
    """The command that submits the study's further runs; empty if it is not known."""
    return shlex.join(["tst-study", *words]) if (words := _words(root)) else ""
