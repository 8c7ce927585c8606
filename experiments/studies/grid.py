"""Runs as products (set-ups × superpositions × seeds), choices among set-ups, and tuned rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tst_study.analysis.verdict.question import Question
from tst_study.config.schema import Config, SuperposedPhase
from tst_study.experiments.corpora import Recipe
from tst_study.experiments.studies.scales import SCALES, Scale
from tst_study.experiments.studies.setting import BASELINE, Setting
from tst_study.experiments.study import Results

Make = Callable[[Setting, SuperposedPhase, int], Config]
"""Makes the config of a study's run from its set-up, arm and seed."""


@dataclass(frozen=True)
class Part:
    """Every arm on every set-up with every seed."""

    settings: tuple[Setting, ...]
    arms: tuple[SuperposedPhase, ...]
    seeds: range = range(1)

    def runs(self, make: Make, results: Results | None = None) -> list[Config]:
        """Seed by seed, so that a whole picture is there early and gets its intervals later."""
        return [
            make(setting, arm, seed)
            for seed in self.seeds
            for setting in self.settings
            for arm in self.arms
        ]

    def corpora(self) -> list[Recipe]:
        return [recipe for setting in self.settings for recipe in setting.corpora]


@dataclass(frozen=True)
class Tuning:
    """The best learning rate of each arm, and what is trained with it.

    A ladder of rates gets one more rung, at √2 times or 1/√2 of its last rate, while its best rate
    lies at an end, at most `extensions` times. Of several ladders (batches, say) an arm takes the
    best rung of all.
    """

    ladders: tuple[tuple[Setting, ...], ...]
    """Set-ups with rising rates, by ladder."""
    arms: tuple[SuperposedPhase, ...]
    then: Callable[[Mapping[SuperposedPhase, Setting]], Sequence[Part | Tuning]]
    """Returns the parts that follow, given every arm's best set-up, lowest loss first."""
    seeds: range = range(1)
    extensions: int = 2

    def runs(self, make: Make, results: Results) -> list[Config]:
        """List the candidates; once all their losses are known, also the runs that follow. Nothing
        follows where all candidates of an arm diverged, which `results` is told."""
        tried: list[Config] = []
        best: dict[SuperposedPhase, tuple[float, Setting]] = {}
        for arm in self.arms:
            rungs = [
                self._climbed(ladder, arm, make, results, tried, self.extensions)
                for ladder in self.ladders
            ]
            if not any(math.isnan(loss) for loss, _ in rungs):
                best[arm] = min(rungs, key=lambda rung: rung[0])
        if len(best) < len(self.arms):
            return tried
        for loss, setting in best.values():
            if math.isinf(loss):
                name = setting.grid or setting.model
                results.dead_end(f"{name}: every candidate diverged; try lower learning rates")
                return tried
        order = sorted(best, key=lambda arm: best[arm][0])
        following = self.then({arm: best[arm][1] for arm in order})
        return [*tried, *(run for part in following for run in part.runs(make, results))]

    def _climbed(
        self,
        ladder: tuple[Setting, ...],
        arm: SuperposedPhase,
        make: Make,
        results: Results,
        tried: list[Config],
        extensions: int,
    ) -> tuple[float, Setting]:
        """Return mean loss and set-up of the best rung: NaN while results are missing, infinite
        where every rung diverged. The runs to train for it are added to `tried`."""
        rungs = [[make(setting, arm, seed) for seed in self.seeds] for setting in ladder]
        tried += [run for runs in rungs for run in runs if run not in tried]
        means = [_mean_loss(runs, results) for runs in rungs]
        if any(map(math.isnan, means)):
            return math.nan, ladder[0]
        place = means.index(min(means))
        if not extensions or 0 < place < len(ladder) - 1 or math.isinf(means[place]):
            return means[place], ladder[place]
        if place == 0:
            ladder = (_scaled(ladder[0], 1 / math.sqrt(2)), *ladder)
        else:
            ladder = (*ladder, _scaled(ladder[-1], math.sqrt(2)))
        return self._climbed(ladder, arm, make, results, tried, extensions - 1)

    def corpora(self) -> list[Recipe]:
        return [recipe for ladder in self.ladders for rung in ladder for recipe in rung.corpora]


def choice(
    candidates: Iterable[Setting],
    then: Callable[[Setting], Sequence[Part]],
    arms: tuple[SuperposedPhase, ...] = (BASELINE,),
    seeds: range = range(1),
) -> Tuning:
    """Return a choice among set-ups: `then` gets the one with the lowest mean loss of its
    baselines. `arms`: those that each candidate trains, the baseline among them."""
    ladders = tuple((setting,) for setting in candidates)
    return Tuning(ladders, arms, lambda best: then(best[BASELINE]), seeds, extensions=0)


def _mean_loss(runs: Sequence[Config], results: Results) -> float:
    """Return the mean held-out loss of runs: NaN until all are over, infinite where one
    diverged."""
    losses = [results.held_out(run) for run in runs]
    return sum(math.nan if loss is None else loss for loss in losses) / len(losses)


def _scaled(setting: Setting, factor: float) -> Setting:
    return setting.with_rate(float(f"{setting.learning_rate * factor:.3g}"))


@dataclass(frozen=True)
class Declared:
    """A study as its file declares it, at any of its scales."""

    title: str
    claims: str
    """One sentence: what the study can show."""
    parts: Callable[[Scale], Sequence[Part | Tuning]]
    scales: Sequence[str] = SCALES
    questions: Callable[[Scale], Sequence[Question]] = lambda scale: ()
    """The questions that are declared before the runs."""


def against_baseline(
    setting: Setting, arms: Iterable[SuperposedPhase], seeds: range = range(1)
) -> Part:
    return Part((setting,), (BASELINE, *arms), seeds)


def grid(
    bag_sizes: Sequence[int], step_ratios: Sequence[float], **more: object
) -> list[SuperposedPhase]:
    """Every s with every r; all r of one s stand together, as they share a prefix run."""
    return [
        SuperposedPhase.model_validate({"bag_size": s, "step_ratio": r, **more})
        for s in bag_sizes
        for r in step_ratios
    ]
