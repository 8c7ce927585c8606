"""Loss and gradients of one step of each phase, as the trainer computes them in any layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiny_runs import tiny
from tst_study.config.schema import Config
from tst_study.parallel.optimizer import ModelOptimizer
from tst_study.record.reader import read
from tst_study.train import train

Gradients = dict[str, torch.Tensor]

# One superposed and one recovery step that leave the weights where they are.
STANDING_STILL = (
    "schedule.steps=2",
    "schedule.warmup_steps=0",
    "optimizer.learning_rate=1e-30",
    "optimizer.gradient_clip=0.0",
)


def standing_still(corpus: Path, *overrides: str) -> Config:
    return tiny(corpus, *overrides, *STANDING_STILL)


def step_gradients(config: Config, folder: Path) -> list[Gradients]:
    """On every rank: the gradients that each optimizer step of a run uses, by parameter."""
    seen: list[Gradients] = []
    step = ModelOptimizer.step

    def recording_step(self: ModelOptimizer, learning_rate: float) -> torch.Tensor:
        norm = step(self, learning_rate)
        named = self.model.module.named_parameters()
        seen.append({name: p.main_grad.clone() for name, p in named})
        return norm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelOptimizer, "step", recording_step)
        train(config, folder, progress=False)
    return seen


def assert_same_steps(
    one: list[Gradients], folder_of_one: Path, other: list[Gradients], folder_of_other: Path
) -> None:
    """Losses and gradients within 1e-6, relative to the norm of each parameter's gradient."""
    assert len(one) == len(other) == 2
    for mine, theirs in zip(one, other, strict=True):
        for name, gradient in theirs.items():
            difference = (mine[name] - gradient).norm() / gradient.norm()
            assert difference <= 1e-6, name
    losses = [[row["loss"] for row in read(f).metrics] for f in (folder_of_one, folder_of_other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
