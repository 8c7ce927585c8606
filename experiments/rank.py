"""One rank (process) of a run in a job: `python -m tst_study.experiments.rank FOLDER CODE [--gpu]`.

FOLDER is the run's folder, where the config is in `job/config.toml`. CODE is the copy of the code
that the rank must run (`code_copy`). A rank that finds itself running other code, because its
environment has lost PYTHONPATH, fails. Otherwise a rank only trains. At the end the first rank
writes its exit status (`run_process.Exit`) into `job/ended`, from which whatever started the ranks
decides what becomes of the job (`launches`).

A rank learns its number from torchrun's variables if they are set, and otherwise from submitit.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType

import tst_study
from tst_study.atomic_files import insist
from tst_study.config.schema import Config
from tst_study.errors import UserError
from tst_study.experiments.run_process import (
    AWAY_SECONDS,
    Exit,
    log_path,
    mark_failed,
    send_output_to,
    submitted_config,
    train_rank,
)
from tst_study.process.host import leave
from tst_study.process.rank_environment import prepare_for_gpus, rank_variable
from tst_study.superposition.loss_kinds import is_own

EARLY = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
"""Signals that stop a rank. Whenever the trainer does not handle them itself, they raise
`Stopped`."""
LOCK_SECONDS = 20.0
"""Seconds to wait for another process that holds the run: on a shared file system a lock can
outlive its holder for a while."""

OTHER_CODE = (
    "the ranks run {}, not the study's copy {}: PYTHONPATH or PYTHONSAFEPATH was lost on the way "
    "to them; with Slurm, remove --export from `srun` and --cleanenv from `container` in slurm.toml"
)


class Stopped(BaseException):
    """A signal came while the trainer did not handle it."""


def main(folder: Path, code: Path, *, on_gpu: bool) -> int:
    """Train as one rank, and return the exit status of this process.

    `on_gpu`: whether the job has asked for GPUs. If it has, `device = "auto"` in the config becomes
    `cuda`, so that a rank that finds no GPU fails and does not train on the CPU.
    """
    resolved = submitted_config(folder)
    package = Path(tst_study.__file__).parent
    if package.resolve() != (code / package.name).resolve():
        mark_failed(folder, resolved, UserError(OTHER_CODE.format(package, code)))
        return _say(folder, Exit.FAILED)
    _find_loss(resolved, code / "study")
    _adopt_ranks()
    rank = rank_variable("RANK")
    send_output_to(log_path(folder, rank))
    for number in EARLY:
        signal.signal(number, _stop)
    prepare_for_gpus()
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
        return _say(folder, ended)
    # Any other status would make srun kill the first rank.
    return Exit.OVER if ended == Exit.PREEMPTED else ended


def _say(folder: Path, ended: Exit) -> Exit:
    """Write how the ranks ended into `job/ended`. The exit status of srun would not do: it is the
    highest of all ranks, including those that srun itself killed."""
    path = folder / "job" / "ended"
    insist(lambda: path.write_text(f"{ended.value}\n"), AWAY_SECONDS, OSError)
    return ended


def _find_loss(config: Config, copies: Path) -> None:
    """Have a loss of the user's own imported from the copy of the study's files, if it is there."""
    loss = config.superposition.loss
    if not (isinstance(loss, dict) and is_own(loss)):
        return
    module = Path(*str(loss["kind"]).partition(":")[0].split("."))
    for file in (module.with_suffix(".py"), module / "__init__.py"):
        sys.path[:0] = [str(path.parents[len(file.parts) - 1]) for path in copies.rglob(str(file))]


def _adopt_ranks() -> None:
    """Set torchrun's variables from what submitit knows about this process, unless they are set
    already or the run has one rank only."""
    from submitit import JobEnvironment
    from submitit.helpers import TorchDistributedEnvironment

    if "RANK" not in os.environ and JobEnvironment().num_tasks > 1:
        TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(signal.Signals(number).name)


if __name__ == "__main__":
    leave(main(Path(sys.argv[1]), Path(sys.argv[2]), on_gpu="--gpu" in sys.argv))
