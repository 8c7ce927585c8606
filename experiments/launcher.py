"""The interface that a launcher implements, and where it is found by its name.

A verb that looks at what is there (status, cancel, logs, clean) asks every launcher; one that has
something done (submit, retry, plan) asks the one that was named.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

from tst_study.errors import UserError, one_of
from tst_study.experiments.plan.layouts import Allocation, AllocationOf, Prices, check_layouts
from tst_study.experiments.plan.planned_run import PlannedRun, is_over
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.study import Study
from tst_study.record import lock as run_lock

LAUNCHERS = {
    "local": "tst_study.experiments.local.launcher:Local",
    "slurm": "tst_study.experiments.slurm.launcher:Slurm",
}

_LOCK = ".submit.lock"
RETRIES = 3
"""How many launches of a run may end in a row, stopped or crashed, without a new checkpoint; after
one more the run is given up."""


def given_up(idle: int, retries: int, why: str) -> str:
    """Say why a run is given up after so many launches in a row without a new checkpoint; empty
    where it is launched again."""
    said = f"given up: launches in a row without a new checkpoint: {idle}"
    return "" if idle <= retries else f"{said} ({why})" if why else said


class UnreachableError(UserError):
    """Whoever has a study's jobs could not be asked, or refused."""


@dataclass(frozen=True)
class Job:
    """What a launcher knows of a run beside the run's own word."""

    id: str
    state: Literal["queued", "running", "failed", "cancelled", "ended"]
    """`failed` and `cancelled` are ends, too."""
    remark: str = ""

    @property
    def is_active(self) -> bool:
        return self.state in ("queued", "running")


class Launcher(Protocol):
    """Trains runs, here or elsewhere. Every method but `submit` leaves runs as they are or ends
    them; truth about a run is in its folder."""

    def submit(self, study: Study, wanted: Callable[[PlannedRun], bool] = lambda run: True) -> int:
        """Have every wanted run trained that is not over; says what it does and returns the exit
        status. Raises `UserError`."""

    def jobs(self, root: Path) -> dict[str, Job]:
        """The jobs of a study by run id, of those runs that have one. Raises `UserError`."""

    def cancel(self, root: Path, wanted: Callable[[str], bool]) -> set[str]:
        """Stop the runs whose ids are wanted, those that run after a checkpoint; returns the ids
        of those that were stopped."""

    def logs(self, root: Path, run_id: str) -> list[Path]:
        """Where its own words about a run lie, which there may not be (yet)."""

    def leftovers(self, root: Path) -> Iterable[tuple[Path, str]]:
        """Folders that nothing needs any more, and why."""

    def allocation(self, run: PlannedRun) -> Allocation:
        """What a run would get."""

    def prices(self) -> Prices:
        """What its devices do and cost, as far as it knows."""


@dataclass(frozen=True)
class Options:
    """What the command line says about how runs are trained."""

    parallel: int | None = None
    """Runs at a time; here by default as many as the cores hold, or one that may take the GPU."""
    processes: int = 1
    """Ranks of each run on this machine."""
    profile: Path | None = None
    collects: bool = True
    only_new: bool = False
    """Only runs that were never submitted before."""
    dry: bool = False
    """Say what would be done, and do none of it."""
    device: str | None = None
    """On which the study was told to run; by default as its scale says."""

    def again(self, study: Study, *more: str) -> list[str]:
        """The command that goes on with a study."""
        words = ["retry", study.name]
        if study.scale:  # else of a mere folder, of which there is no submission
            words = ["submit", study.name, "--scale", study.scale, "--runs", str(study.folder)]
        words += ["--profile", str(self.profile.absolute())] if self.profile else []
        words += ["--parallel", str(self.parallel)] if self.parallel else []
        words += ["--processes", str(self.processes)] if self.processes > 1 else []
        words += ["--device", self.device] if self.device else []
        return [*words, *more] if study.share else [*words, *more, "--no-share"]


def launcher_of(name: str, options: Options = Options()) -> Launcher:
    """Raises `UserError` for a name that does not exist."""
    module, _, kind = LAUNCHERS[one_of(name, LAUNCHERS, "launcher")].partition(":")
    made: Launcher = getattr(import_module(module), kind)(options)
    return made


def launchers() -> list[Launcher]:
    """Every one: each knows whether a study was ever handed to it."""
    return [launcher_of(name) for name in LAUNCHERS]


def check_can_be_trained(
    study: Study, wanted: Callable[[PlannedRun], bool], allocation: AllocationOf
) -> None:
    """Raises `UserError`, before hours of preparing text, where a run's layout cannot work."""
    planned = Planner(study, unprepared=True).decided()
    check_layouts((run for run in planned if wanted(run) and not is_over(run)), allocation)


@contextmanager
def the_only_submitter(root: Path) -> Iterator[int]:
    """One at a time decides what of a study is queued, and what of it may be deleted: waits for
    whoever holds the study's lock, and says so; yields the lock's descriptor. Raises `UserError`
    where the file system has no locks."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / _LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not run_lock.take(descriptor, path, run_lock.EXCLUSIVE):
            print(f"{root}: another command submits or cleans it; waiting", file=sys.stderr)
            run_lock.take(descriptor, path, run_lock.EXCLUSIVE, wait=True)
        yield descriptor
    finally:
        os.close(descriptor)
