"""Whole training steps, ours and plain PyTorch's, as functions without arguments.

Ours is made of the parts that `tst_study.train` runs, in its order; what is left out is reading
the tokens and writing the record.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.plain_model import PlainModel
from tst_study.config import Config, from_dict
from tst_study.cost.parallel_layout import layout_of
from tst_study.megatron.forward_backward import forward_backward, micro_batches
from tst_study.megatron.gradient_buffers import GradientBuffers
from tst_study.megatron.layers import compile_layers
from tst_study.megatron.model import build_model
from tst_study.megatron.optimizer import ModelOptimizer
from tst_study.superposition.method import NEXT_TOKEN, Objective

Step = Callable[[], Tensor]
Compiler = Literal["inductor", "eager"]
"""Backend of torch.compile; `eager` traces without generating code: quick, and no faster."""


def step_config(
    model: dict[str, Any],
    sequences: int,
    length: int,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    device: str = "cpu",
    **superposition: Any,
) -> Config:
    """A run's config around a model; its data are never read."""
    return from_dict(
        {
            "model": model,
            "superposition": superposition,
            "data": {"corpora": [{"path": "synthetic"}]},
            "batch": {"sequences": sequences, "sequence_length": length},
            "optimizer": {"learning_rate": 1e-3},
            "schedule": {"steps": 100},
            "numerics": {"dtype": dtype},
            "execution": {"device": device},
        }
    )


class PackageSteps:
    """One model of ours with its optimizer; a step of either phase runs on the same weights."""

    def __init__(
        self, config: Config, device: torch.device, compiler: Compiler | None = None
    ) -> None:
        self.config, self.device = config, device
        self.model = build_model(config)
        if compiler is not None:
            compile_layers(self.model.decoder.layers, compiler)
        self.data_parallel = GradientBuffers(self.model, layout_of(config))
        self.optimizer = ModelOptimizer(self.data_parallel, config.optimizer)

    def step(self, objective: Objective = NEXT_TOKEN) -> Step:
        """A whole step under this objective, always on the same synthetic tokens."""
        ids, labels = synthetic_tokens(self.config, objective.stride, self.device)

        def run() -> Tensor:
            loss = self.gradients(ids, labels, objective)
            self.optimizer.step(self.config.optimizer.learning_rate)
            return loss

        return run

    def gradients(self, ids: Tensor, labels: Tensor, objective: Objective) -> Tensor:
        """Fill the gradient buffers; returns the loss. ids and labels (b, l·stride)."""
        self.optimizer.zero_gradients()
        valid_counts = objective.count_targets(labels)
        size = self.config.execution.micro_batch or len(ids)
        batch = micro_batches(ids, labels, objective, valid_counts, size)
        return forward_backward(self.data_parallel, batch)


def plain_step(config: Config, device: torch.device, compiler: Compiler | None = None) -> Step:
    """A whole step of plain PyTorch: float32 weights (autocast under bfloat16), fused AdamW."""
    model = PlainModel(config.model).to(device)
    if compiler is not None:
        compile_layers(model.layers, compiler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    ids, labels = synthetic_tokens(config, 1, device)
    half = config.numerics.dtype == "bfloat16"

    def run() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16) if half else nullcontext():
            loss: Tensor = model(ids, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return run


def synthetic_tokens(config: Config, stride: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Uniform token ids and next-token labels (b, l·stride), the same for every caller."""
    generator = torch.Generator().manual_seed(0)
    shape = config.batch.sequences, config.batch.sequence_length * stride + 1
    tokens = torch.randint(config.model.vocabulary_size, shape, generator=generator).to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
