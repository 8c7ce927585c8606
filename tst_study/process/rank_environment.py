"""Environment variables of a rank: torchrun's, or Slurm's in their place, and those for GPUs."""

import os
import re
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from tst_study.errors import UserError

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ALONE = dict(zip(VARIABLES[:4], (0, 1, 0, 1), strict=True))
DUMPS = "TORCH_FR_DUMP_TEMP_FILE"
ON_GPUS = {
    # With one queue to the GPU, communication that is launched before a matrix product also starts
    # before it, so that the two overlap under tensor parallelism.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    # Blocks that can grow keep the different sizes of phases and evaluations from leaving holes.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    # A collective that hangs does not give its name. So each rank records its last collectives, and
    # writes them to a file (`DUMPS`) when the watchdog ends it.
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
"""Variables that every rank sets before it uses CUDA, unless the user has set them. They have no
effect on CPUs."""
LOOPBACK = "127.0.0.1"
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
    """The value of RANK, WORLD_SIZE, LOCAL_RANK or LOCAL_WORLD_SIZE; by default that of a single
    process. Raises `UserError` if it is not a number."""
    text = os.environ.get(name, str(ALONE[name] if default is None else default))
    return _number(name, text, 7, "torchrun sets it, or unset it")


def _number(name: str, text: str, digits: int, remedy: str) -> int:
    if not re.fullmatch(f"[0-9]{{1,{digits}}}", text):
        raise UserError(f"{name} = {text!r}: is not a number; {remedy}")
    return int(text)


def prepare_for_gpus(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set `ON_GPUS` and the place of `flight_record`, except for what is set already."""
    for name, value in ON_GPUS.items():
        environment.setdefault(name, value)
    # A place of the user's own: under a known name in /tmp somebody else could have put a link.
    with suppress(OSError, RuntimeError):  # there is no home, or it cannot be written
        folder = Path.home() / ".cache" / "tst-study"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"nccl-trace-{os.uname().nodename}-{os.getpid()}-rank"
        environment.setdefault(DUMPS, str(folder / name))


def flight_record(rank: int) -> str:
    """Return words that say where the last collectives of a rank lie, if torch has written them."""
    path = f"{os.environ.get(DUMPS)}{rank}"
    return (
        f"; its last collectives lie in {path} (torchfrtrace reads them)"
        if os.path.exists(path)
        else ""
    )


def check_rank_variables() -> None:
    """Raise `UserError` if torchrun's variables contradict each other: ranks would wait for ranks
    that do not exist."""
    rank, ranks = rank_variable("RANK"), rank_variable("WORLD_SIZE")
    local_rank = rank_variable("LOCAL_RANK")
    local_ranks = rank_variable("LOCAL_WORLD_SIZE", ranks)
    for name, value, of, size in (
        ("RANK", rank, "WORLD_SIZE", ranks),
        ("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_ranks),
        ("LOCAL_WORLD_SIZE", local_ranks - 1, "WORLD_SIZE", ranks),
    ):
        if value >= size:
            raise UserError(
                f"{name} = {os.environ.get(name)}: does not fit {of} = {size}; torchrun sets both, "
                "or unset them"
            )
    port, address = os.environ.get("MASTER_PORT", ""), os.environ.get("MASTER_ADDR", "")
    if ranks > 1 and not (re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise UserError(f"MASTER_PORT = {port!r}: is not a port; torchrun sets it")
    if ranks > 1 and not re.fullmatch(r"[\w.:%-]+", address):
        raise UserError(f"MASTER_ADDR = {address!r}: is not an address; torchrun sets it")


def adopt_slurm_ranks(environment: MutableMapping[str, str] = os.environ) -> None:
    """Under `srun` with several tasks, set torchrun's variables from Slurm's.

    Variables that are set already are kept. A batch script itself, outside `srun`, is one process.
    Raises `UserError` if a variable is not a number.
    """

    def number(name: str, default: str = "") -> int:
        text = environment.get(name, default)
        return _number(name, text, 12, "srun sets it, or unset SLURM_*")

    def of_this_node(name: str) -> int:
        text, counts = environment.get(name, "1"), []
        for part in text.split(","):
            match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)
            if match is None:
                raise UserError(f"{name} = {text!r}: is no list of numbers such as 2(x4),1")
            counts += [int(match[1])] * int(match[2] or 1)
        return counts[min(number("SLURM_NODEID", "0"), len(counts) - 1)]

    tasks = number("SLURM_STEP_NUM_TASKS", "1")
    if "RANK" in environment or tasks == 1:
        return
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    job, step = number("SLURM_JOB_ID"), number("SLURM_STEP_ID", "0")
    ours = rank_variables(
        number("SLURM_PROCID"),
        tasks,
        FIRST_PORT + (job * 16 + step) % PORTS,  # steps that share a node seldom meet
        (number("SLURM_LOCALID"), of_this_node("SLURM_STEP_TASKS_PER_NODE")),
        first_host(nodes),
    )
    for name, value in ours.items():
        environment.setdefault(name, value)


def first_host(nodes: str) -> str:
    """The first host of a list in Slurm's notation: `node[07-09,12],other` gives `node07`."""
    match = re.match(r"([^\[,]*)(?:\[(\w+)[^\]]*\]([^,]*))?", nodes)
    assert match is not None  # the pattern matches any text
    prefix, number, suffix = match.groups()
    return f"{prefix}{number or ''}{suffix or ''}"
