"""The interface that a launcher implements, and the table of launchers by name.

Commands that inspect or stop runs (status, cancel, logs, collect) ask every launcher. Commands that
train or plan runs (submit, retry, plan) use one, which the options name (`launcher_of`); retry
first asks all of them how far the runs are.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal, Protocol

from tst_study import file_lock
from tst_study.config.schema import read_toml
from tst_study.errors import UserError, one_of
from tst_study.experiments.plan.layouts import Allocation, check_layouts
from tst_study.experiments.plan.planned_run import PlannedRun, is_over, state_and_damage
from tst_study.experiments.plan.planner import Planner
from tst_study.experiments.run_process import cancel_mark
from tst_study.experiments.study import Study
from tst_study.record.reader import FINAL_STATES

LAUNCHERS = {
    "local": "tst_study.experiments.local.local_launcher:Local",
    "gpus": "tst_study.experiments.local.local_launcher:Gpus",
    "slurm": "tst_study.experiments.slurm.slurm_launcher:Slurm",
}
"""The class of each launcher as `module:class`, imported only when it is used. Launchers of other
packages are entry points of the group `tst_study.launchers`. Our own are none, because the copies
of the code in which jobs run have no entry points."""


@dataclass(frozen=True)
class Job:
    """A launcher's knowledge of a run, in addition to the run's own record."""

    id: str
    state: Literal["queued", "running", "failed", "cancelled", "ended"]
    """`failed`, `cancelled` and `ended` are final."""
    remark: str = ""
    """A note for people, such as why the job waits or how it ended."""
    owner: str = ""
    """The user whose job it is, if it is not this one's; such a job is left alone."""

    @property
    def is_active(self) -> bool:
        return self.state in ("queued", "running")


@dataclass
class Needs:
    """The runs of a study, by what a launcher of jobs has to do with them."""

    open: list[PlannedRun] = field(default_factory=list)
    """Runs that need a job."""
    over: list[PlannedRun] = field(default_factory=list)
    """Runs that are done or have diverged."""
    adopted: list[PlannedRun] = field(default_factory=list)
    """Runs that are queued or training already."""
    stopped: list[PlannedRun] = field(default_factory=list)
    """Runs that failed or were stopped or cancelled, if only runs that never had a job are
    wanted."""
    damaged: list[str] = field(default_factory=list)
    """The run id of each run whose record cannot be read, and why."""

    def sort(self, runs: Iterable[PlannedRun], jobs: Mapping[str, Job], *, only_new: bool) -> None:
        """Sort the runs. A run's own record comes first, then its job and its lock. A run that was
        cancelled needs a job although its old one may take a while to end. `only_new`: runs that
        had a job before need none."""
        for run in runs:
            job, cancelled = jobs.get(run.run_id), cancel_mark(run.folder).exists()
            has_job = job is not None and job.is_active
            is_theirs = has_job and job is not None and job.owner
            state_there, damage = state_and_damage(run)
            if state_there in FINAL_STATES:
                self.over.append(run)
            elif damage:
                self.damaged.append(f"{run.run_id}: {damage}")
            elif (not cancelled and (has_job or file_lock.is_held(run.folder))) or is_theirs:
                self.adopted.append(run)
            elif only_new and (job or cancelled or state_there != "waiting"):
                self.stopped.append(run)
            else:
                self.open.append(run)


class Launcher(Protocol):
    """Trains runs, here or elsewhere. `submit` starts them, `cancel` ends them, and the other
    methods leave them alone. What a launcher says about the state of a run is ignored if the run's
    record shows that the run is over, or if a process holds the run's lock (`state/status.py`)."""

    def submit(self, study: Study, wanted: Callable[[PlannedRun], bool] = lambda run: True) -> int:
        """Train every wanted run that is not over (done or diverged), or have it trained, and print
        what happens. A run with a `prefix` waits until that run is over, which is wanted with it.
        Returns the exit status of the command. Raises `UserError` if nothing can be
        started."""

    def jobs(self, root: Path) -> dict[str, Job]:
        """The jobs of a study by run id; runs without a job are left out. Raises `UserError` if the
        jobs cannot be asked for."""

    def cancel(self, root: Path, wanted: Callable[[str], bool]) -> set[str]:
        """Stop the runs whose ids are wanted, also those that have not begun. A run that is
        training writes a checkpoint first. Returns the ids of the stopped runs. Raises `UserError`
        if the launcher's jobs cannot be stopped."""

    def hint(self, root: Path, waiting: Collection[str]) -> str:
        """Say what to do about runs that wait for somebody to submit them; empty if they need
        nobody. `waiting`: the ids of the study's runs without a record."""

    def logs(self, root: Path, run_id: str) -> list[Path]:
        """Paths of the launcher's own logs of a run. The files need not exist (yet)."""

    def allocation(self, study: Study, run: PlannedRun) -> Allocation:
        """The resources that a run of a study would get."""


@dataclass(frozen=True)
class Options:
    """The command line's options about how runs are trained."""

    parallel: int | None = None
    """How many runs train at a time. The default on this machine is as many as it has cores for, or
    one if any run may use a GPU; the default with Slurm is the profile's `parallel`."""
    processes: int = 1
    """Ranks of each run on this machine."""
    profile: Path | None = None
    """A TOML file with what a launcher has to know about the machines; each launcher has a form of
    its own (`slurm.profile`)."""
    dry: bool = False
    """Print what would be done, and do nothing. Only the Slurm launcher supports this."""
    top_up: bool = False
    """Submit only runs that never had a job, and wait with those for which a cluster has no room
    yet. Only the Slurm launcher supports this."""
    command: tuple[str, ...] = ()
    """The words after `tst-study` that submit the study, so that a job can do so later; empty if
    they are not known."""
    is_part: bool = False
    """Whether these words name only some of the study's runs."""


def launcher_of(name: str | None, options: Options = Options()) -> Launcher:
    """Return the launcher of this name. Without a name it is the one that the profile's key
    `launcher` names, Slurm's if it has none; without a profile it is this machine's. Raises
    `UserError` for an unknown name, and for a launcher that cannot be imported."""
    if name is None and options.profile:
        name = str(read_toml(options.profile).get("launcher", "slurm"))
    known = _known()
    module, _, kind = known[one_of(name or "local", known, "launcher")].partition(":")
    try:
        made: Launcher = getattr(import_module(module), kind)(options)
    except ImportError as error:
        raise UserError(f"launcher {name}: {error}; reinstall or remove its package") from error
    return made


def launchers() -> list[Launcher]:
    """Return all launchers. Any of them can be asked about the jobs of any study. One that cannot
    be imported is named and left out."""
    made = []
    for name in _known():
        try:
            made.append(launcher_of(name))
        except UserError as error:
            print(f"left out: {error}", file=sys.stderr)
    return made


def _known() -> dict[str, str]:
    return {each.name: each.value for each in entry_points(group="tst_study.launchers")} | LAUNCHERS


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
