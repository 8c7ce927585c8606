"""One rank (process) of a run in a Slurm job: `python -m tst_study.experiments.slurm.task FOLDER
[--gpu]`, which the job's batch script starts through `srun`.

FOLDER is the run's folder, where the config is in `job/config.toml`. A rank only trains. At the end
the first rank writes its exit status (`run_process.Exit`) into `job/ended`, from which `launch`
decides what becomes of the job.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType

from tst_study.atomic_files import insist
from tst_study.config import schema as config
from tst_study.experiments.run_process import (
    AWAY_SECONDS,
    Exit,
    config_path,
    log_path,
    send_output_to,
    train_rank,
)
from tst_study.process.host import leave
from tst_study.process.rank_environment import adopt_slurm_ranks, prepare_for_gpus

EARLY = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
"""Signals that stop a rank. Whenever the trainer does not handle them itself, they raise
`Stopped`."""
LOCK_SECONDS = 20.0
"""Seconds to wait for another process that holds the run: on a shared file system a lock can
outlive its holder for a while."""


class Stopped(BaseException):
    """A signal came while the trainer did not handle it."""


def main(folder: Path, *, on_gpu: bool) -> int:
    """Train as one rank, and return the exit status of this process.

    `on_gpu`: whether the job has asked for GPUs. If it has, `device = "auto"` in the config becomes
    `cuda`, so that a rank that finds no GPU fails and does not train on the CPU.
    """
    rank = int(os.environ.get("SLURM_PROCID", "0"))
    send_output_to(log_path(folder, rank))
    for number in EARLY:
        signal.signal(number, _stop)
    prepare_for_gpus()
    adopt_slurm_ranks()
    resolved = config.load(config_path(folder))
    if on_gpu and resolved.execution.device == "auto":
        resolved = resolved.executed(device="cuda")
    try:
        ended = train_rank(resolved, folder, rank, lock_seconds=LOCK_SECONDS)
    except Stopped as stopped:
        print(f"stopped by {stopped} while no step was being trained", flush=True)
        ended = Exit.PREEMPTED
    for number in EARLY:
        signal.signal(number, signal.SIG_IGN)
    if rank == 0:
        # `launch` cannot go by srun's own exit status: that is the highest of all ranks, including
        # those that srun itself killed.
        last_word = folder / "job" / "ended"
        insist(lambda: last_word.write_text(f"{ended.value}\n"), AWAY_SECONDS, OSError)
    elif ended == Exit.PREEMPTED:
        return Exit.OVER  # any other status would make srun kill the first rank
    return ended


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(signal.Signals(number).name)


if __name__ == "__main__":
    leave(main(Path(sys.argv[1]), on_gpu="--gpu" in sys.argv))
