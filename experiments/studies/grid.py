"""The building blocks from which a study is declared: products of set-ups, superpositions and seeds
(`Part`), and learning-rate sweeps (`Tuning`)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tst_study.analysis.verdict.question import Question, Value
from tst_study.config.schema import Config, SuperposedPhase
from tst_study.experiments.corpora import Recipe
from tst_study.experiments.studies.setting import Setting
from tst_study.experiments.study import Results

ALL_DIVERGED = "every candidate diverged; try lower learning rates"


@dataclass(frozen=True)
class Part:
    """The runs of every arm at every set-up with every seed."""

    settings: tuple[Setting, ...]
    arms: tuple[SuperposedPhase, ...]
    seeds: Sequence[int] = range(1)

    def runs(self, study: str, results: Results | None = None) -> list[Config]:
        """List the runs of the study of this name, all of one seed before those of the next: so
        every arm has a result early, and the intervals over seeds follow later."""
        return [
            setting.config(study, arm, seed)
            for seed in self.seeds
            for setting in self.settings
            for arm in self.arms
        ]


@dataclass(frozen=True)
class Tuning:
    """A learning-rate sweep for each arm, and the runs that are trained at the rates it chooses.

    A ladder is a sequence of set-ups, its rungs, with rising learning rates. While an arm's best
    rung is the first or the last one, the ladder is extended beyond it by a factor of √2 in the
    rate, at most `extensions` times. There may be several ladders, such as one for each batch size;
    an arm takes the best rung of all."""

    ladders: tuple[tuple[Setting, ...], ...]
    """For each ladder, its set-ups with rising rates."""
    arms: tuple[SuperposedPhase, ...]
    then: Callable[[Mapping[SuperposedPhase, Setting]], Sequence[Part | Tuning]]
    """Returns the parts to train next, given a mapping that has the best set-up of every arm and
    begins with the arm that has the lowest loss."""
    seeds: Sequence[int] = range(1)
    extensions: int = 2

    def runs(self, study: str, results: Results) -> list[Config]:
        """List the runs of all rungs and, once all their losses are known, also the runs that
        follow. `study`: the name of the study."""
        tried, best = self.best(study, results)
        following = self.then(best) if best else ()
        return [*tried, *(run for part in following for run in part.runs(study, results))]

    def best(
        self, study: str, results: Results
    ) -> tuple[list[Config], dict[SuperposedPhase, Setting]]:
        """Return the runs of all rungs, and the best set-up of every arm, that of the lowest loss
        first; no set-ups while losses are missing.

        If every rung of an arm has a seed that diverged, there are no set-ups either, and
        `results.dead_end` is told so.
        """
        tried: list[Config] = []
        best: dict[SuperposedPhase, tuple[float, Setting]] = {}
        for arm in self.arms:
            rungs = [
                self._climbed(ladder, arm, study, results, tried, self.extensions)
                for ladder in self.ladders
            ]
            if not any(math.isnan(loss) for loss, _ in rungs):
                best[arm] = min(rungs, key=lambda rung: rung[0])
        if len(best) < len(self.arms):
            return tried, {}
        for loss, setting in best.values():
            if math.isinf(loss):
                name = setting.grid or setting["model.preset"]
                results.dead_end(f"{name}: {ALL_DIVERGED}")
                return tried, {}
        order = sorted(best, key=lambda arm: best[arm][0])
        return tried, {arm: best[arm][1] for arm in order}

    def _climbed(
        self,
        ladder: tuple[Setting, ...],
        arm: SuperposedPhase,
        study: str,
        results: Results,
        tried: list[Config],
        extensions: int,
    ) -> tuple[float, Setting]:
        """Return the mean loss and the set-up of an arm's best rung on one ladder. The loss is NaN
        while results are missing, and infinite if every rung has a seed that diverged. The runs of
        all rungs are added to `tried`."""
        rungs = [[rung.config(study, arm, seed, "pilot") for seed in self.seeds] for rung in ladder]
        tried += [run for runs in rungs for run in runs if run not in tried]
        means = [mean_loss(runs, results) for runs in rungs]
        if any(map(math.isnan, means)):
            return math.nan, ladder[0]
        place = means.index(min(means))
        if not extensions or 0 < place < len(ladder) - 1 or math.isinf(means[place]):
            return means[place], ladder[place]
        if place == 0:
            ladder = (_scaled(ladder[0], 1 / math.sqrt(2)), *ladder)
        else:
            ladder = (*ladder, _scaled(ladder[-1], math.sqrt(2)))
        return self._climbed(ladder, arm, study, results, tried, extensions - 1)


def mean_loss(runs: Sequence[Config], results: Results) -> float:
    """Return the mean held-out loss of runs: NaN until all are over, infinite if one diverged."""
    losses = [results.held_out(run) for run in runs]
    return sum(math.nan if loss is None else loss for loss in losses) / len(losses)


def _scaled(setting: Setting, factor: float) -> Setting:
    return setting.with_rate(float(f"{setting.plain.optimizer.learning_rate * factor:.3g}"))


@dataclass(frozen=True)
class Declared:
    """A study in Python, at one scale."""

    title: str
    claims: str
    """One or two sentences on what the study asks and can show."""
    parts: Sequence[Part | Tuning]
    """What is trained, most urgent first."""
    questions: Sequence[Question] = ()
    """The questions, which are declared before any run."""
    texts: Sequence[Recipe] = ()
    """How texts are made that the runs read and this package does not know."""


def one_or_all(values: Iterable[Any]) -> Value | tuple[Value, ...]:
    """Return values of the config as an `Arm` names them: each once, and one of them as it is."""
    plain = (each if isinstance(each, int | float | str) else json.dumps(each) for each in values)
    several = tuple(dict.fromkeys(plain))
    return several[0] if len(several) == 1 else several
