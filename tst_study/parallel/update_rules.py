"""Update rules: which torch optimizers turn a model's gradients into its next weights.

A rule sees weights, gradients and learning rate, and nothing of reduction, clipping, mixed
precision or checkpoints: those are `optimizer.py`'s and the same for all rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tst_study.config.optimizer_kinds import OptimizerName
from tst_study.config.schema import Optimizer
from tst_study.parallel.muon import Muon, Projections


@dataclass(frozen=True)
class MainWeight:
    """One parameter, as an update rule sees it."""

    main: Tensor
    """(n,) float32: what this rank updates of it, in a row; its `grad` is set before each step."""
    decays: bool
    projections: Projections | None
    """The matrices of attention or a feed-forward layer that it holds; None for all others."""


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


RULES: dict[
    OptimizerName, Callable[[Sequence[MainWeight], Optimizer], list[torch.optim.Optimizer]]
] = {"adamw": adamw, "muon": muon}

STEP = "step"
STATES: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: (STEP, "exp_avg", "exp_avg_sq"),
    Muon: ("momentum",),
}
"""Names of each optimizer's states of a weight; all but the count of steps have its shape."""
