"""Muon: momentum whose matrices are made orthogonal before they are applied.

Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), with the update
scaled to the root mean square of AdamW's (Liu et al., "Muon is scalable for LLM training", 2025),
so that AdamW's learning rate and weight decay serve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tst_study.megatron.projections import Projections

QUINTIC = 3.4445, -4.7750, 2.0315
"""Coefficients of the iteration: steepest at zero, at the price of singular values that end
between about 0.7 and 1.2 and not at 1."""
ITERATIONS = 5
SCALE = 0.2
"""Root mean square of an AdamW update, as measured by Liu et al."""


class Muon(torch.optim.Optimizer):
    """`torch.optim.Muon(adjust_lr_fn="match_rms_adamw")`, with Nesterov's momentum, for weights
    as Megatron keeps them: each projection of a joined tensor is a matrix by itself, and experts
    are orthogonalized side by side."""

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
    """bfloat16 is precise enough, but without instructions for it a processor takes thirty times
    as long as in float32."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32
