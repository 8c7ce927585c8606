"""What real trainers do around the model: data parallelism and accumulated gradients."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.distributed import run_ranks
from tst_study.superposition import Superposition

STEPS, POSITIONS, WORDS, SEQUENCES = 6, 4, 16, 8


class Model(nn.Module):
    """Embeds in its own `forward`, as the page says."""

    def __init__(self, tst: Superposition) -> None:
        super().__init__()
        self.tst = tst
        self.embedding = nn.Embedding(WORDS, 8)
        self.positions = nn.Parameter(torch.zeros(POSITIONS, 8))
        self.head = nn.Linear(8, WORDS, bias=False)

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        hidden = self.tst.embed(self.embedding, tokens, documents=documents)
        logits: Tensor = self.head((hidden + self.positions).tanh())
        return logits


def trained(kind: str, ranks: int, accumulate: int, masked: bool) -> list[Tensor]:
    """The weights after all steps, each of whose batches is split over ranks and micro-batches.
    `masked`: the parts have targets at different positions, and rows of several documents."""
    torch.manual_seed(0)
    tst = Superposition(bag_size=2, step_ratio=0.5, steps=STEPS, positions=POSITIONS)
    wrapped = model = Model(tst)
    if kind == "DDP":
        wrapped = DistributedDataParallel(model)  # type: ignore[assignment]
    elif kind != "alone":
        mesh = init_device_mesh("cpu", (ranks,))
        if kind == "FSDP2, embedding by itself":
            fully_shard(model.embedding, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rank = dist.get_rank() if ranks > 1 else 0
    for step in range(STEPS):
        seeded, length = torch.Generator().manual_seed(step), tst.raw_length(step) + 1
        tokens = torch.randint(WORDS, (SEQUENCES, length), generator=seeded)
        labels, counts, share = tokens[:, 1:].clone(), None, 1 / accumulate
        texts = torch.zeros_like(tokens)
        if masked:
            labels[3:, -2:] = labels[5:, 1:] = -100
            texts = (torch.rand(tokens.shape, generator=seeded) < 0.2).cumsum(1) - 1
            counts, share = tst.objective(step).count_targets(labels, texts), ranks
        whole = tokens[:, :-1], labels, texts
        parts = (rows.chunk(ranks)[rank].chunk(accumulate) for rows in whole)
        for number, (ids, own, their) in enumerate(zip(*parts, strict=True), start=1):
            documents = their if masked else None
            last = number == accumulate
            if kind.startswith("FSDP2"):
                model.set_requires_gradient_sync(last)  # type: ignore[operator]
            with wrapped.no_sync() if kind == "DDP" and not last else nullcontext():  # type: ignore[operator]
                logits = wrapped(ids, documents)
                given = {"valid_counts": None if kind == "alone" else counts}
                (tst.loss(logits, own, documents=documents, **given) * share).backward()
        optimizer.step()
        optimizer.zero_grad()
        tst.advance()
    weights = (p.detach() for p in model.parameters())
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in weights]


@pytest.mark.parametrize("kind", ["DDP", "FSDP2", "FSDP2, embedding by itself"])
@pytest.mark.parametrize(("accumulate", "masked"), [(1, False), (2, False), (2, True)])
def test_data_parallelism_and_accumulation_train_as_one_process_does(kind, accumulate, masked):
    alone = trained("alone", 1, 1, masked)
    for weights in run_ranks(2, trained, kind, 2, accumulate, masked):
        torch.testing.assert_close(weights, alone)


def tensor_parallel(ranks: int, attached: str = "after") -> list[Tensor]:
    """The loss of a superposed step and the embedding's gradient, the vocabulary over all ranks."""
    torch.manual_seed(0)
    tst = Superposition(bag_size=2, step_ratio=1.0, steps=STEPS, positions=POSITIONS)
    embedding, head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS, bias=False)
    shard: dict[str, Any] = {}
    if attached == "before":
        tst.attach(embedding)
    if ranks > 1:
        mesh = init_device_mesh("cpu", (ranks,))
        parallelize_module(embedding, mesh, RowwiseParallel(input_layouts=Replicate()))
        parallelize_module(head, mesh, ColwiseParallel())
        start = mesh.get_local_rank() * WORDS // ranks
        shard = {"vocabulary_start": start, "group": mesh.get_group()}
        whole = DTensor.from_local(torch.ones(1, POSITIONS, WORDS), mesh, [Replicate()])
        with pytest.raises(ValueError, match=r"logits: a DTensor: give logits\.to_local\(\), and"):
            tst.loss(whole, torch.ones(1, 2 * POSITIONS, dtype=torch.long))
    if attached == "after":
        tst.attach(embedding)
    tokens = torch.randint(WORDS, (SEQUENCES, tst.raw_length(0) + 1))
    loss = tst.loss(head(embedding(tokens[:, :-1])), tokens[:, 1:], **shard)
    loss.backward()
    gradient = embedding.weight.grad
    assert gradient is not None
    return [loss.detach(), gradient.full_tensor() if ranks > 1 else gradient]  # type: ignore[attr-defined]


@pytest.mark.parametrize("attached", ["before", "after"])
def test_torch_s_tensor_parallelism_computes_what_one_process_does(attached):
    alone = tensor_parallel(1)
    for there in run_ranks(2, tensor_parallel, 2, attached):
        torch.testing.assert_close(there, alone)


class Stage(nn.Module):
    """A stage of a pipeline: the first one embeds, the last one has the head."""

    def __init__(self, tst: Superposition, model: Model, first: bool) -> None:
        super().__init__()
        self.tst, self.first = tst, first
        self.part = model.embedding if first else model.head

    def forward(self, given: Tensor) -> Tensor:
        if self.first:
            return self.tst.embed(self.part, given)
        logits: Tensor = self.part(given.tanh())
        return logits


def pipelined(ranks: int) -> list[Tensor]:
    """The gradients of a superposed step on this rank's stage, of two micro-batches."""
    torch.manual_seed(0)
    tst = Superposition(bag_size=2, step_ratio=1.0, steps=STEPS, positions=POSITIONS)
    model = Model(tst)
    tokens = torch.randint(WORDS, (SEQUENCES, tst.raw_length(0) + 1))
    ids, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    stages = [Stage(tst, model, first) for first in (True, False)]
    if ranks == 1:
        tst.loss(stages[1](stages[0](ids)), labels).backward()
        return [parameter.grad for stage in stages for parameter in stage.parameters()]  # type: ignore[misc]
    rank = dist.get_rank()
    stage = PipelineStage(stages[rank], rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=tst.loss)
    schedule.step(ids) if rank == 0 else schedule.step(target=labels)
    return [parameter.grad for parameter in stages[rank].parameters()]  # type: ignore[misc]


def test_a_pipeline_of_torch_trains_as_one_process_does():
    there = run_ranks(2, pipelined, 2)
    torch.testing.assert_close([each for grads in there for each in grads], pipelined(1))
