"""From a study to runs with an identity, a folder, a state and, where they share one, a trunk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.study import Results, Study
from tst_study import run_record
from tst_study.checkpoint_places import checkpoint_steps
from tst_study.config import Config, Data
from tst_study.errors import UserError
from tst_study.run_identity import fingerprint, run_id


@dataclass(frozen=True)
class PlannedRun:
    config: Config
    """As it will be trained: a branch's names the checkpoint that it forks from."""
    fingerprint: str
    folder: Path
    trunk: PlannedRun | None = None

    @property
    def run_id(self) -> str:
        return self.folder.name

    @property
    def steps(self) -> int:
        """The last step that it trains."""
        schedule = self.config.schedule
        return schedule.stop_after or schedule.steps

    @property
    def first_step(self) -> int:
        fork = self.config.execution.fork_from
        return fork.step if fork else 0


@dataclass
class Planner:
    """Plans a study into `root`; one planner serves for as long as its corpora do not change."""

    study: Study
    root: Path
    share: bool = True
    """Train what runs have in common once (`trunks.py`)."""
    unprepared: bool = False
    """Plan without the corpora too: identities and folders are provisional then."""
    _data: dict[tuple[Data, int, int], dict[str, Any]] = field(default_factory=dict)
    _identities: dict[int, tuple[Config, str]] = field(default_factory=dict)
    """By the config's `id`: a study hands out the same objects again and again."""
    _losses: dict[str, float] = field(default_factory=dict)
    _there: dict[str, str] = field(default_factory=dict)
    """Run folders by their digits: the same identity is the same run, whatever name it had."""

    def decided(self) -> list[PlannedRun]:
        """Every run that the results so far decide, each once, most urgent first; trunks stand
        before their branches."""
        return self._with_trunks(self._plan(self))

    def whole(self) -> list[PlannedRun]:
        """The study to its end, had every undecided choice fallen on its first candidate: as many
        runs of the same cost as there will be, some perhaps of another learning rate."""
        return self._with_trunks(self._plan(_Pretended(self)))

    def asked_for(self) -> list[PlannedRun]:
        """What the study itself lists, without trunks, as if each run were trained alone."""
        return self._plan(self)

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
        known = self._identities.get(id(config))
        if known is None:
            known = (config, fingerprint(config, self.data(config)))
            self._identities[id(config)] = known
        identity = known[1]
        name = self._there.get(identity[:8], run_id(config, identity))
        return PlannedRun(config, identity, self.root / name)

    def planned_trunk(self, config: Config) -> PlannedRun:
        """The same for a config made anew at every plan."""
        identity = fingerprint(config, self.data(config))
        name = self._there.get(identity[:8], run_id(config, identity))
        return PlannedRun(config, identity, self.root / name)

    def data(self, config: Config) -> dict[str, Any]:
        """Fingerprints of the corpora; their files are read once, not once per run."""
        from tst_study.data.run_data import fingerprints

        key = (config.data, config.model.vocabulary_size, config.batch.sequence_length)
        if key not in self._data:
            try:
                self._data[key] = fingerprints(config)
            except UserError:
                if not self.unprepared:
                    raise
                self._data[key] = {"not prepared": [c.path for c in config.data.corpora]}
        return self._data[key]

    def _plan(self, results: Results) -> list[PlannedRun]:
        if self.root.is_dir():
            self._there = {path.name[-8:]: path.name for path in self.root.iterdir()}
        runs: dict[str, PlannedRun] = {}
        for config in self.study.runs(results):
            run = self.planned(config)
            # The same identity is the same run: the winner of a sweep is a baseline as well.
            runs.setdefault(run.fingerprint, run)
        return list(runs.values())

    def _with_trunks(self, runs: list[PlannedRun]) -> list[PlannedRun]:
        from experiments.trunks import with_trunks

        return with_trunks(runs, self) if self.share else runs


@dataclass(frozen=True)
class _Pretended:
    known: Results

    def held_out(self, config: Config) -> float | None:
        loss = self.known.held_out(config)
        return 0.0 if loss is None else loss


def state(run: PlannedRun) -> str:
    """The run's own word: `waiting` before it said any. Raises `UserError` where the folder holds
    another run."""
    try:
        header = (run.folder / "run.json").read_bytes()
    except FileNotFoundError:
        pass
    else:
        if run.fingerprint.encode() not in header:
            there = run_record.read_header(run.folder)["fingerprint"]
            raise UserError(
                f"{run.folder}: holds run {there[:16]}, not {run.fingerprint[:16]} of this study; "
                "move it away"
            )
    status = run_record.read_status(run.folder)
    return status["state"] if status else "waiting"


def has_checkpoint(run: PlannedRun) -> bool:
    return bool(checkpoint_steps(run.folder))


def total_flops(runs: Iterable[PlannedRun]) -> int:
    """Of the steps that the runs train themselves, without those that they fork behind."""
    from tst_study.compute_cost import count_flops

    return sum(count_flops(run.config).per_step * (run.steps - run.first_step) for run in runs)


def final_loss(run: PlannedRun) -> float | None:
    """Held-out loss behind the last step of a run that is over; None before."""
    ended = state(run)
    if ended == "diverged":
        return float("inf")
    if ended != "done":
        return None
    rows = [
        row
        for row in run_record.read_evaluations(run.folder)
        if row["step"] == run.config.schedule.steps and "task" not in row
    ]
    if not rows:
        raise UserError(
            f"{run.folder}: is done but holds no evaluation of its last step; delete the folder "
            "and submit again"
        )
    return rows[-1]["nats_per_token"]
