"""Update rules: the torch optimizers that turn a model's gradients into its next weights.

`optimizer.py` chooses a rule by `optimizer.kind`. A rule sees only weights, gradients and the
learning rate. Gradient reduction, clipping, mixed precision and checkpoints are the same for all
rules, and `optimizer.py` does them.
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
    """(n,) float32: the part of the flattened parameter that this rank updates, at full precision
    even if the model itself is in bfloat16. Its `grad` is set before each step."""
    decays: bool
    """Whether weight decay applies to the parameter under AdamW; Muon decays all its matrices."""
    projections: Projections | None
    """How the parameter divides into projection matrices of attention or of a feed-forward layer;
    None for all other parameters."""


def adamw(weights: Sequence[MainWeight], config: Optimizer) -> list[torch.optim.Optimizer]:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), torch's fused implementation.
    Weights that decay and weights that do not are two parameter groups."""
    groups: list[dict[str, Any]] = [
        {"params": params, "weight_decay": decay}
        for decays, decay in ((True, config.weight_decay), (False, 0.0))
        if (params := [weight.main for weight in weights if weight.decays == decays])
    ]
    betas = config.beta1, config.beta2
    return [torch.optim.AdamW(groups, config.learning_rate, betas, config.epsilon, fused=True)]


def muon(weights: Sequence[MainWeight], config: Optimizer) -> list[torch.optim.Optimizer]:
    """Muon for the projections of attention and feed-forward layers; AdamW for embeddings, head,
    norms and routers."""
    matrices = [(w.main, w.projections) for w in weights if w.projections is not None]
    others = [weight for weight in weights if weight.projections is None]
    return [Muon(matrices, config), *adamw(others, config)]


QUINTIC = 3.4445, -4.7750, 2.0315
"""Coefficients a, b, c of the Newton-Schulz iteration, which maps each singular value x to a·x +
b·x³ + c·x⁵. With these values the polynomial is steep at zero, so that few iterations are enough;
in return, singular values end between about 0.7 and 1.2 rather than at 1."""
ITERATIONS = 5
"""Number of Newton-Schulz iterations."""
SCALE = 0.2
"""The approximate root mean square of the entries of Muon's updates, before they are multiplied by
the learning rate. It is that of AdamW's updates, as Liu et al. measured it."""


class Muon(torch.optim.Optimizer):
    """Muon: Nesterov momentum whose update matrices are made orthogonal before they are applied.

    Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), with the update
    scaled to the root mean square of AdamW's (Liu et al., "Muon is scalable for LLM training",
    2025), so that learning rate and weight decay can stay as they are for AdamW. The method is that
    of `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")`, but this class takes weights as Megatron
    keeps them. Where a tensor holds several projections, each of them is treated as a matrix by
    itself, and the matrices of all experts are orthogonalized in one batch.
    """

    def __init__(self, weights: Sequence[tuple[Tensor, Projections]], config: Optimizer) -> None:
        groups = [{"params": [weight], "projections": inner} for weight, inner in weights]
        defaults = config.model_dump(include={"momentum", "weight_decay"})
        super().__init__(groups, {"lr": config.learning_rate, **defaults})

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
    """Make each of the (n, rows, columns) matrices nearly orthogonal by Newton-Schulz iterations: a
    matrix with the singular value decomposition U·S·Vᵀ becomes about U·Vᵀ."""
    a, b, c = QUINTIC
    # bfloat16 is precise enough; a CPU without instructions for it would take thirty times as long.
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype)


@dataclass(frozen=True)
class Projections:
    """The division of one of Megatron's weight tensors into projections. A tensor may hold several:
    queries, keys and values (one group of heads after another), or the gate and the up projection
    of SwiGLU. In a mixture of experts, a tensor holds the projections of all experts of a rank.

    When the tensor is viewed as (`blocks`, sum of `rows`, columns), each of its blocks holds
    `rows[i]` rows of projection i. The blocks are groups of heads, or experts; any other tensor is
    one block.
    """

    blocks: int
    rows: tuple[int, ...]
    joined: bool
    """True if a projection's rows from all blocks together form one matrix (groups of heads); False
    if its rows in each block form a matrix of their own (experts, or a single block)."""

    def split(self, tensor: Tensor) -> list[Tensor]:
        """Split a contiguous tensor of any shape into one view (blocks, `rows[i]`, columns) for
        each projection i."""
        blocks = tensor.view(self.blocks, sum(self.rows), -1)
        return list(blocks.split(self.rows, dim=1))

    def matrices(self, part: Tensor) -> Tensor:
        """Turn one of `split`'s views into a batch of matrices, (matrices, rows, columns). It is a
        view if the memory allows one, else a copy."""
        return part.reshape(1, -1, part.shape[-1]) if self.joined else part


def projections_of(
    name: str, shape: tuple[int, ...], config: TransformerConfig
) -> Projections | None:
    """Find how a parameter divides into projections, by its name; None for embeddings, head, norms
    and routers.

    The result is right only for parameters that are not split over ranks. That is enough, because
    only Muon uses it, and Muon needs whole matrices (`OptimizerKind.needs_whole_matrices`).
    """
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
"""For each `optimizer.kind`, a function of all weights of a rank that returns the optimizers for
them."""

STEP = "step"
"""The name under which torch's AdamW keeps its count of steps."""
STATES: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: (STEP, "exp_avg", "exp_avg_sq"),
    Muon: ("momentum",),
}
"""Names of the states that each optimizer keeps for a weight. All of them have the weight's shape,
except for `STEP`, which is a single number."""
