"""Runs as products, set-ups × superpositions × seeds, and as choices among set-ups."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tst_study.analysis.verdict.question import Question
from tst_study.config.schema import Config, Superposition
from tst_study.experiments.corpora import Recipe
from tst_study.experiments.studies.scales import SCALES, Scale
from tst_study.experiments.studies.setting import BASELINE, Setting
from tst_study.experiments.study import Results, best_of

Make = Callable[[Setting, Superposition, int], Config]
"""A set-up's run of this arm and seed, as a study has it trained."""


@dataclass(frozen=True)
class Part:
    """Every arm on every set-up with every seed."""

    settings: tuple[Setting, ...]
    arms: tuple[Superposition, ...]
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
class Choice:
    """Set-ups of which the one with the lowest baselines is taken for what comes after."""

    candidates: tuple[Setting, ...]
    then: Callable[[Setting], Sequence[Part]]
    arms: tuple[Superposition, ...] = (BASELINE,)
    """What each candidate trains; the baselines alone choose."""
    seeds: range = range(1)

    def runs(self, make: Make, results: Results) -> list[Config]:
        """The candidates; once they have all ended, what follows as well, if one can be chosen."""
        tried = Part(self.candidates, self.arms, self.seeds).runs(make)
        baselines = {
            setting: [make(setting, BASELINE, seed) for seed in self.seeds]
            for setting in self.candidates
        }
        best = best_of(baselines, results)
        if best is None:
            return tried
        return [*tried, *(run for part in self.then(best) for run in part.runs(make))]

    def corpora(self) -> list[Recipe]:
        return [recipe for setting in self.candidates for recipe in setting.corpora]


@dataclass(frozen=True)
class Declared:
    """A study as its file declares it, at any of its scales."""

    title: str
    claims: str
    """What it can show."""
    parts: Callable[[Scale], Sequence[Part | Choice]]
    scales: Sequence[str] = SCALES
    questions: Callable[[Scale], Sequence[Question]] = lambda scale: ()
    """What it asks before its runs."""


def against_baseline(
    setting: Setting, arms: Iterable[Superposition], seeds: range = range(1)
) -> Part:
    return Part((setting,), (BASELINE, *arms), seeds)


def grid(
    bag_sizes: Sequence[int], step_ratios: Sequence[float], **more: object
) -> list[Superposition]:
    """Every s with every r; all r of one s stand together, as they share a trunk."""
    return [
        Superposition.model_validate({"bag_size": s, "step_ratio": r, **more})
        for s in bag_sizes
        for r in step_ratios
    ]
