"""The interface that a launcher implements, and the table of launchers by name.

Commands that inspect or stop runs (status, cancel, logs, collect) ask every launcher. Commands that
train or plan runs (submit, retry, plan) ask the one that the user named; retry first asks all of
them how far the runs are.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

from tst_study import file_lock
from tst_study.errors import UserError, one_of
from tst_study.experiments.plan.layouts import Allocation, AllocationOf, check_layouts
from tst_study.experiments.plan.planned_run import PlannedRun, is_over
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.study import Study

LAUNCHERS = {
    "local": "tst_study.experiments.local.local_launcher:Local",
    "slurm": "tst_study.experiments.slurm.slurm_launcher:Slurm",
}

_LOCK = ".submit.lock"
RETRIES = 3
"""How many launches of a run may end in a row, stopped or crashed, without a new checkpoint; after
one more the run is given up."""


def given_up(idle: int, retries: int, why: str) -> str:
    """Say why a run is given up after `idle` launches in a row without a new checkpoint; empty
    where these are no more than `retries` and it is launched again. `why`: how the last launch
    ended."""
    words = f"given up: launches in a row without a new checkpoint: {idle}"
    return "" if idle <= retries else f"{words} ({why})" if why else words


class UnreachableError(UserError):
    """The system that runs a study's jobs could not be asked, or refused."""


@dataclass(frozen=True)
class Job:
    """A launcher's own knowledge about a run, beside the run's record."""

    id: str
    state: Literal["queued", "running", "failed", "cancelled", "ended"]
    """`failed`, `cancelled` and `ended` are final."""
    remark: str = ""

    @property
    def is_active(self) -> bool:
        return self.state in ("queued", "running")


class Launcher(Protocol):
    """Trains runs, here or elsewhere. `submit` starts them, `cancel` ends them, and the other
    methods leave them alone. A run's folder holds the truth about it."""

    def submit(self, study: Study, wanted: Callable[[PlannedRun], bool] = lambda run: True) -> int:
        """Have every wanted run trained that is not over, and print what is done. Returns the exit
        status. Raises `UserError`."""

    def jobs(self, root: Path) -> dict[str, Job]:
        """The jobs of a study, by run id; runs without a job are left out. Raises `UserError`."""

    def cancel(self, root: Path, wanted: Callable[[str], bool]) -> set[str]:
        """Stop the runs whose ids are wanted; one that is training writes a checkpoint first.
        Returns the ids of the stopped runs."""

    def logs(self, root: Path, run_id: str) -> list[Path]:
        """Paths of the launcher's own logs of a run. The files need not exist (yet)."""

    def allocation(self, run: PlannedRun) -> Allocation:
        """The resources that a run would get."""


@dataclass(frozen=True)
class Options:
    """Options of the command line about how runs are trained."""

    parallel: int | None = None
    """Runs at a time; with Slurm, runs of one array. On this machine the default is as many as the
    cores hold, or one if any run may use a GPU; with Slurm it is the profile's."""
    processes: int = 1
    """Ranks of each run on this machine."""
    profile: Path | None = None
    """The file that describes the Slurm cluster."""
    dry: bool = False
    """Print what would be done, and do nothing; with Slurm only."""


def launcher_of(name: str | None, options: Options = Options()) -> Launcher:
    """Return the launcher of this name; without a name, Slurm's if the options name a profile, else
    this machine's. Raises `UserError` for an unknown name."""
    name = name or ("slurm" if options.profile else "local")
    module, _, kind = LAUNCHERS[one_of(name, LAUNCHERS, "launcher")].partition(":")
    made: Launcher = getattr(import_module(module), kind)(options)
    return made


def launchers() -> list[Launcher]:
    """All launchers. Each knows whether a study was ever submitted to it."""
    return [launcher_of(name) for name in LAUNCHERS]


def check_can_be_trained(
    study: Study, wanted: Callable[[PlannedRun], bool], allocation: AllocationOf
) -> None:
    """Raise `UserError` if the layout of a run cannot work: before text is prepared for hours."""
    planned = Planner(study, unprepared=True).decided()
    check_layouts((run for run in planned if wanted(run) and not is_over(run)), allocation)


@contextmanager
def submission_lock(root: Path) -> Iterator[int]:
    """Hold the lock of a study: one command at a time submits its runs to Slurm or deletes its
    checkpoints. Training on this machine does not take it.

    Prints that it waits if another command holds the lock. Yields the lock's file descriptor.
    Raises `UserError` if the file system has no locks.
    """
    root.mkdir(parents=True, exist_ok=True)
    path = root / _LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not file_lock.take(descriptor, path, file_lock.EXCLUSIVE):
            print(f"{root}: another command submits or cleans it; waiting", file=sys.stderr)
            file_lock.take(descriptor, path, file_lock.EXCLUSIVE, wait=True)
        yield descriptor
    finally:
        os.close(descriptor)
