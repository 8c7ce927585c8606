"""A generated topical language, on which the mechanism shows in half a minute per run.

Text whose next words depend on a slow topic is what superposition is made for: the sum of a bag
tells the topic. This is a demonstration under chosen conditions, not evidence about real text.
"""

from __future__ import annotations

from dataclasses import dataclass

from experiments.naming import label, role
from experiments.studies.prose_runs import BASELINE, WARMUP_RATIO, execution
from tst_study.config import Batch, Config, Corpus, Data, Model, Optimizer, Schedule, Superposition
from tst_study.model_presets import PRESETS

LEARNING_RATE = 1.5e-3
"""A pilot's; not swept here."""
STEP_RATIO = 0.3
"""The middle of the range 0.2 … 0.4 that the paper recommends."""


@dataclass(frozen=True)
class Generated:
    """The generated part of a study at one scale."""

    study: str
    corpus: str
    vocabulary_size: int
    validation_tokens: int
    steps: int
    seeds: int
    bag_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)

    def runs(self) -> list[Config]:
        """Seed by seed, so that loss over s is a curve early and gets its error bars later."""
        return [self._config(s, seed) for seed in range(self.seeds) for s in self.bag_sizes]

    def _config(self, bag_size: int, seed: int) -> Config:
        superposition = (
            Superposition(bag_size=bag_size, step_ratio=STEP_RATIO) if bag_size > 1 else BASELINE
        )
        return Config(
            study=self.study,
            name=f"generated-{self.steps}-{label(superposition)}-seed{seed}",
            role=role(superposition),
            seed=seed,
            model=Model(**PRESETS["laptop-64"] | {"vocabulary_size": self.vocabulary_size}),
            superposition=superposition,
            data=Data(
                corpora=(Corpus(path=self.corpus),), validation_tokens=self.validation_tokens
            ),
            batch=Batch(sequences=4, sequence_length=64),
            optimizer=Optimizer(learning_rate=LEARNING_RATE),
            schedule=Schedule(steps=self.steps, warmup_steps=round(WARMUP_RATIO * self.steps)),
            execution=execution(self.steps, evaluations=2),
        )
