"""Update rules: which torch optimizers turn a model's gradients into its next weights.

A rule sees weights, gradients and learning rate, and nothing of reduction, clipping, mixed
precision or checkpoints: those are `optimizer.py`'s and the same for all rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from tst_study.config.optimizer_kinds import OptimizerName
from tst_study.config.schema import Optimizer


@dataclass(frozen=True)
class MainWeight:
    """One parameter, as an update rule sees it."""

    main: Tensor
    """(n,) float32: the part of the flattened parameter that this rank updates. Its `grad` is set
    before each step."""
    decays: bool
    projections: Projections | None
    """How the parameter divides into matrices of attention or a feed-forward layer; None for all
    other parameters."""


def adamw(weights: Sequence[MainWeight], config: Optimizer) -> list[torch.optim.Optimizer]:
    """Decoupled weight decay (Loshchilov and Hutter, 2019), in one fused kernel per group."""
    decayed = [weight.main for weight in weights if weight.decays]
    others = [weight.main for weight in weights if not weight.decays]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [
        torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=True,
        )
    ]


def muon(weights: Sequence[MainWeight], config: Optimizer) -> list[torch.optim.Optimizer]:
    """Muon for the hidden projections, AdamW for embeddings, head, norms and routers."""
    matrices = [(w.main, w.projections) for w in weights if w.projections is not None]
    others = [weight for weight in weights if weight.projections is None]
    hidden = Muon(
        matrices, config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
    )
    return [hidden, *adamw(others, config)]


QUINTIC = 3.4445, -4.7750, 2.0315
"""Coefficients a, b, c of the Newton-Schulz iteration, which maps each singular value x to a·x +
b·x³ + c·x⁵. They make it steep at zero, so that few iterations are enough; in return, singular
values end between about 0.7 and 1.2 rather than at 1."""
ITERATIONS = 5
SCALE = 0.2
"""Root mean square to which updates are scaled: that of AdamW's updates, measured by Liu et al."""


class Muon(torch.optim.Optimizer):
    """Muon: momentum whose matrices are made orthogonal before they are applied.

    Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), with the update
    scaled to the root mean square of AdamW's (Liu et al., "Muon is scalable for LLM training",
    2025), so that AdamW's learning rate and weight decay serve. The same as
    `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")`, with Nesterov's momentum, but for weights as
    Megatron keeps them: each projection of a joined tensor is a matrix by itself, and experts are
    orthogonalized in one batch.
    """

    def __init__(
        self,
        weights: Sequence[tuple[Tensor, Projections]],
        learning_rate: float,
        *,
        momentum: float,
        weight_decay: float,
    ) -> None:
        groups = [{"params": [weight], "projections": inner} for weight, inner in weights]
        defaults = {"lr": learning_rate, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (weight,) = group["params"]
            state: dict[str, Any] = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            momentum = state["momentum"].lerp_(weight.grad, 1.0 - group["momentum"])
            update = weight.grad.lerp(momentum, group["momentum"])
            for part in group["projections"].split(update):
                matrices = group["projections"].matrices(part)
                scale = SCALE * math.sqrt(max(matrices.shape[-2:]))
                part.copy_(orthogonalized(matrices).mul_(scale).view(part.shape))
            weight.mul_(1.0 - group["lr"] * group["weight_decay"])
            weight.add_(update, alpha=-group["lr"])


def orthogonalized(matrices: Tensor) -> Tensor:
    """(n, rows, columns) -> about U·Vᵀ of each matrix U·S·Vᵀ, by Newton-Schulz iterations."""
    a, b, c = QUINTIC
    x = matrices.to(working_dtype(matrices.device))
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype)


def working_dtype(device: torch.device) -> torch.dtype:
    """The dtype of Newton-Schulz iterations: bfloat16, which is precise enough, on a GPU; float32
    on a CPU, which takes thirty times as long in bfloat16 if it has no instructions for it."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


@dataclass(frozen=True)
class Projections:
    """How one of Megatron's tensors divides into projections. It may hold several: queries, keys
    and values, one group of heads after another; gate and upward projection; or the experts of a
    rank.

    The tensor is (`blocks`, sum of `rows`, columns): every block holds `rows[i]` rows of projection
    i. Blocks are groups of heads, or experts.
    """

    blocks: int
    rows: tuple[int, ...]
    joined: bool
    """True where a projection's rows from all blocks form one matrix (groups of heads), False where
    those of each block are a matrix (experts)."""

    def split(self, tensor: Tensor) -> list[Tensor]:
        """A tensor in any shape -> a view (blocks, rows, columns) per projection."""
        blocks = tensor.view(self.blocks, sum(self.rows), -1)
        return list(blocks.split(self.rows, dim=1))

    def matrices(self, part: Tensor) -> Tensor:
        """One of `split`'s views -> (matrices, rows, columns), a copy if there is no such view."""
        return part.reshape(1, -1, part.shape[-1]) if self.joined else part


def projections_of(
    name: str, shape: tuple[int, ...], config: TransformerConfig
) -> Projections | None:
    """Find the projections in a parameter by its name; None if it is no hidden projection. The
    parameter has to be whole: Muon works on one tensor rank only."""
    match = re.search(r"\.linear_(qkv|proj|fc1|fc2)\b", name)
    if match is None:
        return None
    rows, experts = shape[-2], shape[0] if len(shape) == 3 else 1
    if match[1] == "qkv":
        key, groups = config.kv_channels, config.num_query_groups
        assert key is not None
        return Projections(groups, (rows // groups - 2 * key, key, key), joined=True)
    parts = 2 if match[1] == "fc1" else 1
    return Projections(experts, (rows // parts,) * parts, joined=False)


RULES: dict[
    OptimizerName, Callable[[Sequence[MainWeight], Optimizer], list[torch.optim.Optimizer]]
] = {"adamw": adamw, "muon": muon}

STEP = "step"
STATES: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: (STEP, "exp_avg", "exp_avg_sq"),
    Muon: ("momentum",),
}
"""Names of the states that each optimizer keeps for a weight; all but the count of steps have the
weight's shape."""
