"""A run of a study: its identity, its folder, and what the folder says of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tst_study.config.schema import Batch, Config, Model
from tst_study.errors import UserError
from tst_study.record import reader as run_record
from tst_study.record.reader import FINAL_STATES

Shape = tuple[Model, Batch]
"""Runs of one shape take one time per step: a step costs the same in both phases."""


@dataclass(frozen=True)
class PlannedRun:
    config: Config
    """As it will be trained: a branch's names the checkpoint that it forks from."""
    fingerprint: str
    folder: Path
    trunk: PlannedRun | None = None
    branch: str = ""
    """Of a trunk, the name of the longest run that forks from it."""
    recorded: tuple[str, float] | None = None
    """State and final held-out loss in the study's archive, for a run that is over there."""

    @property
    def run_id(self) -> str:
        return self.folder.name

    @property
    def names(self) -> tuple[str, ...]:
        """By which resources are asked for: a trunk needs what its branches need."""
        return (self.config.name, self.branch) if self.branch else (self.config.name,)

    @property
    def steps(self) -> int:
        """The last step that it trains."""
        return self.config.schedule.last_step

    @property
    def first_step(self) -> int:
        fork = self.config.execution.fork_from
        return fork.step if fork else 0

    @property
    def shape(self) -> Shape:
        return self.config.model, self.config.batch


def state(run: PlannedRun) -> str:
    """The run's own word: `waiting` before it said any. Raises `UserError` where the folder holds
    another run."""
    try:
        header = (run.folder / "run.json").read_bytes()
    except FileNotFoundError:
        if run.recorded:
            return run.recorded[0]
    else:
        if run.fingerprint.encode() not in header:
            there = run_record.read_header(run.folder)["fingerprint"]
            raise UserError(
                f"{run.folder}: holds run {there[:16]}, not {run.fingerprint[:16]} of this study; "
                "move it away"
            )
    status = run_record.read_status(run.folder)
    return status["state"] if status else "waiting"


def is_over(run: PlannedRun) -> bool:
    """Done or diverged. Raises `UserError` as `state` does."""
    return state(run) in FINAL_STATES


def matches(run_id: str, pattern: str) -> bool:
    """A pattern of the shell's kind, or any part of the name."""
    return fnmatch(run_id, pattern) if set(pattern) & set("*?[") else pattern in run_id


def total_flops(runs: Iterable[PlannedRun]) -> int:
    """Of the steps that the runs train themselves, without those that they fork after."""
    from tst_study.cost.compute import count_flops

    return sum(count_flops(run.config).per_step * (run.steps - run.first_step) for run in runs)


def final_loss(run: PlannedRun) -> float | None:
    """Held-out loss after the last step of a run that is over; None before."""
    ended = state(run)
    if ended == "diverged":
        return float("inf")
    if ended != "done":
        return None
    if run.recorded and not (run.folder / "run.json").exists():
        return run.recorded[1]
    last = run.config.schedule.steps
    rows = [row for row in run_record.read(run.folder).evals if row["step"] == last]
    if not rows:
        raise UserError(
            f"{run.folder}: is done but holds no evaluation of its last step; delete the folder "
            "and submit again"
        )
    return rows[-1]["nats_per_token"]
