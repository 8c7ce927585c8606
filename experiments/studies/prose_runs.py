"""Real prose: baseline and superposition at matched FLOPs, rate chosen on the baseline, paired
seeds.

The shape is that of a pilot: BPE of 1,024 words, hidden 64, 2 layers, steps of
16 x 64 latent tokens. Warm-up over the first 5% of the steps, decay over the last 10%, as short
runs have it; everything else is the configuration's default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.naming import label, role
from experiments.study import Results, best_learning_rate
from tst_study.config import (
    Batch,
    Config,
    Corpus,
    Data,
    Execution,
    Model,
    Optimizer,
    Schedule,
    Superposition,
)
from tst_study.model_presets import PRESETS

BASELINE = Superposition()
MAIN = Superposition(bag_size=4, step_ratio=0.2)
"""The pilot's setting: s = 4, r = 0.2."""
WARMUP_RATIO = 0.05


@dataclass(frozen=True)
class Prose:
    """The prose part of a study at one scale."""

    study: str
    corpus: str
    """Prepared folder."""
    validation_tokens: int
    steps: int
    seeds: int
    learning_rates: tuple[float, ...]
    """Swept on the baseline of seed 0; all other runs use the best."""
    sweep_steps: int | None = None
    """Steps of the sweep's runs; `steps` by default, and then the winner is a baseline as well."""
    settings: tuple[Superposition, ...] = (MAIN,)
    """Against the baseline, each with all seeds, most urgent first."""
    settings_steps: int | None = None
    """Steps of all settings but the first; `steps` by default."""
    other_lengths: tuple[int, ...] = ()
    """More numbers of steps for baseline and `MAIN`, at the rate chosen at `steps`."""
    evaluations: int = 8

    def sweep(self) -> dict[float, Config]:
        return {
            rate: self.config(BASELINE, rate, seed=0, steps=self.sweep_steps)
            for rate in self.learning_rates
        }

    def runs(self, results: Results) -> list[Config]:
        """The sweep first; once it has chosen, pair by pair."""
        sweep = self.sweep()
        rate = best_learning_rate(sweep, results)
        if rate is None:
            return list(sweep.values())
        return [*sweep.values(), *self._compared(rate)]

    def _compared(self, rate: float) -> list[Config]:
        first, *others = self.settings
        seeds = range(self.seeds)
        runs = [self.config(arm, rate, seed) for seed in seeds for arm in (BASELINE, first)]
        for steps in self.other_lengths:
            runs += [
                self.config(arm, rate, seed, steps) for seed in seeds for arm in (BASELINE, MAIN)
            ]
        runs += [
            self.config(arm, rate, seed, self.settings_steps) for arm in others for seed in seeds
        ]
        return runs

    def config(
        self, superposition: Superposition, rate: float, seed: int, steps: int | None = None
    ) -> Config:
        steps = steps or self.steps
        method = label(superposition)
        return Config(
            study=self.study,
            name=f"prose-{steps}-{method}-lr{rate:g}-seed{seed}",
            role=role(superposition),
            seed=seed,
            model=Model(**PRESETS["laptop-64"]),
            superposition=superposition,
            data=Data(
                corpora=(Corpus(path=self.corpus),), validation_tokens=self.validation_tokens
            ),
            batch=Batch(sequences=16, sequence_length=64),
            optimizer=Optimizer(learning_rate=rate),
            schedule=Schedule(steps=steps, warmup_steps=round(WARMUP_RATIO * steps)),
            execution=execution(steps, self.evaluations),
        )


def execution(steps: int, evaluations: int) -> Execution:
    """How laptop runs are computed: one thread each, a few hundred rows of log at most."""
    return Execution(
        threads=1,
        log_every=max(10, steps // 400),
        evaluate_every=max(1, steps // evaluations),
        # Half a minute of work at least between checkpoints; a stopped run writes one anyway.
        checkpoint_every=max(2_000, steps // 5),
    )


def grid(bag_sizes: Sequence[int], step_ratios: Sequence[float]) -> list[Superposition]:
    return [Superposition(bag_size=s, step_ratio=r) for s in bag_sizes for r in step_ratios]
