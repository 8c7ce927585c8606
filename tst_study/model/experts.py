"""Routing of positions to experts and back, the balance loss, which is the same in every parallel
layout, and statistics of the router for the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region
from megatron.core.transformer.moe.moe_utils import router_gating_linear
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from tst_study.model.kernels import (
    Combined,
    Copied,
    Groups,
    groups_of,
    sum_of_copies,
)


@dataclass
class RoutingLog:
    """The step's size, which the balance loss needs, and sums over the step for the log. All
    routers of a rank share one object."""

    layers: int
    experts: int
    positions: int | None = None
    """Latent positions of the whole step, on all ranks. None before the first `begin_step`: the
    balance loss is then a mean over each micro-batch."""
    _sums: Tensor | None = field(default=None, repr=False)

    @classmethod
    def of(cls, model: torch.nn.Module) -> RoutingLog | None:
        """Give all routers of `model` one log, and return it; None for a model without experts."""
        config: Any = model.config
        if config.num_moe_experts is None:
            return None
        log = cls(config.num_layers, config.num_moe_experts)
        for module in model.modules():
            if isinstance(module, Router):
                module.log = log
        return log

    def begin_step(self, positions: int, device: torch.device, *, recording: bool) -> None:
        self.positions = positions
        # Per layer: copies sent to each expert; then the number of positions, and the sums over
        # positions of router entropy and balance loss.
        shape = self.layers, self.experts + 3
        self._sums = torch.zeros(shape, device=device) if recording else None

    def add(self, layer: int, counts: Tensor, logits: Tensor) -> None:
        """Add a micro-batch's counts (experts,) and logits (positions, experts) in a layer, counted
        from 1. Does nothing in a step that is not recorded."""
        if self._sums is None:
            return
        with torch.no_grad():
            log_sums = logits.logsumexp(dim=1)
            probabilities = (logits - log_sums.unsqueeze(1)).exp()
            entropies = log_sums - (probabilities * logits).sum(dim=1)
            row = self._sums[layer - 1]
            row[:-3] += counts
            row[-3] += len(logits)
            row[-2] += entropies.sum()

    def add_balance(self, layer: int, loss: Tensor, scale: float) -> None:
        """Add a micro-batch's balance loss. `scale`, its positions divided by the coefficient,
        turns it into a sum over positions without the coefficient."""
        if self._sums is not None:
            self._sums[layer - 1, -1] += loss.detach() * scale

    def summary(self) -> dict[str, Any]:
        """Summarize the step over all ranks and micro-batches; every rank must call this.

        Entropy (in nats) and balance loss (without its coefficient) are means over positions and
        layers. Loads are those of the fullest and the emptiest expert of each layer, as multiples
        of an even share: 1.0 is what each expert would get if all got the same.
        """
        assert self._sums is not None, "begin_step(recording=True) comes first"
        sums = self._sums.double()
        dist.all_reduce(sums)
        sums = sums.cpu()  # once, and not number by number below
        counts = sums[:, :-3]
        positions, entropy, balance = sums[:, -3:].unbind(dim=1)
        load = counts / counts.sum(dim=1, keepdim=True) * self.experts
        return {
            "balance_loss": float((balance / positions).mean()),
            "router_entropy": float((entropy / positions).mean()),
            "load": {
                "max": [round(one, 4) for one in load.amax(dim=1).tolist()],
                "min": [round(one, 4) for one in load.amin(dim=1).tolist()],
            },
        }


class Routes(NamedTuple):
    """The routing of positions to experts. A position that goes to k experts is copied k times;
    copies are sorted by expert, and those of an expert by position."""

    rows: Tensor
    """(n·k, d) the copies."""
    positions: Tensor
    """(n·k,) the position of each copy."""
    copies: Tensor
    """(n, k) the copies of each position, ascending: experts' outputs are added in this order."""
    weights: Tensor
    """(n·k,) the weight of each copy's output."""
    counts: Tensor
    """(experts,) int32, copies for each expert."""
    groups: Groups
    """The groups of rows by expert, in the form that `grouped_product` takes."""
    logits: Tensor
    """(n, experts) detached, for the log."""
    balance: Tensor | None
    """This rank's summand of the micro-batch's balance loss, times its coefficient; detached, for
    the log. None where the loss is off, as in evaluation."""


class Router(torch.nn.Module):
    """Sends each position to the k experts with the highest scores, weighted by the softmax of
    these k scores.

    The balance loss (Switch, arXiv 2101.03961, equation 4) is computed for each sequence and
    averaged over those of a whole step, so that neither the layout nor the micro-batch changes it.
    """

    log: RoutingLog | None = None

    def __init__(
        self, config: TransformerConfig, layer_number: int, group: dist.ProcessGroup
    ) -> None:
        """`group`: ranks that share the positions of a sequence."""
        super().__init__()
        self.config, self.layer_number, self.group = config, layer_number, group
        shape = config.num_moe_experts, config.hidden_size
        device, dtype = torch.cuda.current_device(), config.params_dtype
        self.weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        # With sequence parallelism each rank of the group sees a part of the positions; by this
        # mark Megatron sums the gradients over the group.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.route = route  # or the same function compiled

    def forward(self, hidden: Tensor) -> Routes:
        """hidden (l / tensor ranks, b, d) -> routes of its positions. Training with gradients adds
        the balance loss; training adds to the log."""
        log, coefficient, share = self.log, 0.0, 1.0
        positions = hidden.shape[0] * hidden.shape[1] * self.group.size()
        if self.training and torch.is_grad_enabled():
            coefficient = self.config.moe_aux_loss_coeff
            if log is not None and log.positions is not None:
                share = positions / log.positions
        per_token = self.config.moe_router_topk
        routes: Routes = self.route(hidden, self.weight, per_token, coefficient, share, self.group)
        if self.training and log is not None:
            log.add(self.layer_number, routes.counts, routes.logits)
            if routes.balance is not None:
                log.add_balance(self.layer_number, routes.balance, positions / coefficient)
        return routes


def route(
    hidden: Tensor,
    weight: Tensor,
    per_token: int,
    coefficient: float,
    share: float,
    group: dist.ProcessGroup,
) -> Routes:
    """hidden (l, b, d), this rank's positions, and the router's weight (experts, d) -> routes of
    the n = l·b positions. Scores are computed in float32. `per_token`: k; `coefficient`: of the
    balance loss, 0 turns it off; `share`: positions of this micro-batch over those of the step;
    `group`: ranks that hold the other positions of the same sequences."""
    length, sequences = hidden.shape[:2]
    logits = router_gating_linear(hidden, weight, None, torch.float32).flatten(0, 1)
    # Recorded runs were not compiled; their bits depend on a softmax that adds the largest first.
    recorded = not torch.compiler.is_compiling()
    scores, experts = torch.topk(logits, per_token, dim=1, sorted=recorded)
    weights = torch.softmax(scores, dim=1)

    balance = None
    if coefficient:
        probabilities = torch.softmax(logits, dim=1)
        likeliest = experts
        if recorded:
            # Rounding may make two probabilities equal whose scores differ, and then the likeliest
            # experts may be others than the chosen ones. Recorded runs counted the likeliest.
            likeliest = torch.topk(probabilities, per_token, dim=1, sorted=False).indices
        chosen = _among(likeliest, logits.shape[1]).view(length, -1)
        # For each sequence and expert, summed over the ranks that hold parts of the sequence.
        counts = reduce_from_tensor_model_parallel_region(chosen.sum(dim=0), group)
        masses = probabilities.view(length, -1).sum(dim=0)
        whole = length * group.size()
        mean = logits.shape[1] * coefficient / (per_token * whole * whole)
        balance = torch.sum(masses * counts) * mean / sequences
        weights = _WithLoss.apply(weights, balance * share)
        balance = balance.detach()

    # The place of a copy is the number of copies before it: all those of lower experts, and those
    # of the same expert for earlier positions. Counting them takes a GPU fewer and smaller passes
    # than sorting.
    until_here = _among(experts, logits.shape[1]).T.cumsum(dim=1, dtype=torch.int32)
    counts = until_here[:, -1].contiguous()
    groups = groups_of(counts)
    before = (groups.ends - counts).unsqueeze(1) + until_here - 1
    copies = before.T.gather(1, experts).long()
    places = copies.flatten()
    entries = torch.empty_like(places)
    entries[places] = torch.arange(len(places), device=places.device)
    positions, copies = entries // per_token, copies.sort(dim=1).values
    return Routes(
        rows=Copied.apply(hidden.flatten(0, 1), positions, copies),
        positions=positions,
        copies=copies,
        weights=Copied.apply(weights.view(-1, 1), entries, places.unsqueeze(1)).flatten(),
        counts=counts,
        groups=groups,
        logits=logits.detach(),
        balance=balance,
    )


def _among(chosen: Tensor, count: int) -> Tensor:
    """(n, k) numbers below `count` -> (n, count) bool: which numbers are among those of a row."""
    numbers = torch.arange(count, device=chosen.device)
    return (chosen.unsqueeze(2) == numbers).any(dim=1)


class _WithLoss(torch.autograd.Function):
    """Returns `output` unchanged, and in the backward pass gives `loss` a gradient of one, as if it
    had been added to the training loss."""

    @staticmethod
    def forward(context: Any, output: Tensor, loss: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.new_ones(())


class Dispatcher(MoEAlltoAllTokenDispatcher):
    """Megatron's dispatcher, whose host waits for the device only where positions go to other
    ranks, and there once.

    Megatron's waits for the sizes of two masked selections, which are known beforehand (every
    position goes to the same number of experts), and moves the number of positions of each expert
    to the host, though grouped products need it on the device. Only the sizes of messages have to
    be on the host.
    """

    summed = staticmethod(sum_of_copies)
    """Sums the experts' outputs for each position; may be replaced by its compiled form."""

    @property
    def _has_all_experts(self) -> bool:
        """True where this rank has all experts whole: nothing is sent, and the copies are already
        in the order of the experts."""
        return self.ep_size == self.tp_size == 1

    def dispatch(self, routes: Routes) -> tuple[Tensor, Groups, Tensor]:
        """Return the copies that all ranks send to the experts here, sorted by expert; their groups
        by expert; and their weights."""
        if self._has_all_experts:
            return routes.rows, routes.groups, routes.weights
        self.hidden_shape_before_permute = routes.copies.shape
        self.probs = routes.weights.detach()  # Megatron reads its dtype
        self.tokens_per_expert = self.preprocess(routes.counts.unsqueeze(0))  # which sums over rows
        self._maybe_dtoh_and_synchronize("before_permutation_1")
        sent = self.token_dispatch(routes.rows, routes.weights)
        rows, tokens_per_expert, weights = self.dispatch_postprocess(*sent)
        return rows, groups_of(tokens_per_expert.to(rows.device, non_blocking=True)), weights

    def combine(self, rows: Tensor, routes: Routes) -> Tensor:
        """Send the experts' outputs `rows` back, and return their sum (n, d) for each position."""
        if not self._has_all_experts:
            rows = self.token_combine(self.combine_preprocess(rows))
        combined: Tensor = Combined.apply(rows, routes.positions, routes.copies, self.summed)
        return combined

    def _maybe_dtoh_and_synchronize(
        self, point: str, tokens_per_expert: Tensor | None = None
    ) -> Tensor | None:
        """Override Megatron's hook: move the sizes of messages to the host, and leave the number of
        positions of each expert on the device."""
        if not self._has_all_experts:
            super()._maybe_dtoh_and_synchronize(point)
        return tokens_per_expert
