"""The building blocks from which a study is declared: products of set-ups, superpositions and seeds
(`Part`), and choices among set-ups such as learning-rate sweeps (`Tuning`)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tst_study.analysis.verdict.question import Arm, Question, Value
from tst_study.config.schema import Config, SuperposedPhase
from tst_study.experiments.corpora import Recipe
from tst_study.experiments.studies.scales import SCALES, Scale
from tst_study.experiments.studies.setting import BASELINE, Setting
from tst_study.experiments.study import Results


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
    decides: SuperposedPhase | None = None
    """The only arm whose best set-up `then` needs; by default it needs that of every arm."""
    role: str = "pilot"
    """The role of the ladders' runs. A pilot run is never a result. Give "" for the usual roles if
    the seeds are those of measured runs, one of which may be the winner itself."""

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

        If every rung of an arm that is needed (`decides`) has a seed that diverged, there are no
        set-ups either, and `results.dead_end` is told so.
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
        for arm, (loss, setting) in best.items():
            if math.isinf(loss) and self.decides in (None, arm):
                name = setting.grid or setting["model.preset"]
                results.dead_end(f"{name}: every candidate diverged; try lower learning rates")
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
        rungs = [
            [setting.config(study, arm, seed, self.role) for seed in self.seeds]
            for setting in ladder
        ]
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
        return self._climbed(ladder, arm, study, results, tried, extensions - 1)


def choice(
    candidates: Iterable[Setting],
    then: Callable[[Setting], Sequence[Part]],
    arms: tuple[SuperposedPhase, ...] = (BASELINE,),
    seeds: Sequence[int] = range(1),
    role: str = "",
) -> Tuning:
    """Return a choice among set-ups: `then` is called with the one whose baselines have the lowest
    mean loss over the seeds.

    `arms`: the arms that are trained at each candidate; the baseline must be one of them.
    `role`: as in `Tuning`.
    """
    ladders = tuple((setting,) for setting in candidates)
    return Tuning(ladders, arms, lambda best: then(best[BASELINE]), seeds, 0, BASELINE, role)


def _mean_loss(runs: Sequence[Config], results: Results) -> float:
    """Return the mean held-out loss of runs: NaN until all are over, infinite if one diverged."""
    losses = [results.held_out(run) for run in runs]
    return sum(math.nan if loss is None else loss for loss in losses) / len(losses)


def _scaled(setting: Setting, factor: float) -> Setting:
    return setting.with_rate(float(f"{setting.learning_rate * factor:.3g}"))


@dataclass(frozen=True)
class Declared:
    """A study in Python: what is trained, most urgent first, and the questions, which are declared
    before any run. Either is a list, or for a study with scales a function of the scale."""

    title: str
    claims: str
    """One or two sentences on what the study asks and can show."""
    parts: Sequence[Part | Tuning] | Callable[[Scale], Sequence[Part | Tuning]]
    questions: Sequence[Question] | Callable[[Scale], Sequence[Question]] = ()
    scales: Sequence[str] = tuple(SCALES)
    """The names of its scales, if `parts` is a function."""
    texts: Sequence[Recipe] = ()
    """How texts are made that the runs read and this package does not know."""


def arm(name: str, where: Mapping[str, Any], *phases: SuperposedPhase) -> Arm:
    """Return the runs with one of these superpositions, found by its declared keys. `where`: as in
    `Arm`. An arm of several superpositions is for studies in which a pilot sweep chooses one."""
    tables = [phase.model_dump(mode="json") for phase in phases]
    return Arm(
        name=name,
        where={
            **{f"superposition.{key}": one_or_all(t[key] for t in tables) for key in tables[0]},
            **where,
        },
    )


def one_or_all(values: Iterable[Any]) -> Value | tuple[Value, ...]:
    """Return values of the config as an `Arm` names them: each once, and one of them as it is."""
    plain = (each if isinstance(each, int | float | str) else json.dumps(each) for each in values)
    several = tuple(dict.fromkeys(plain))
    return several[0] if len(several) == 1 else several


def against_baseline(
    setting: Setting, arms: Iterable[SuperposedPhase], seeds: range = range(1)
) -> Part:
    """Return the baseline and these arms at one set-up."""
    return Part((setting,), (BASELINE, *arms), seeds)


def grid(
    bag_sizes: Sequence[int], step_ratios: Sequence[float], **more: object
) -> list[SuperposedPhase]:
    """Return every combination of s and r, with the keys `more` of the config's `superposition`.
    All r of one s stand together, because they share a prefix run."""
    return [
        SuperposedPhase.model_validate({"bag_size": s, "step_ratio": r, **more})
        for s in bag_sizes
        for r in step_ratios
    ]
