"""From a study to runs with an identity, a folder and a state."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.study import Results, Study
from tst_study import run_record
from tst_study.config import Config, Data
from tst_study.errors import UserError
from tst_study.run_identity import fingerprint, run_id


@dataclass(frozen=True)
class PlannedRun:
    config: Config
    fingerprint: str
    folder: Path

    @property
    def run_id(self) -> str:
        return self.folder.name


@dataclass
class Planner:
    """Plans a study into `root`; one planner serves for as long as its corpora do not change."""

    study: Study
    root: Path
    _data: dict[tuple[Data, int, int], dict[str, Any]] = field(default_factory=dict)
    _losses: dict[str, float] = field(default_factory=dict)
    _there: dict[str, str] = field(default_factory=dict)
    """Run folders by their digits: the same identity is the same run, whatever name it had."""

    def decided(self) -> list[PlannedRun]:
        """Every run that the results so far decide, each once, most urgent first."""
        return self._plan(self)

    def whole(self) -> list[PlannedRun]:
        """The study to its end, had every undecided choice fallen on its first candidate: as many
        runs of the same cost as there will be, some perhaps of another learning rate."""
        return self._plan(_Pretended(self))

    def held_out(self, config: Config) -> float | None:
        run = self.planned(config)
        if run.fingerprint not in self._losses:
            loss = final_loss(run)
            if loss is None:
                return None
            self._losses[run.fingerprint] = loss
        return self._losses[run.fingerprint]

    def planned(self, config: Config) -> PlannedRun:
        """Raises `UserError` where the corpora are not prepared."""
        from tst_study.data.of_config import fingerprints

        # The files are read once, not once per run.
        key = (config.data, config.model.vocabulary_size, config.batch.sequence_length)
        if key not in self._data:
            self._data[key] = fingerprints(config)
        identity = fingerprint(config, self._data[key])
        name = self._there.get(identity[:8], run_id(config, identity))
        return PlannedRun(config, identity, self.root / name)

    def _plan(self, results: Results) -> list[PlannedRun]:
        if self.root.is_dir():
            self._there = {path.name[-8:]: path.name for path in self.root.iterdir()}
        runs: dict[str, PlannedRun] = {}
        for config in self.study.runs(results):
            run = self.planned(config)
            # The same identity is the same run: the winner of a sweep is a baseline as well.
            runs.setdefault(run.fingerprint, run)
        return list(runs.values())


@dataclass(frozen=True)
class _Pretended:
    known: Results

    def held_out(self, config: Config) -> float | None:
        loss = self.known.held_out(config)
        return 0.0 if loss is None else loss


def state(run: PlannedRun) -> str:
    """The run's own word: `waiting` before it said any. Raises `UserError` where the folder holds
    another run."""
    if run_record.is_run_folder(run.folder):
        there = run_record.read_header(run.folder)["fingerprint"]
        if there != run.fingerprint:
            raise UserError(
                f"{run.folder}: holds run {there[:16]}, not {run.fingerprint[:16]} of this study; "
                "move it away"
            )
    status = run_record.read_status(run.folder)
    return status["state"] if status else "waiting"


def final_loss(run: PlannedRun) -> float | None:
    """Held-out loss behind the last step of a run that is over; None before."""
    ended = state(run)
    if ended == "diverged":
        return float("inf")
    if ended != "done":
        return None
    rows = [
        row
        for row in run_record.read(run.folder).evals
        if row["step"] == run.config.schedule.steps and "task" not in row
    ]
    if not rows:
        raise UserError(
            f"{run.folder}: is done but holds no evaluation of its last step; delete the folder "
            "and submit again"
        )
    return rows[-1]["nats_per_token"]
