"""submitit's batch script: the one place where a private method of it is called.

submitit hands a script out by that method alone. Its public way to a job, `SlurmExecutor.submit`,
pickles a function and renames the pickle when `sbatch` has answered: a submitter that is killed in
between leaves a job that finds nothing to run. Our job needs no pickle, for it is told by its run
folder and runs a copy of the code that lies there; and it needs lines of shell around `srun`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tst_study.errors import UserError


def script_text(folder: Path, command: str, parameters: Mapping[str, Any], count: int = 0) -> str:
    """The script that runs `command` in `srun`.

    `folder`: for its output. `parameters`: those of `submitit.SlurmExecutor`. `count`: elements of
    its array, none for a job of its own. Raises `UserError` where Slurm is not here, or a value
    would be more than a line of the script.
    """
    from submitit import SlurmExecutor

    _check_lines("folder of runs", str(folder.absolute()))
    for key, value in parameters.items():
        if key not in ("setup", "teardown"):  # shell, which may have lines
            _check_lines(key, value)
    try:
        executor = SlurmExecutor(folder)
    except RuntimeError as error:
        raise UserError(f"{error} Submit on a login node, or with --launcher local") from None
    executor.update_parameters(**parameters)
    if count:
        executor.parameters["map_count"] = count
    text: str = executor._make_submission_file_text(command, uid="")
    return text


def _check_lines(key: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_lines(f"{key} {name}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_lines(key, inner)
    elif not str(value).isprintable():
        raise UserError(
            f"{key} = {str(value)!r}: holds control characters, which would be more lines of the "
            "batch script; rename it"
        )
