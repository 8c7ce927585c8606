"""Calls of Slurm's programs, in an environment without the variables of an enclosing job, and with
errors of one line."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

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
FINAL += "|tion (is )?not available"
"""A pattern of the refusals that Slurm would repeat."""
MEMORY = "Out Of Memory|OUT_OF_MEMORY|exceeded memory limit|oom-kill event"
"""A pattern of what Slurm says of processes that it killed because their job has no more memory."""
SEE = "scontrol show partition, sacctmgr show qos"
ANY = "change gpus_per_node, gpu_type or what else [resources] asks for"
KEYS = (
    (MEMORY, "mem", "raise memory_gb", "sinfo -o %m"),
    ("MaxWall|TimeLimit|time limit is|MinutesPerJob", "time", "lower time", SEE),
    ("Mem(ory)?Per[JNCL]|QOSMinMem|Memory (spec|req)", "mem", "change memory_gb", SEE),
    ("Cpu(Per[JN]|Not)|CPU count|processors", "cpus-per-task", "change cpus_per_task", SEE),
    ("NodePerJ|QOSMinNode|NodeLimit|ode count", "nodes", "change nodes", SEE),
    ("nvalid ?account|AccountNot", "account", "change account", "sacctmgr show assoc"),
    ("nvalid ?qos|QOSNot", "qos", "change qos of sbatch", "sacctmgr show assoc"),
    ("artition (not|spec|name)|Partition[DI]|this part", "partition", "change partition", "sinfo"),
    ("feature spec", "constraint", "change constraint of sbatch", "sinfo -o %f"),
    ("reservation is|ed reservation|ReservationDel", "reservation", "change reservation of sbatch",
     "scontrol show reservation"),
    ("gres|GRES|BadConstr|(node|tion) config|^(?!.*Submit).*violates", "gres", ANY, SEE),
)  # fmt: skip
"""Patterns of the reasons for which Slurm refuses a job or never starts it. With each: the option
of the batch script, what to do with the key of `slurm.toml` that it is written by, and which
commands show what is allowed. The first that matches counts."""


class SlurmError(UserError):
    """Slurm could not be asked, or it refused."""


class LimitError(SlurmError):
    """Slurm has no room for so many jobs, now or (`ARRAY`) in one array."""


class NoAnswerError(SlurmError):
    """Slurm failed in a way that may pass: its controller may just be restarting."""


def memory_words(text: str) -> str:
    """Return what Slurm says in the output of a job that it killed for its memory, or else ""."""
    found = re.search(rf"^(?:slurmstepd|srun)\S*: .*({MEMORY})", text, re.MULTILINE)
    return found[1] if found else ""


def advised(reason: str, script: str | Path) -> str:
    """Return a reason of Slurm's with the key of `slurm.toml` behind it, if there is one (`KEYS`),
    the key's value in the batch script, and what to do. Raises `OSError`."""
    for pattern, option, words, commands in KEYS:
        if re.search(pattern, reason):
            text = script if isinstance(script, str) else script.read_text(encoding="utf8")
            value = re.search(f"^#SBATCH --{option}=(.*)$", text, re.MULTILINE)
            now = f" (now {value[1]})" if value else ""
            return f"{reason}; in slurm.toml, {words}{now}; see {commands}"
    return reason


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
        raise SlurmError(f"{command[0]}: not on PATH; submit on a login node of a Slurm cluster")
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
