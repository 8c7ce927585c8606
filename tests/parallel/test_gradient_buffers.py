"""A step's gradients replace those of the step before."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.tiny_runs import VOCABULARY, built, tiny
from tst_study.config.schema import Parallel
from tst_study.model.model import Targets
from tst_study.parallel.forward_backward import MicroBatch, forward_backward
from tst_study.parallel.gradient_buffers import GradientBuffers
from tst_study.superposition.steps import NEXT_TOKEN


def micro_batches(seed: int) -> list[MicroBatch]:
    ids = torch.randint(VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(seed))
    labels = ids[:, 1:]
    counts = NEXT_TOKEN.count_targets(labels)
    return [
        (NEXT_TOKEN.fold(some[:, :-1]), Targets(some[:, 1:], counts)) for some in ids.split([1, 3])
    ]


def test_where_no_gradient_comes_there_are_zeros(words: Path) -> None:
    with built(tiny(words)) as (model, _):
        buffers = GradientBuffers(model, Parallel())
        forward_backward(buffers, micro_batches(1))
        buffers.zero_grad_buffer()
        buffers.fill_unwritten()
        assert all(not p.main_grad.any() for p in model.parameters())
