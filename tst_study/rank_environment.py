"""Which rank this process is: torchrun's variables, or Slurm's in their place."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping

FIRST_PORT, PORTS = 20_000, 10_000


def adopt_slurm_ranks(environment: MutableMapping[str, str] = os.environ) -> None:
    """Under `srun` with several tasks, say in torchrun's variables what Slurm says in its own.

    Variables that are set already win. A job's script itself, outside `srun`, stays one process.
    """
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    if "RANK" in environment or tasks == 1:
        return
    nodes = environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"]
    job, step = int(environment["SLURM_JOB_ID"]), int(environment.get("SLURM_STEP_ID", "0"))
    ours = {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": re.split(r"\D", environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))[0],
        "MASTER_ADDR": first_host(nodes),
        # Of jobs that share a node no two steps meet.
        "MASTER_PORT": str(FIRST_PORT + (job * 16 + step) % PORTS),
    }
    for name, value in ours.items():
        environment.setdefault(name, value)


def first_host(nodes: str) -> str:
    """`node[07-09,12],other` -> `node07`: Slurm's way of writing lists of hosts."""
    match = re.match(r"([^\[,]*)(?:\[(\w+)[^\]]*\]([^,]*))?", nodes)
    assert match is not None  # it matches any text
    prefix, number, suffix = match.groups()
    return f"{prefix}{number or ''}{suffix or ''}"
