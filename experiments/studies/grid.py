"""Runs as products: set-ups × superpositions × seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiments.corpora import Recipe
from experiments.studies.setting import BASELINE, Setting
from tst_study.config import Config, Superposition

PAPER_MAIN = Superposition(bag_size=6, step_ratio=0.3)
"""The paper's headline setting."""
SMALL_MAIN = Superposition(bag_size=4, step_ratio=0.2)
"""What a pilot found on two cores."""


@dataclass(frozen=True)
class Part:
    """Every arm on every set-up with every seed."""

    settings: tuple[Setting, ...]
    arms: tuple[Superposition, ...]
    seeds: int = 1

    def runs(self, study: str) -> list[Config]:
        """Seed by seed, so that a whole picture is there early and gets its intervals later."""
        return [
            setting.config(study, arm, seed)
            for seed in range(self.seeds)
            for setting in self.settings
            for arm in self.arms
        ]

    def corpora(self) -> list[Recipe]:
        return [recipe for setting in self.settings for recipe in setting.corpora]


def against_baseline(setting: Setting, arms: Iterable[Superposition], seeds: int = 1) -> Part:
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


def main_of(is_paper: bool) -> Superposition:
    return PAPER_MAIN if is_paper else SMALL_MAIN
