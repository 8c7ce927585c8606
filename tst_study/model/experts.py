"""The parts of a mixture of experts around the experts themselves: the router with its balance
loss, the exchange of positions between ranks, and the router's statistics for the log.

The balance loss is the same in every parallel layout. `layers.MoE` puts the parts together.
"""

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

from tst_study.model.kernels import Combined, Copied, Groups, groups_of, sum_of_copies


@dataclass
class RoutingLog:
    """The size of the current step, which the balance loss needs, and sums over the step, from
    which the run's log gets its statistics. All routers of a rank share one object."""

    layers: int
    experts: int
    positions: int | None = None
    """Latent positions of the whole step, on all ranks. None before the first `begin_step`; while
    it is None, each micro-batch adds its own mean balance loss."""
    _sums: Tensor | None = field(default=None, repr=False)

    @classmethod
    def of(cls, model: torch.nn.Module) -> RoutingLog | None:
        """Make one log for all routers of `model`, and return it; None for a model without
        experts."""
        config: Any = model.config
        if config.num_moe_experts is None:
            return None
        log = cls(config.num_layers, config.num_moe_experts)
        for module in model.modules():
            if isinstance(module, Router):
                module.log = log
        return log

    def begin_step(self, positions: int, device: torch.device, *, recording: bool) -> None:
        """Begin a step of `positions` latent positions on all ranks. Its sums are collected only
        with `recording`."""
        self.positions = positions
        # For each layer: the number of copies of positions sent to each expert, then the number of
        # positions, the sum of their router entropies, and the sum of the balance loss over them.
        shape = self.layers, self.experts + 3
        self._sums = torch.zeros(shape, device=device) if recording else None

    def add(self, layer: int, counts: Tensor, logits: Tensor) -> None:
        """Add a micro-batch's routing to the sums of a layer: `counts` (experts,) of positions sent
        to each expert, and the router's `logits` (positions, experts). `layer` counts from 1. In a
        step that is not recorded, this does nothing."""
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
        """Add this rank's summand of a micro-batch's balance loss to the sums of a layer.

        The loss is a mean over positions, times its coefficient. `scale`, the micro-batch's
        positions divided by that coefficient, makes it a sum over positions without the
        coefficient. In a step that is not recorded, this does nothing.
        """
        if self._sums is not None:
            self._sums[layer - 1, -1] += loss.detach() * scale

    def summary(self) -> dict[str, Any]:
        """Summarize a recorded step over all ranks and micro-batches; every rank must call this.

        Entropy (in nats) and balance loss (without its coefficient; left out if it is off) are
        means over positions and layers. `load` lists for each layer the loads of its fullest and
        its emptiest expert, as multiples of an even share: 1.0 is what each expert would get if all
        got the same.
        """
        assert self._sums is not None, "begin_step(recording=True) comes first"
        sums = self._sums.double()
        dist.all_reduce(sums)
        sums = sums.cpu()  # once, and not number by number below
        counts = sums[:, :-3]
        positions, entropy, balance = sums[:, -3:].unbind(dim=1)
        load = counts / counts.sum(dim=1, keepdim=True) * self.experts
        return {
            **({"balance_loss": float((balance / positions).mean())} if balance.any() else {}),
            "router_entropy": float((entropy / positions).mean()),
            "load": {
                "max": [round(one, 4) for one in load.amax(dim=1).tolist()],
                "min": [round(one, 4) for one in load.amin(dim=1).tolist()],
            },
        }


class Routes(NamedTuple):
    """The routing of n positions of d features to experts. Each position goes to k experts and is
    copied k times. The copies are sorted by expert, and those of one expert by position."""

    rows: Tensor
    """(n·k, d): the copies."""
    positions: Tensor
    """(n·k,): for each copy, the index of the position from which it was made."""
    copies: Tensor
    """(n, k): for each position, the indices of its copies in `rows`, ascending. The experts'
    outputs for a position are added in this order."""
    weights: Tensor
    """(n·k,): the factor by which the expert's output for each copy is multiplied."""
    counts: Tensor
    """(experts,) int32: the number of copies for each expert."""
    groups: Groups
    """`counts` in the form that `grouped_product` takes: the rows of an expert are a group."""
    logits: Tensor
    """(n, experts): the router's scores, detached, for the log."""
    balance: Tensor | None
    """This rank's summand of the micro-batch's balance loss, coefficient included; detached, for
    the log. None if the loss is off, as in evaluation."""


class Router(torch.nn.Module):
    """Sends each position to the k experts with the highest scores, weighted by the softmax of
    these k scores.

    The balance loss (Switch, arXiv 2101.03961, equation 4) is computed for each sequence and
    averaged over all sequences of a step, so that neither the layout of ranks nor the size of a
    micro-batch changes it.
    """

    log: RoutingLog | None = None

    def __init__(
        self, config: TransformerConfig, layer_number: int, group: dist.ProcessGroup
    ) -> None:
        """`group`: the tensor ranks, which share the positions of a sequence."""
        super().__init__()
        self.config, self.layer_number, self.group = config, layer_number, group
        shape = config.num_moe_experts, config.hidden_size
        device, dtype = torch.cuda.current_device(), config.params_dtype
        self.weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        # With sequence parallelism, each rank of the group sees only a part of the positions. This
        # mark makes Megatron sum the weight's gradients over the group.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.route = route  # or the same function compiled

    def forward(self, hidden: Tensor) -> Routes:
        """hidden (l / tensor ranks, b, d) -> routes of its positions.

        In training mode, the statistics of the routing go to the log. The balance loss is applied
        as well, unless gradients are turned off.
        """
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
    the n = l·b positions. Scores are computed in float32.

    Args:
        per_token: k, the number of experts for each position.
        coefficient: that of the balance loss; 0 turns it off.
        share: the positions of this micro-batch on all ranks of `group`, as a fraction of those of
            the whole step.
        group: the ranks among which the positions of a sequence are divided.
    """
    length, sequences = hidden.shape[:2]
    logits = router_gating_linear(hidden, weight, None, torch.float32).flatten(0, 1)
    # The runs in docs/records were not compiled and had sorted scores, whose order changes the last
    # bit of the softmax. So that they can be reproduced, code that is not compiled sorts them.
    recorded = not torch.compiler.is_compiling()
    scores, experts = torch.topk(logits, per_token, dim=1, sorted=recorded)
    weights = torch.softmax(scores, dim=1)

    balance = None
    if coefficient:
        probabilities = torch.softmax(logits, dim=1)
        likeliest = experts
        if recorded:
            # Two probabilities may round to the same number although their scores differ. The
            # likeliest experts may then differ from the chosen ones. The recorded runs counted the
            # likeliest.
            likeliest = torch.topk(probabilities, per_token, dim=1, sorted=False).indices
        chosen = _among(likeliest, logits.shape[1]).view(length, -1)
        # For each sequence and expert: how many positions chose the expert, summed over the ranks
        # that hold parts of the sequence.
        counts = reduce_from_tensor_model_parallel_region(chosen.sum(dim=0), group)
        masses = probabilities.view(length, -1).sum(dim=0)
        whole = length * group.size()
        mean = logits.shape[1] * coefficient / (per_token * whole * whole)
        balance = torch.sum(masses * counts) * mean / sequences
        weights = _WithLoss.apply(weights, balance * share)
        balance = balance.detach()

    # The place of a copy is the number of copies before it: all copies for experts with lower
    # numbers, and those for the same expert from earlier positions. Counting them takes a GPU fewer
    # and smaller passes than sorting.
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
    """(n, k) numbers below `count` -> (n, count) bool: which of these numbers each row contains."""
    numbers = torch.arange(count, device=chosen.device)
    return (chosen.unsqueeze(2) == numbers).any(dim=1)


class _WithLoss(torch.autograd.Function):
    """Returns `output` unchanged. In the backward pass, `loss` gets a gradient of one, as if it had
    been added to the training loss."""

    @staticmethod
    def forward(context: Any, output: Tensor, loss: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.new_ones(())


class Dispatcher(MoEAlltoAllTokenDispatcher):
    """Megatron's dispatcher with fewer waits: the host waits for the device once, and only if
    positions go to other ranks.

    Megatron's dispatcher waits for the sizes of two masked selections, although these are known
    beforehand, since every position goes to the same number of experts. It also moves the number of
    positions of each expert to the host, although grouped products need it on the device. Only the
    sizes of messages have to be on the host.
    """

    summed = staticmethod(sum_of_copies)
    """Sums the experts' outputs for each position; `compile_layers` replaces it by its compiled
    form."""

    @property
    def _has_all_experts(self) -> bool:
        """True if this rank holds all experts, each of them whole. Nothing is sent then, and the
        copies are already in the order of the experts."""
        return self.ep_size == self.tp_size == 1

    def dispatch(self, routes: Routes) -> tuple[Tensor, Groups, Tensor]:
        """Exchange copies between ranks, and return those for the experts of this rank, sorted by
        expert; their groups by expert; and their weights."""
        if self._has_all_experts:
            return routes.rows, routes.groups, routes.weights
        self.hidden_shape_before_permute = routes.copies.shape
        self.probs = routes.weights.detach()  # Megatron reads its dtype
        # Megatron's `preprocess` sums the rows of a mask; here it gets the sums as a single row.
        self.tokens_per_expert = self.preprocess(routes.counts.unsqueeze(0))
        self._maybe_dtoh_and_synchronize("before_permutation_1")
        sent = self.token_dispatch(routes.rows, routes.weights)
        rows, tokens_per_expert, weights = self.dispatch_postprocess(*sent)
        return rows, groups_of(tokens_per_expert.to(rows.device, non_blocking=True)), weights

    def combine(self, rows: Tensor, routes: Routes) -> Tensor:
        """Send the experts' outputs `rows` back to the ranks of their positions. Return (n, d): for
        each position of this rank, the sum of its outputs."""
        if not self._has_all_experts:
            rows = self.token_combine(self.combine_preprocess(rows))
        combined: Tensor = Combined.apply(rows, routes.positions, routes.copies, self.summed)
        return combined

    def _maybe_dtoh_and_synchronize(
        self, point: str, tokens_per_expert: Tensor | None = None
    ) -> Tensor | None:
        """Override Megatron's hook: move the sizes of messages to the host, but leave the number of
        positions of each expert on the device."""
        super()._maybe_dtoh_and_synchronize(point)
        return tokens_per_expert
