"""One run in a process of its own: its lock, its log file, training, and its exit status.

The local launcher starts such processes with `run`. A rank in a job (`rank.py`) calls
`train_rank`.
"""

import multiprocessing
import os
import signal
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from tst_study import file_lock
from tst_study.atomic_files import DiskAwayError, insist, written_atomically
from tst_study.config.schema import Config, from_dict, read_toml, to_toml
from tst_study.errors import OtherRankError, UserError, one_line
from tst_study.process.host import leave
from tst_study.process.local_ranks import end_with
from tst_study.process.rank_environment import prepare_for_gpus, rank_variables
from tst_study.record import reader as run_record
from tst_study.record.writer import mark

AWAY_SECONDS = 300.0
"""If the file system is away, a run tries for this many seconds to write how it ended."""


class Exit(IntEnum):
    """The exit status of a run's process, which means the same to every launcher."""

    OVER = 0
    """Done or diverged."""
    FAILED = 1
    """Failed with an error that would recur, that is, a `UserError` other than `OtherRankError` and
    `DiskAwayError`. Its message names what to do about it."""
    PREEMPTED = 69
    """Stopped by a signal. If training had begun, the run wrote a checkpoint first. Started again,
    the run resumes from its last checkpoint."""
    CRASHED = 70
    """Failed with an error that may not recur."""
    HELD = 75
    """Another process holds the run's lock, because it is training or evaluating the run."""


def log_path(folder: Path, rank: int = 0) -> Path:
    """The file that gets the output of one rank."""
    return folder / "job" / (f"log-rank{rank}.txt" if rank else "log.txt")


def config_path(folder: Path) -> Path:
    """The file with the config of the run's last submission or launch."""
    return folder / "job" / "config.toml"


def submitted_config(folder: Path) -> Config:
    """Return the config of the run's last submission or launch. No code that it names is run.
    Raises `UserError` if it cannot be read."""
    path = config_path(folder)
    return from_dict(read_toml(path), str(path), imports=False)


def cancel_mark(folder: Path) -> Path:
    """The file that marks a run as cancelled. Until a new submission of the run deletes it, no
    launcher starts or requeues the run."""
    return folder / "job" / "cancelled"


def last_checkpoint(folder: Path) -> int:
    """Return the step of the run's last checkpoint, by its status; 0 if it has none."""
    status = run_record.read_status(folder)
    return (status["last_checkpoint"] if status else None) or 0


@dataclass(frozen=True)
class Rank:
    """The place of a process among all processes of its run, which are on this machine."""

    number: int = 0
    of: int = 1
    """The number of processes of the run."""
    port: int = 0
    """The port on which the first process listens for the others; unused if there is only one."""
    devices: str = ""
    """The GPUs of the run, separated by commas, one for each process; empty if it may use all."""


def run(config: Config, folder: Path, rank: Rank = Rank()) -> None:
    """Train one rank until the run ends or is stopped, then exit with a status of `Exit`. The local
    launcher's processes start here."""
    # In a session of its own, the process gets no Ctrl-C from the terminal. The launcher does, and
    # stops its runs.
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    send_output_to(log_path(folder, rank.number))
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    end_with(launcher.sentinel)
    prepare_for_gpus()
    if rank.devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = rank.devices
    if rank.of > 1:
        os.environ |= rank_variables(rank.number, rank.of, rank.port)
    leave(train_rank(config, folder, rank.number))


def train_rank(config: Config, folder: Path, rank: int, lock_seconds: float = 0.2) -> Exit:
    """Train one rank of a run, unless the run is over or cancelled, and return the exit status. The
    first rank holds the run's lock meanwhile, and records the run's state.

    `lock_seconds`: how long to wait for another process that holds the lock.
    """
    if rank:
        return _train(config, folder, speaks=False)
    try:
        with file_lock.hold(folder, lock_seconds):
            return _train(config, folder, speaks=True)
    except file_lock.RunHeldError as error:
        print(error)
        return Exit.HELD
    except (UserError, OSError) as error:  # before training began, as on a disk without locks
        print(error)
        mark_failed(folder, config, error)
        return Exit.FAILED if isinstance(error, UserError) else Exit.CRASHED


def _train(config: Config, folder: Path, *, speaks: bool) -> Exit:
    """Train one rank of a run, and return the exit status. `speaks`: whether this rank also writes
    the run's config and status; exactly one of the ranks must."""
    print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} process {os.getpid()}: {folder}", flush=True)
    try:
        if run_record.is_over(folder):  # another launcher may just have brought the run to its end
            return Exit.OVER
        if cancel_mark(folder).exists():  # the user cancelled it while this process was started
            return Exit.PREEMPTED
        if speaks:
            mark(folder, config, "running", "starting")
            write_config(config, folder)
        from tst_study.train import train

        state = train(config, folder, progress=False)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        if speaks:
            mark_failed(folder, config, error)
        passing = isinstance(error, OtherRankError | DiskAwayError)
        would_happen_again = isinstance(error, UserError) and not passing
        return Exit.FAILED if would_happen_again else Exit.CRASHED
    return Exit.PREEMPTED if state == "preempted" else Exit.OVER


def mark_failed(folder: Path, config: Config, error: BaseException) -> None:
    """Write into the run's status why it failed; if the file system is away, try for
    `AWAY_SECONDS`. If the status cannot be written, as on a full disk, the exit status still tells
    that the run failed."""
    with suppress(UserError, OSError):
        insist(lambda: mark(folder, config, "failed", one_line(error)), AWAY_SECONDS, DiskAwayError)


def write_config(config: Config, folder: Path) -> None:
    """Write the config of a run for its next launch. Other ranks of this launch may be reading the
    file at the same time, so it is left alone if nothing changes."""
    path, content = config_path(folder), to_toml(config).encode()
    with suppress(FileNotFoundError):
        if path.read_bytes() == content:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_atomically(path) as file:
        file.write(content)


def submitted_anew(config: Config, folder: Path) -> None:
    """Record that a run is submitted again to Slurm: it is no longer cancelled, and its earlier
    launches do not count towards the limit after which it is given up."""
    for name in ("cancelled", "launches"):
        (folder / "job" / name).unlink(missing_ok=True)
    write_config(config, folder)


def send_output_to(path: Path) -> None:
    """Append to a file what this process and its children write to stdout and stderr from now
    on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
