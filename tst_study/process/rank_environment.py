"""Environment variables of a rank: torchrun's, or Slurm's in their place, and those for GPUs."""

import os
import re
from collections.abc import MutableMapping

from tst_study.errors import UserError

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ALONE = dict(zip(VARIABLES[:4], (0, 1, 0, 1), strict=True))
ON_GPUS = {
    # With one queue to the GPU, communication that is launched before a matrix product also starts
    # before it, so that the two overlap under tensor parallelism.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    # Blocks that can grow keep the different sizes of phases and evaluations from leaving holes.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    # The error of a collective that hangs does not tell which one it is. So each rank writes its
    # last collectives to a file when the watchdog ends it.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
"""Variables that every rank sets before it uses CUDA, unless the user has set them. They have no
effect on CPUs."""
LOOPBACK = "127.0.0.1"
# Under Slurm, ranks meet at one of these ports, which follows from the ids of job and step.
FIRST_PORT, PORTS = 20_000, 10_000


def rank_variables(
    rank: int,
    ranks: int,
    port: int,
    local: tuple[int, int] | None = None,
    address: str = LOOPBACK,
) -> dict[str, str]:
    """torchrun's variables for one of `ranks` ranks. `local`: its number on its node, and how many
    ranks the node has; by default all ranks are on this machine."""
    values = (rank, ranks, *(local or (rank, ranks)), address, port)
    return dict(zip(VARIABLES, map(str, values), strict=True))


def rank_variable(name: str, default: int | None = None) -> int:
    """The value of RANK, WORLD_SIZE, LOCAL_RANK or LOCAL_WORLD_SIZE. Where it is not set:
    `default`, or else that of a single process. Raises `UserError` if it is not a number."""
    text = os.environ.get(name, str(ALONE[name] if default is None else default))
    if not text.isdecimal():
        raise UserError(f"{name} = {text!r}: is not a number; torchrun sets it, or unset it")
    return int(text)


def prepare_for_gpus(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set `ON_GPUS`, except for what is set already."""
    for name, value in ON_GPUS.items():
        environment.setdefault(name, value)


def adopt_slurm_ranks(environment: MutableMapping[str, str] = os.environ) -> None:
    """Under `srun` with several tasks, set torchrun's variables from Slurm's.

    Nothing is set where RANK is, as under torchrun; other variables that are set already are kept.
    A batch script itself, outside `srun`, is one process.
    """
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    if "RANK" in environment or tasks == 1:
        return
    # Tasks of each node, such as 2(x4),1.
    of_nodes = re.findall(r"([0-9]+)(?:\(x([0-9]+)\))?", environment["SLURM_STEP_TASKS_PER_NODE"])
    counts = [int(count) for count, times in of_nodes for _ in range(int(times or 1))]
    job, step = int(environment["SLURM_JOB_ID"]), int(environment["SLURM_STEP_ID"])
    ours = rank_variables(
        int(environment["SLURM_PROCID"]),
        tasks,
        FIRST_PORT + (job * 16 + step) % PORTS,  # steps that share a node seldom meet
        (int(environment["SLURM_LOCALID"]), counts[int(environment["SLURM_NODEID"])]),
        first_host(environment["SLURM_STEP_NODELIST"]),
    )
    for name, value in ours.items():
        environment.setdefault(name, value)


def first_host(nodes: str) -> str:
    """The first host of a list in Slurm's notation: `node[07-09,12],other` gives `node07`. Its name
    may hold one bracket."""
    match = re.match(r"([^\[,]*)(?:\[(\w+)[^\]]*\]([^,]*))?", nodes)
    assert match is not None  # the pattern matches any text
    prefix, number, suffix = match.groups()
    return f"{prefix}{number or ''}{suffix or ''}"
