"""Gradients are the same with buffers or without."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.tiny_runs import VOCABULARY, built, tiny
from tst_study.config.schema import Config, Parallel
from tst_study.model.model import Targets
from tst_study.parallel.forward_backward import MicroBatch, forward_backward
from tst_study.parallel.gradient_buffers import GradientBuffers
from tst_study.superposition.steps import NEXT_TOKEN

IN_BUFFERS = Parallel(optimizer="distributed")


def micro_batches(seed: int) -> list[MicroBatch]:
    ids = torch.randint(VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(seed))
    labels = ids[:, 1:]
    counts = NEXT_TOKEN.count_targets(labels)
    return [
        (NEXT_TOKEN.fold(some[:, :-1]), Targets(some[:, 1:], counts)) for some in ids.split([1, 3])
    ]


def gradients(config: Config, parallel: Parallel) -> list[dict[str, torch.Tensor]]:
    """Of two steps of two micro-batches each."""
    found = []
    with built(config) as (model, _):
        buffers = GradientBuffers(model, parallel)
        for seed in (1, 2):
            buffers.zero_grad_buffer()
            forward_backward(buffers, micro_batches(seed))
            buffers.fill_unwritten()
            found.append({name: p.main_grad.clone() for name, p in model.named_parameters()})
    return found


def test_without_buffers_gradients_are_the_same_to_the_bit(words: Path) -> None:
    config = tiny(words)
    alone, in_buffers = gradients(config, Parallel()), gradients(config, IN_BUFFERS)
    for mine, other in zip(alone, in_buffers, strict=True):
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in mine)
    assert any(not torch.equal(alone[0][name], alone[1][name]) for name in alone[0])


def test_a_process_that_is_alone_holds_no_buffers(words: Path) -> None:
    with built(tiny(words)) as (model, _):
        buffers = GradientBuffers(model, Parallel())
        assert [b.grad_data.untyped_storage().nbytes() for b in buffers.buffers] == [0]


def test_where_no_gradient_comes_there_are_zeros(words: Path) -> None:
    with built(tiny(words)) as (model, _):
        buffers = GradientBuffers(model, Parallel())
        forward_backward(buffers, micro_batches(1))
        buffers.zero_grad_buffer()
        buffers.fill_unwritten()
        assert all(not p.main_grad.any() for p in model.parameters())
