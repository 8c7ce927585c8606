"""Calls of Slurm's programs, with a clean environment and errors of one line."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence

from tst_study.experiments.launcher import UnreachableError
from tst_study.process.rank_environment import VARIABLES

INHERITED = ("SLURM_", "SBATCH_", "SUBMITIT_", "SRUN_", "SQUEUE_", "SALLOC_")
"""How variables begin that come from an enclosing job or set options of Slurm's programs."""
SECONDS = 30
"""Seconds that a program of Slurm's gets to answer."""


class SlurmError(UnreachableError):
    """Slurm could not be asked, or refused."""


class NoAnswerError(SlurmError):
    """The controller did not answer; it may just be restarting."""


def environment() -> dict[str, str]:
    """Return the environment of this process without the variables of an enclosing job, which would
    override the options of a batch script. `SLURM_CONF`, the place of Slurm's own configuration,
    stays."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(INHERITED) and name not in VARIABLES
    }
    if "SLURM_CONF" in os.environ:
        kept["SLURM_CONF"] = os.environ["SLURM_CONF"]
    return kept


def call(*command: str, pass_fds: Sequence[int] = (), standard_input: str = "") -> str:
    """Run a program of Slurm's and return its standard output. Raises `SlurmError`."""
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
            errors="replace",  # users' other jobs may have comments in any encoding
            timeout=SECONDS,
            pass_fds=pass_fds,
        )
    except subprocess.TimeoutExpired as error:
        # sbatch says why it waits, such as for room where the queue is full.
        text = " ".join((error.stderr or b"").decode(errors="replace").split())
        why = f"it waits: {text}" if text else "is slurmctld up?"
        raise NoAnswerError(f"{command[0]}: no answer in {SECONDS} s; {why}") from None
    if done.returncode:
        text = " ".join((done.stderr or done.stdout).split())
        kind = NoAnswerError if re.search("ontact|onnect|imed out", text) else SlurmError
        raise kind(f"{command[0]}: {text or f'ended with status {done.returncode}'}")
    return done.stdout
