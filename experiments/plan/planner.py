"""From a study to runs with an identity, a folder, a state and, where they share one, a trunk."""

from dataclasses import dataclass, field
from pathlib import Path

from experiments.plan.planned_run import Identities, PlannedRun, final_loss
from experiments.plan.trunks import with_trunks
from experiments.study import Results, Study
from tst_study.config.schema import Config


@dataclass
class Planner:
    """Plans a study into `root`; one planner serves for as long as its corpora do not change."""

    study: Study
    root: Path
    share: bool = True
    """Train what runs have in common once (`trunks.py`)."""
    unprepared: bool = False
    """Plan without the corpora too: identities and folders are provisional then."""
    identities: Identities = field(init=False)
    _losses: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.identities = Identities(self.root, self.unprepared)

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

    def dead_ends(self) -> list[str]:
        """A line for each choice of the study that nothing can follow."""
        self.identities.look()
        return self.study.dead_ends(self)

    def held_out(self, config: Config) -> float | None:
        run = self.identities.planned(config)
        if run.fingerprint not in self._losses:
            loss = final_loss(run)
            if loss is None:
                return None
            self._losses[run.fingerprint] = loss
        return self._losses[run.fingerprint]

    def _plan(self, results: Results) -> list[PlannedRun]:
        self.identities.look()
        runs: dict[str, PlannedRun] = {}
        for config in self.study.runs(results):
            run = self.identities.planned(config)
            # The same identity is the same run: the winner of a sweep is a baseline as well.
            runs.setdefault(run.fingerprint, run)
        return list(runs.values())

    def _with_trunks(self, runs: list[PlannedRun]) -> list[PlannedRun]:
        return with_trunks(runs, self.identities) if self.share else runs


@dataclass(frozen=True)
class _Pretended:
    known: Results

    def held_out(self, config: Config) -> float | None:
        loss = self.known.held_out(config)
        return 0.0 if loss is None else loss
