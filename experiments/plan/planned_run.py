"""A run of a study: its identity, its folder, and what the folder says about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Batch, Config, Model
from tst_study.errors import UserError
from tst_study.record import reader as run_record
from tst_study.record.reader import FINAL_STATES

DAMAGED = "damaged"
"""State of a run whose record cannot be read. The run is left alone, and all others go on."""
STATES = (
    *("done", "running", "failed", "diverged", "preempted", "interrupted", "queued", "blocked"),
    *("cancelled", DAMAGED, "waiting"),
)
"""The states of runs, in the order in which `totals` lists them."""
Shape = tuple[Model, Batch]
"""The model and the batch of a run. Runs of the same shape are taken to need the same time per
FLOP."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study, which may be trained already."""

    config: Config
    """The config to train. For a branch, `execution.fork_from` names the shared prefix run and the
    step of its checkpoint from which the branch starts."""
    fingerprint: str
    """The run's identity (`config.identity`)."""
    folder: Path
    prefix: PlannedRun | None = None
    """The shared prefix run from which this run forks, if any."""
    branch: str = ""
    """If this is a shared prefix run: the name of one of the runs that fork from it."""
    recorded: tuple[str, float] | None = None
    """State and final held-out loss, if the study's archive holds this run and it is over (done or
    diverged)."""

    @property
    def branch_config(self) -> Config:
        """The config under the name by which a study knows the run: that of a branch, if this is a
        shared prefix run."""
        return self.config.model_copy(update={"name": self.branch}) if self.branch else self.config

    @property
    def run_id(self) -> str:
        return self.folder.name

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which a Slurm profile chooses the run's resources. A shared prefix run also
        goes by the name of a branch, because it needs the same resources."""
        return (self.config.name, self.branch) if self.branch else (self.config.name,)

    @property
    def steps(self) -> int:
        """The last step of the run."""
        return self.config.schedule.last_step

    @property
    def first_step(self) -> int:
        """The number of steps that a shared prefix run trains for this run; 0 without one."""
        fork = self.config.execution.fork_from
        return fork.step if fork else 0

    @property
    def shape(self) -> Shape:
        return self.config.model, self.config.batch


def state_and_damage(run: PlannedRun) -> tuple[str, str]:
    """Return a run's state by its record, and an empty string; or `damaged`, and why the record
    cannot be read.

    If the folder has no `run.json`, and the run is over in the study's archive, the state is the
    one in the archive. Without any record it is `waiting`. Raises `UserError` if the folder holds
    another run.
    """
    there = run.fingerprint
    try:
        try:
            (run.folder / "run.json").stat()
        except FileNotFoundError:
            if run.recorded:
                return run.recorded[0], ""
        else:
            there = run_record.read_header(run.folder)["fingerprint"]
        status = run_record.read_status(run.folder)
    except UserError as error:
        return DAMAGED, f"{error}; move its folder away"
    if there != run.fingerprint:
        raise UserError(
            f"{run.folder}: holds run {there[:16]}, not {run.fingerprint[:16]} of this study; "
            "move it away"
        )
    return (status["state"] if status else "waiting"), ""


def state(run: PlannedRun) -> str:
    """Return only the state from `state_and_damage`."""
    return state_and_damage(run)[0]


def is_over(run: PlannedRun) -> bool:
    """Return whether a run is done or has diverged. Raises `UserError` as `state_and_damage`
    does."""
    return state(run) in FINAL_STATES


def totals(states: Iterable[str]) -> str:
    """Counts of states, such as `12 done, 2 running, 7 waiting`."""
    counts = Counter(states)
    return ", ".join(f"{counts[name]} {name}" for name in STATES if counts[name]) or "no runs"


def matches(run_id: str, pattern: str) -> bool:
    """Return whether a run id matches `pattern`, a shell pattern. A pattern without any of the
    characters `*?[` matches every id that contains it."""
    return fnmatch(run_id, pattern) if set(pattern) & set("*?[") else pattern in run_id


def total_flops(runs: Iterable[PlannedRun]) -> int:
    """Sum the FLOPs of the steps that these runs train themselves, without those of their shared
    prefix runs."""
    from tst_study.cost.compute import flops_until

    total = 0
    for run in runs:
        model, plan = run.config.model, plan_phases(run.config)
        total += flops_until(model, plan, run.steps) - flops_until(model, plan, run.first_step)
    return total


def final_loss(run: PlannedRun) -> float | None:
    """Return the held-out loss, in nats per token, after the last step of a run that is done;
    infinity if it diverged; None if it is not over. Raises `UserError` as `state_and_damage` does,
    and if the record of a run that is done has no such loss."""
    ended = state(run)
    if ended == "diverged":
        return float("inf")
    if ended != "done":
        return None
    if run.recorded and not (run.folder / "run.json").exists():
        return run.recorded[1]
    row = run_record.last_evaluation(run.folder)
    if row is None or row["step"] != run.config.schedule.steps:
        run_record.read(run.folder)  # raises where a damaged line is the reason
        raise UserError(
            f"{run.folder}: is done but holds no evaluation of its last step; delete the folder "
            "and submit again"
        )
    return row["nats_per_token"]
