"""What a task of a job runs: one rank of one run. `python -m experiments.slurm.task ROOT …`

The run is told by its folder alone; its config lies in `job/config.toml`. Nothing here is needed
from the submitter behind `sbatch`: no pickle, no file that is renamed once the job has an id.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from experiments.run_process import Exit, log_path, mark, send_output_to, train_rank
from experiments.slurm.submission import FOLDER
from tst_study import config, run_record
from tst_study.config import Config
from tst_study.rank_environment import adopt_slurm_ranks

PATIENCE = 3
"""Launches of one job in a row that may end without a step more before the run is given up."""
EARLY = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


class Stopped(BaseException):
    """A signal came before the trainer listened."""


def main(root: Path, rest: list[str]) -> int:
    folder = root / (rest[1] if rest[0] == "--run" else _run_of_this_task(root, rest[0]))
    rank = int(os.environ.get("SLURM_PROCID", "0"))
    send_output_to(log_path(folder, rank))
    for number in EARLY:
        signal.signal(number, _stop)
    adopt_slurm_ranks()
    resolved = config.load(folder / "job" / "config.toml")
    before = _step(folder)
    try:
        ended = train_rank(resolved, folder, rank)
    except Stopped as stopped:
        print(f"stopped by {stopped} before the first step", flush=True)
        ended = Exit.PREEMPTED
    for number in EARLY:
        signal.signal(number, signal.SIG_IGN)
    if ended == Exit.PREEMPTED:
        # The first rank requeues the job; another's bad exit would have it killed before.
        return _requeue(resolved, folder, before) if rank == 0 else Exit.OVER
    return ended


def _run_of_this_task(root: Path, submission: str) -> str:
    intent = json.loads((root / FOLDER / submission / "intent.json").read_bytes())
    run: str = intent["runs"][int(os.environ["SLURM_ARRAY_TASK_ID"])]
    return run


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(signal.Signals(number).name)


def _requeue(config: Config, folder: Path, before: int) -> int:
    """Back into the queue behind a checkpoint, unless the job was cancelled or gets nowhere.

    A job that Slurm itself is about to requeue (preemption) is requeued once all the same; one
    whose time is up without a warning is left to the next `submit`.
    """
    if _step(folder) <= before and int(os.environ.get("SLURM_RESTART_COUNT", "0")) >= PATIENCE:
        mark(folder, config, "failed", f"stopped {PATIENCE + 1} times without getting any further")
        return Exit.FAILED
    if _state_of_this_job() != "RUNNING":
        return Exit.PREEMPTED
    print("requeued", flush=True)
    done = subprocess.run(["scontrol", "requeue", _job_id()], capture_output=True, text=True)
    if done.returncode:
        print(f"not requeued: {done.stderr.strip()}; submit again to go on", flush=True)
        return Exit.PREEMPTED
    # The controller ends this job now; an exit of its own would have it noted as failed.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pause()
    return Exit.PREEMPTED


def _state_of_this_job() -> str:
    done = subprocess.run(
        ["squeue", "--noheader", f"--jobs={_job_id()}", "--format=%T"],
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def _job_id() -> str:
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]


def _step(folder: Path) -> int:
    status = run_record.read_status(folder)
    return status["step"] if status else 0


if __name__ == "__main__":
    status = main(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of a library must not delay or fail a run that is over
