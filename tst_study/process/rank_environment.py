"""The environment variables of a rank: those by which torchrun tells a process its rank (under
Slurm, they are made from Slurm's own), and settings for GPUs."""

import os
import re
from collections.abc import Mapping, MutableMapping

from tst_study.errors import UserError

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""torchrun's variables: rank and number of ranks, first in all and then on this node, and the
address and port at which the ranks meet."""
ALONE = dict(zip(VARIABLES[:4], (0, 1, 0, 1), strict=True))
"""The first four of them for a process that is the only rank."""
ON_GPUS = {
    # With one queue to the GPU, communication that is launched before a matrix product also starts
    # before it, so that the two overlap under tensor parallelism.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    # The two phases and evaluation allocate tensors of different sizes. In blocks of memory that
    # can grow, such tensors leave no holes that are too small to be used again.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    # The error of a collective that hangs does not tell which one it is. So each rank writes a list
    # of its last collectives to a file when NCCL's watchdog, which watches for time-outs, ends the
    # rank.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
"""Variables that every rank sets before it uses CUDA, unless the user has set them. They have no
effect on CPUs."""
LOOPBACK = "127.0.0.1"
# Under Slurm, the ranks meet at one of `PORTS` ports from `FIRST_PORT` on; the ids of the Slurm job
# and of its step choose which.
FIRST_PORT, PORTS = 20_000, 10_000


def rank_variables(
    rank: int, ranks: int, port: int, local: tuple[int, int] | None = None, address: str = LOOPBACK
) -> dict[str, str]:
    """torchrun's variables for rank `rank` of `ranks`, which meet at `address` and `port`. `local`:
    the rank's number on its node, and how many ranks the node has; by default all ranks are on one
    node."""
    values = (rank, ranks, *(local or (rank, ranks)), address, port)
    return dict(zip(VARIABLES, map(str, values), strict=True))


def rank_variable(name: str, default: int | None = None) -> int:
    """The value of RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE or MASTER_PORT. If the variable
    is not set, this is `default` or, without one, the value for a process that is the only rank
    (`ALONE`). Raises `UserError` if it is no number, or a size of 0."""
    text = os.environ.get(name, str(ALONE.get(name, "") if default is None else default))
    if not text.isdecimal() or (name.endswith("SIZE") and int(text) == 0):
        raise UserError(
            f"{name} = {text!r}: is not a valid number; start with torchrun, or unset it"
        )
    return int(text)


def check_rank_variables() -> int:
    """Return this process' rank. Raises `UserError` if the variables of a rank are not complete, as
    when some are left over from another program."""
    rank, ranks = rank_variable("RANK"), rank_variable("WORLD_SIZE")
    needed = ("RANK", "MASTER_ADDR", "MASTER_PORT")
    if ranks > 1 and (missing := [name for name in needed if name not in os.environ]):
        raise UserError(
            f"WORLD_SIZE = {ranks}: {missing[0]} is not set; start with torchrun or --processes, "
            "or unset WORLD_SIZE to train in one process"
        )
    if ranks > 1 and rank >= ranks:
        raise UserError(f"RANK = {rank}: is not below WORLD_SIZE = {ranks}; unset both")
    return rank


def prepare_for_gpus(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables of `ON_GPUS`, except for those that are set already."""
    for name, value in ON_GPUS.items():
        environment.setdefault(name, value)


def adopt_slurm_ranks(environment: MutableMapping[str, str] = os.environ) -> None:
    """Under `srun` with several tasks, set torchrun's variables from Slurm's.

    If RANK is set already, as it is under torchrun, nothing changes; other variables that are set
    already are kept. A command that a batch script starts without `srun` is a single process.
    Raises `UserError` if some of Slurm's variables are missing or odd.
    """
    if "RANK" in environment or environment.get("SLURM_STEP_NUM_TASKS", "1") == "1":
        return
    try:
        ours = _of_slurm(environment)
    except (LookupError, ValueError) as error:
        raise UserError(
            f"SLURM_STEP_NUM_TASKS is set, but srun's other variables do not fit it ({error}); "
            "start with srun, or unset it to train in one process"
        ) from None
    for name, value in ours.items():
        environment.setdefault(name, value)


def _of_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables for the task that Slurm's describe."""
    tasks = int(environment["SLURM_STEP_NUM_TASKS"])
    # The number of tasks on each node: 2(x4),1 means two on each of four nodes, one on the fifth.
    of_nodes = re.findall(r"([0-9]+)(?:\(x([0-9]+)\))?", environment["SLURM_STEP_TASKS_PER_NODE"])
    counts = [int(count) for count, times in of_nodes for _ in range(int(times or 1))]
    job, step = int(environment["SLURM_JOB_ID"]), int(environment["SLURM_STEP_ID"])
    return rank_variables(
        int(environment["SLURM_PROCID"]),
        tasks,
        FIRST_PORT + (job * 16 + step) % PORTS,  # job steps on one node seldom share a port
        (int(environment["SLURM_LOCALID"]), counts[int(environment["SLURM_NODEID"])]),
        first_host(environment["SLURM_STEP_NODELIST"]),
    )


def first_host(nodes: str) -> str:
    """The first host of a list in Slurm's notation: `node[07-09,12],other` gives `node07`. Only one
    part of this host's name may stand in brackets."""
    match = re.match(r"([^\[,]*)(?:\[(\w+)[^\]]*\]([^,]*))?", nodes)
    assert match is not None  # the pattern matches any text
    prefix, number, suffix = match.groups()
    return f"{prefix}{number or ''}{suffix or ''}"
