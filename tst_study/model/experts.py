"""The router: Megatron's, with auxiliary losses that no layout changes; and its health."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor


@dataclass
class RoutingLog:
    """What all routers of a rank share during a step: its size, and sums for the log."""

    layers: int
    experts: int
    per_token: int
    positions: int | None = None
    """Latent positions of the whole step; None: of the micro-batch at hand."""
    _sums: Tensor | None = field(default=None, repr=False)

    @classmethod
    def of(cls, model: torch.nn.Module) -> RoutingLog | None:
        """Shared by the routers of this rank's layers; None for a model without experts."""
        config: Any = model.config
        if config.num_moe_experts is None:
            return None
        log = cls(config.num_layers, config.num_moe_experts, config.moe_router_topk)
        # The weight is in the loss already. In this shape, because Megatron's pipeline schedule
        # writes such a one over it.
        MoEAuxLossAutoScaler.main_loss_backward_scale = torch.ones(
            1, device=torch.cuda.current_device()
        )
        for module in model.modules():
            if isinstance(module, Router):
                module.log = log
        return log

    def begin_step(self, positions: int, device: torch.device, *, recording: bool) -> None:
        self.positions = positions
        # Per layer: positions by expert; then all of them, entropy, z-loss and balance loss.
        shape = self.layers, self.experts + 4
        self._sums = torch.zeros(shape, device=device) if recording else None

    def add(self, layer: int, chosen: Tensor, logits: Tensor) -> None:
        """`chosen` and `logits` (positions, experts) of one micro-batch; layers count from 1."""
        if self._sums is None:
            return
        with torch.no_grad():
            log_sums = logits.logsumexp(dim=1)
            probabilities = (logits - log_sums.unsqueeze(1)).exp()
            entropies = log_sums - (probabilities * logits).sum(dim=1)
            row = self._sums[layer - 1]
            row[:-4] += chosen.sum(dim=0)
            row[-4] += len(logits)
            row[-3] += entropies.sum()
            row[-2] += log_sums.square().sum()

    def add_balance(self, layer: int, summed: Tensor) -> None:
        """`summed`: balance loss, without its coefficient, times positions of the micro-batch."""
        if self._sums is not None:
            self._sums[layer - 1, -1] += summed.detach()

    def summary(self, *, every_expert: bool) -> dict[str, Any]:
        """Of the step, over all ranks and micro-batches; every rank has to ask.

        Loads are in even shares: 1.0 is what each expert would get if all got the same.
        `every_expert` adds the load of each expert of each layer.
        """
        assert self._sums is not None, "begin_step(recording=True) comes first"
        sums = self._sums.double()
        dist.all_reduce(sums)
        sums = sums.cpu()  # once, and not number by number below
        counts = sums[:, :-4]
        positions, entropy, z_loss, balance = sums[:, -4:].unbind(dim=1)
        assigned = counts.sum(dim=1, keepdim=True)
        load = counts / assigned * self.experts
        summary = {
            "balance_loss": float((balance / positions).mean()),
            "z_loss": float((z_loss / positions).mean()),
            "router_entropy": float((entropy / positions).mean()),
            "dropped": float(1.0 - assigned.sum() / (positions.sum() * self.per_token)),
            "load": {
                "max": _rounded(load.amax(dim=1)),
                "min": _rounded(load.amin(dim=1)),
                "deviation": _rounded(load.std(dim=1, correction=0)),
            },
        }
        if every_expert:
            summary["expert_load"] = _rounded(load)
        return summary


def _rounded(values: Tensor) -> Any:
    return [_rounded(row) if row.dim() else round(float(row), 4) for row in values]


class Router(TopKRouter):
    """Megatron's router, its auxiliary losses means over the positions of a whole step.

    In 0.16 the balance loss comes with the positions of only one of a micro-batch's sequences, and
    it and the z-loss with those of one tensor rank where these share the positions.
    """

    log: RoutingLog | None = None

    def routing(self, logits: Tensor, padding_mask: None = None) -> tuple[Tensor, Tensor]:
        """logits (l / tensor ranks, b, experts) -> weights and choices (positions, experts)."""
        probabilities, chosen = super().routing(logits, padding_mask)
        if self.training and self.log is not None:
            self.log.add(self.layer_number, chosen, logits.detach().flatten(0, 1).float())
        return probabilities, chosen

    def attach_and_log_load_balancing_loss(
        self, activation: Tensor, coefficient: float, loss: Tensor, *more: Any, **named: Any
    ) -> Tensor:
        # `loss` is this rank's part of the mean over the micro-batch's sequences.
        positions = self._positions_of_micro_batch(activation)
        if self.log is not None:
            self.log.add_balance(self.layer_number, loss * (positions / coefficient))
        attached: Tensor = MoEAuxLossAutoScaler.apply(
            activation, loss * (positions / self._positions_of_step(activation))
        )
        return attached

    def apply_z_loss(self, logits: Tensor, padding_mask: None = None) -> Tensor:
        coefficient = self.config.moe_z_loss_coeff
        if coefficient is None or not self.training or not torch.is_grad_enabled():
            return logits
        total = logits.logsumexp(dim=1).square().sum()
        attached: Tensor = MoEAuxLossAutoScaler.apply(
            logits, total * (coefficient / self._positions_of_step(logits))
        )
        return attached

    def _apply_expert_bias(self, *unused: Any, **named: Any) -> None:
        """Nothing: no bias balances experts here. Megatron's would have itself compiled first."""

    def _positions_of_micro_batch(self, rows: Tensor) -> int:
        sharers = self.tp_group.size() if self.config.sequence_parallel else 1
        return rows.shape[0] * sharers

    def _positions_of_step(self, rows: Tensor) -> int:
        if self.log is None or self.log.positions is None:
            return self._positions_of_micro_batch(rows)
        return self.log.positions
