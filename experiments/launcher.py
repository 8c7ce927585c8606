"""The interface that a launcher implements, and the table of launchers by name.

Commands that inspect or stop runs (status, cancel, logs, collect) ask every launcher. Commands that
train or plan runs (submit, retry, plan) use one, which the options name (`launcher_of`); retry
first asks all of them how far the runs are.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

from tst_study import file_lock
from tst_study.errors import one_of
from tst_study.experiments.plan.layouts import Allocation, check_layouts
from tst_study.experiments.plan.planned_run import PlannedRun, is_over
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.study import Study

LAUNCHERS = {
    "local": "tst_study.experiments.local.local_launcher:Local",
    "slurm": "tst_study.experiments.slurm.slurm_launcher:Slurm",
}
"""The class of each launcher as `module:class`, imported only when it is used."""
RETRIES = 3
"""How many consecutive launches of a run may stop or crash without a new checkpoint. After one more
such launch the run is given up."""


def given_up(idle: int, retries: int, why: str) -> str:
    """Say why a run is given up after `idle` launches in a row without a new checkpoint. The text
    is empty if these are no more than `retries`: then the run is launched again. `why`: how the
    last launch ended."""
    words = f"given up: launches in a row without a new checkpoint: {idle}"
    return "" if idle <= retries else f"{words} ({why})" if why else words


@dataclass(frozen=True)
class Job:
    """A launcher's knowledge of a run, in addition to the run's own record."""

    id: str
    state: Literal["queued", "running", "failed", "cancelled", "ended"]
    """`failed`, `cancelled` and `ended` are final."""
    remark: str = ""
    """A note for people, such as why the job waits or how it ended."""

    @property
    def is_active(self) -> bool:
        return self.state in ("queued", "running")


class Launcher(Protocol):
    """Trains runs, here or elsewhere. `submit` starts them, `cancel` ends them, and the other
    methods leave them alone. What a launcher says about the state of a run is ignored if the run's
    record shows that the run is over, or if a process holds the run's lock (`state/status.py`)."""

    def submit(self, study: Study, wanted: Callable[[PlannedRun], bool] = lambda run: True) -> int:
        """Train every wanted run that is not over (done or diverged), or have it trained, and print
        what happens. Returns the exit status of the command. Raises `UserError` if nothing can be
        started."""

    def jobs(self, root: Path) -> dict[str, Job]:
        """The jobs of a study by run id; runs without a job are left out. Raises `UserError` if the
        jobs cannot be asked for."""

    def cancel(self, root: Path, wanted: Callable[[str], bool]) -> set[str]:
        """Stop the runs whose ids are wanted, also those that have not begun. A run that is
        training writes a checkpoint first. Returns the ids of the stopped runs. Raises `UserError`
        if the launcher's jobs cannot be stopped."""

    def logs(self, root: Path, run_id: str) -> list[Path]:
        """Paths of the launcher's own logs of a run. The files need not exist (yet)."""

    def allocation(self, study: Study, run: PlannedRun) -> Allocation:
        """The resources that a run of a study would get."""


@dataclass(frozen=True)
class Options:
    """The command line's options about how runs are trained."""

    parallel: int | None = None
    """How many runs train at a time; with Slurm, how many of each array. The default on this
    machine is as many as it has cores for, or one if any run may use a GPU; the default with Slurm
    is the profile's `parallel`."""
    processes: int = 1
    """Ranks of each run on this machine."""
    profile: Path | None = None
    """The file that describes the Slurm cluster."""
    dry: bool = False
    """Print what would be done, and do nothing. Only the Slurm launcher supports this."""


def launcher_of(name: str | None, options: Options = Options()) -> Launcher:
    """Return the launcher of this name. Without a name it is Slurm's if the options name a profile,
    else this machine's. Raises `UserError` for an unknown name."""
    name = name or ("slurm" if options.profile else "local")
    module, _, kind = LAUNCHERS[one_of(name, LAUNCHERS, "launcher")].partition(":")
    made: Launcher = getattr(import_module(module), kind)(options)
    return made


def launchers() -> list[Launcher]:
    """Return all launchers. Any of them can be asked about the jobs of any study."""
    return [launcher_of(name) for name in LAUNCHERS]


def check_can_be_trained(
    study: Study,
    wanted: Callable[[PlannedRun], bool],
    allocation: Callable[[Study, PlannedRun], Allocation],
) -> None:
    """Raise `UserError` if a wanted run that is not over has a layout that cannot work. Launchers
    check this before they prepare text, which may take hours."""
    planned = Planner(study, unprepared=True).decided()
    check_layouts(
        (run for run in planned if wanted(run) and not is_over(run)), partial(allocation, study)
    )


@contextmanager
def submission_lock(root: Path) -> Iterator[int]:
    """Hold the lock of a study, so that only one command at a time submits its runs to Slurm or
    deletes its checkpoints. Training on this machine does not take this lock.

    If another command holds the lock, a message says so and this command waits. Yields the lock's
    file descriptor. Raises `UserError` if the file system has no locks.
    """
    root.mkdir(parents=True, exist_ok=True)
    path = root / ".submit.lock"
    with path.open("a") as file:
        if not file_lock.take(file.fileno(), path, file_lock.EXCLUSIVE):
            print(f"{root}: another command submits or cleans it; waiting", file=sys.stderr)
            file_lock.take(file.fileno(), path, file_lock.EXCLUSIVE, wait=True)
        yield file.fileno()
