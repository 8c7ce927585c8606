"""Gradients are the same with buffers or without, and however a batch is cut into micro-batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.layouts import assert_close_tensors, gradients_on, standing_still
from tests.parallel.test_parallel_layouts import ALIGNED
from tests.tiny_runs import MIXTURE, VOCABULARY, built, tiny
from tst_study.config.schema import Config, Parallel
from tst_study.data.run_data import open_stream
from tst_study.model.model import Targets
from tst_study.parallel.forward_backward import MicroBatch, forward_backward
from tst_study.parallel.gradient_buffers import GradientBuffers
from tst_study.record.reader import read
from tst_study.superposition.method import NEXT_TOKEN

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


def test_aligned_bags_leave_uneven_numbers_of_labels(documents: Path) -> None:
    _, labels = open_stream(tiny(documents, *ALIGNED)).batch(0)
    assert len({int((row >= 0).sum()) for row in labels}) > 1


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("superposition.mode=output_only", "superposition.align_bags_to_documents=false"),
        ("superposition.mode=input_only",),
        ("superposition.loss=sum_to_one",),
        ("superposition.loss=hinge", "model.tied_embeddings=true"),
        ("superposition.weighting=power_law", *MIXTURE),
    ],
    ids=str,
)
def test_one_two_or_all_sequences_at_a_time_give_one_gradient(
    documents: Path, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    settings = (*ALIGNED, *overrides)
    whole = gradients_on(1, standing_still(documents, *settings), tmp_path / "whole")
    for size in (1, 2):
        config = standing_still(documents, *settings, f"execution.micro_batch={size}")
        cut = gradients_on(1, config, tmp_path / str(size))
        for mine, theirs in zip(cut, whole, strict=True):
            assert_close_tensors(mine, theirs, 1e-6)
        losses = [[row["loss"] for row in read(tmp_path / f).metrics] for f in (str(size), "whole")]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
