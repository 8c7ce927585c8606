"""The small job that submits the runs of a study which depend on results, such as those of a
learning-rate sweep, when the jobs that give these results have ended.

It is a submission without runs, and runs `tst-study submit … --top-up` with the study's copy of the
code. Where jobs may not submit jobs it fails, and `status` prints the command.
"""

import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter

from tst_study.atomic_files import read_json, write_json
from tst_study.errors import UserError
from tst_study.experiments.launcher import Job, Options
from tst_study.experiments.slurm import submission
from tst_study.experiments.slurm.batch_script import follow_up_script
from tst_study.experiments.slurm.commands import SlurmError, advised, call
from tst_study.experiments.slurm.profile import Profile
from tst_study.experiments.study import Study

COMMAND = "command.json"
"""The file in `slurm/` with the words of the command that submits a study, without `tst-study`."""
RUN = ""
"""The run id under which the job is listed (`submission.tasks`)."""
_WORDS = TypeAdapter(list[str])


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
    is queued already is replaced, because it would not wait for them. Other arguments as those of
    `submission.submit`.
    """
    if options.dry:
        return "a last small job will submit them"
    path = study.folder / submission.FOLDER / COMMAND
    # The command for all runs stays when only some of them are submitted again.
    if options.command and not (options.is_part and command_of(study.folder)):
        path.parent.mkdir(parents=True, exist_ok=True)
        others = (word for word in options.command if word != "--top-up")
        write_json(path, [*others, "--top-up"])
    own, command = jobs.get(RUN), command_of(study.folder)
    if not command:
        return "submit again when they are there"
    active = {job.id.partition("_")[0] for run, job in jobs.items() if run and job.is_active}
    if own and own.is_active and not is_new:
        return f"job {own.id.partition('_')[0]} submits them; or do so by: {command}"
    if not active:
        return f"when they are there: {command}"
    one = submission.new(study.folder, ())
    dependency, words = f"afterany:{':'.join(sorted(active))}", shlex.split(command)[1:]
    try:
        script = follow_up_script(one, code, profile, dependency, words)
        job = submission.submit(one, script, lock, profile.answer_seconds)
        if own and own.state == "queued":
            call("scancel", own.id)
    except SlurmError as error:
        why = advised(str(error), script)
        return f"when they are there: {command} (a job that would do so was refused: {why})"
    return f"job {job} submits them; or do so by: {command}"


def command_of(root: Path) -> str:
    """The command that submits the study's further runs; empty if it is not known."""
    with suppress(UserError):
        words = read_json(root / submission.FOLDER / COMMAND, _WORDS)
        return shlex.join(["tst-study", *words]) if words else ""
    return ""
