"""Calls of Slurm's programs, in an environment without the variables of an enclosing job, and with
errors of one line."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence

from tst_study.errors import UserError
from tst_study.process.rank_environment import VARIABLES

INHERITED = ("SLURM_", "SBATCH_", "SUBMITIT_", "SRUN_", "SQUEUE_", "SALLOC_")
"""Prefixes of variables that an enclosing job has set, or that set options of Slurm's programs."""
SECONDS = float(os.environ.get("TST_ANSWER_SECONDS", "30"))
"""The seconds within which a program of Slurm must answer, by default; the batch script sets the
variable."""
ARRAY, WAITS = "nvalid job array spec", "it waits: "
LIMIT = f"{ARRAY}|MaxSubmit|GrpSubmit|{WAITS}"
"""A pattern of what Slurm, or `call`, says where a limit on the number of jobs is reached."""
FINAL = "nvalid|denied|isabled|already|not permitted|nsupported|nrecognized|violates|imit"
"""A pattern of the refusals that Slurm would repeat."""


class SlurmError(UserError):
    """Slurm could not be asked, or it refused."""


class LimitError(SlurmError):
    """Slurm has no room for so many jobs, now or (`ARRAY`) in one array."""


class NoAnswerError(SlurmError):
    """Slurm failed in a way that may pass: its controller may just be restarting."""


def environment() -> dict[str, str]:
    """Return the environment of this process without the variables of an enclosing job and of
    torchrun. The variables of a job would override the options of a batch script; a job that
    inherited those of torchrun would take itself for one of torchrun's ranks. `SLURM_CONF`, the
    path of Slurm's own configuration, is kept."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not (name.startswith(INHERITED) or name in VARIABLES)
    }


def call(
    *command: str, pass_fds: Sequence[int] = (), standard_input: str = "", seconds: float = SECONDS
) -> str:
    """Run a program of Slurm and return its standard output.

    Raises `SlurmError` if the program is missing or fails, and its subclasses `LimitError`, and
    `NoAnswerError` if it may succeed later or takes more than `seconds`.
    """
    if shutil.which(command[0]) is None:
        raise SlurmError(
            f"{command[0]}: not on the PATH; submit on a login node of a Slurm cluster"
        )
    try:
        done = subprocess.run(
            command,
            env=environment(),
            input=standard_input,
            capture_output=True,
            encoding="utf8",
            errors="replace",  # comments of the user's other jobs may be in any encoding
            timeout=seconds,
            pass_fds=pass_fds,
        )
    except subprocess.TimeoutExpired as error:
        # If sbatch waits, for example because the queue is full, it has said so on stderr.
        text = " ".join((error.stderr or b"").decode(errors="replace").split())
        why = f"{WAITS}{text}" if text else "is slurmctld up, or is answer_seconds too short?"
        limit = LimitError if text else NoAnswerError
        raise limit(f"{command[0]}: no answer in {seconds:g} s; {why}") from None
    if done.returncode:
        text = " ".join((done.stderr or done.stdout).split())
        kind: type[SlurmError] = SlurmError if re.search(FINAL, text) else NoAnswerError
        kind = LimitError if re.search(LIMIT, text) else kind
        raise kind(f"{command[0]}: {text or f'ended with status {done.returncode}'}")
    return done.stdout
