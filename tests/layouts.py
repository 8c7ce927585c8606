"""Quantities compared between parallel layouts: tensors by global names, losses, gradients."""

from pathlib import Path

import pytest
import torch
from megatron.core.dist_checkpointing.optimizer import get_param_id_to_sharded_param_map
from torch import Tensor

from tests.tiny_runs import tiny
from tst_study.config.schema import Config
from tst_study.parallel.optimizer import ModelOptimizer
from tst_study.parallel.optimizer_shards import parts_of
from tst_study.train import train

# One superposed and one recovery step that leave the weights where they are.
STANDING_STILL = (
    "schedule.steps=2",
    "schedule.warmup_steps=0",
    "optimizer.learning_rate=1e-30",
    "optimizer.gradient_clip=0.0",
)
Shards = list[tuple[str, tuple[int, ...], tuple[int, ...], Tensor]]
"""Global name, global shape, offset in it, and what this rank has of it."""


def standing_still(corpus: Path, *overrides: str) -> Config:
    return tiny(corpus, *overrides, *STANDING_STILL)


def gradients_of_run(config: Config, folder: Path) -> list[Shards]:
    """On every rank: train, and keep what each optimizer step was given, by global name."""
    seen: list[Shards] = []
    step = ModelOptimizer.step

    def recording_step(self: ModelOptimizer, learning_rate: float) -> Tensor:
        norm = step(self, learning_rate)
        # Behind the reduction: a distributed optimizer has the sums of its own shards alone.
        own = self.local([p.main_grad for p in self.parameters])  # type: ignore[attr-defined]
        seen.append(_shards(self, [x.clone() for x in own]))
        return norm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelOptimizer, "step", recording_step)
        train(config, folder, progress=False)
    return seen


def assembled(of_ranks: list[Shards]) -> dict[str, Tensor]:
    """Whole tensors; ranks that hold the same part must agree on it."""
    whole: dict[str, Tensor] = {}
    for name, shape, offset, part in (shard for rank in of_ranks for shard in rank):
        into = whole.setdefault(name, torch.full(shape, torch.nan))
        at = tuple(slice(o, o + n) for o, n in zip(offset[-part.dim() :], part.shape, strict=True))
        place = into[offset[: len(shape) - part.dim()] + at]
        if not place.isnan().all():
            torch.testing.assert_close(place, part, rtol=1e-4, atol=1e-7, msg=name)
        place.copy_(part)
    assert not any(tensor.isnan().any() for tensor in whole.values())
    return whole


def _shards(optimizer: ModelOptimizer, local: list[Tensor]) -> Shards:
    sharded = get_param_id_to_sharded_param_map(
        optimizer.model.module.sharded_state_dict(), optimizer.parameters
    )
    return [
        (part.key, part.global_shape, part.global_offset, part.data)
        for number, (p, mine) in enumerate(zip(optimizer.parameters, local, strict=True))
        for part in parts_of(p, sharded[number], mine, "gradient", optimizer.ranges[p])
    ]


def assert_close_tensors(
    mine: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float
) -> None:
    """Relative to the norm of each tensor."""
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if not tensor.is_floating_point():  # state of a random generator
            continue
        difference = float((mine[name] - tensor).norm() / tensor.norm().clamp(min=1e-12))
        assert difference <= tolerance, f"{name}: {difference:.2g}"
