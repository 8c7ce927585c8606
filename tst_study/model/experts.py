"""Routing of positions to experts and back, with a balance loss that no layout changes; and the
router's health."""

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
    """The step's size and the sums for its log, shared by all routers of a rank."""

    layers: int
    experts: int
    positions: int | None = None
    """Latent positions of the whole step; None: of the micro-batch at hand."""
    _sums: Tensor | None = field(default=None, repr=False)

    @classmethod
    def of(cls, model: torch.nn.Module) -> RoutingLog | None:
        """Shared by the routers of this rank's layers; None for a model without experts."""
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
        # Per layer: positions by expert; then all of them, entropy and balance loss.
        shape = self.layers, self.experts + 3
        self._sums = torch.zeros(shape, device=device) if recording else None

    def add(self, layer: int, counts: Tensor, logits: Tensor) -> None:
        """counts (experts,) and logits (positions, experts) of one micro-batch; layers count
        from 1."""
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
        """`scale`: positions of the micro-batch over the loss's coefficient."""
        if self._sums is not None:
            self._sums[layer - 1, -1] += loss.detach() * scale

    def summary(self) -> dict[str, Any]:
        """Summarize the step over all ranks and micro-batches; every rank must call this.

        Loads are those of the fullest and the emptiest expert of each layer, in even shares: 1.0 is
        what each expert would get if all got the same.
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
    """(n, k) the copies of each position, in the order in which the experts' outputs are added."""
    weights: Tensor
    """(n·k,) the weight of each copy's output."""
    counts: Tensor
    """(experts,) int32, copies for each expert."""
    groups: Groups
    """The same counts in the form that grouped products take."""
    logits: Tensor
    """(n, experts) detached, for the log."""
    balance: Tensor | None
    """The balance loss of this rank's positions, for the log; None where there is none."""


class Router(torch.nn.Module):
    """Sends each position to the k experts with the highest scores, weighted by their softmax.

    The balance loss of each sequence (Switch, arXiv 2101.03961, equation 4) is a mean over the
    positions of a whole step, so that no parallel layout changes it.
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
        # Each rank of the group sees a part of the positions: Megatron then sums the gradients.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.route = route  # or the same function compiled

    def forward(self, hidden: Tensor) -> Routes:
        """hidden (l / tensor ranks, b, d)."""
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
    """hidden (l, b, d) and the router's weight (experts, d) -> routes of the n = l·b positions.
    Scores are computed in float32. `coefficient`: of the balance loss, 0 turns it off; `share`:
    positions of this micro-batch over those of the step."""
    length, sequences = hidden.shape[:2]
    logits = router_gating_linear(hidden, weight, None, torch.float32).flatten(0, 1)
    recorded = not torch.compiler.is_compiling()  # whose softmax adds the largest first
    scores, experts = torch.topk(logits, per_token, dim=1, sorted=recorded)
    weights = torch.softmax(scores, dim=1)

    balance = None
    if coefficient:
        probabilities = torch.softmax(logits, dim=1)
        likeliest = experts
        if recorded:
            # Rounding may tie two probabilities whose scores differ. Recorded runs count these.
            likeliest = torch.topk(probabilities, per_token, dim=1, sorted=False).indices
        chosen = _among(likeliest, logits.shape[1]).view(length, -1)
        # Of each sequence and expert; other ranks of the group have other positions of them.
        counts = reduce_from_tensor_model_parallel_region(chosen.sum(dim=0), group)
        masses = probabilities.view(length, -1).sum(dim=0)
        whole = length * group.size()
        mean = logits.shape[1] * coefficient / (per_token * whole * whole)
        balance = torch.sum(masses * counts) * mean / sequences
        weights = _WithLoss.apply(weights, balance * share)
        balance = balance.detach()

    # Copies are counted, which takes a GPU fewer and smaller passes than sorting them. Those of
    # lower experts come before, and those of an expert for earlier positions.
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
    """(n, k) numbers below `count` -> (n, count) whether each is among those of its row."""
    numbers = torch.arange(count, device=chosen.device)
    return (chosen.unsqueeze(2) == numbers).any(dim=1)


class _WithLoss(torch.autograd.Function):
    """Adds a loss to the objective without its value: it gets a gradient of one where `output` gets
    its own."""

    @staticmethod
    def forward(context: Any, output: Tensor, loss: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.new_ones(())


class Dispatcher(MoEAlltoAllTokenDispatcher):
    """Megatron's, but the host waits for the device only where positions go to other ranks, once.

    Megatron's waits for the sizes of two selections, which are known (every position goes to the
    same number of experts), and hands the positions of each expert over on the host, from where
    grouped products bring them back. The sizes of messages have to be on the host.
    """

    summed = staticmethod(sum_of_copies)
    """Sums the experts' outputs for each position; may be replaced by its compiled form."""

    @property
    def _has_all_experts(self) -> bool:
        """Nothing is sent, and positions sorted by expert are in the order of the experts here."""
        return self.ep_size == self.tp_size == 1

    def dispatch(self, routes: Routes) -> tuple[Tensor, Groups, Tensor]:
        """Return copies of all ranks' positions for the experts here, sorted by expert; their
        groups by expert; and their weights."""
        if self._has_all_experts:
            return routes.rows, routes.groups, routes.weights
        self.hidden_shape_before_permute = routes.copies.shape
        self.probs = routes.weights.detach()  # for its type
        self.tokens_per_expert = self.preprocess(routes.counts.unsqueeze(0))  # it sums over rows
        self._maybe_dtoh_and_synchronize("before_permutation_1")
        sent = self.token_dispatch(routes.rows, routes.weights)
        rows, tokens_per_expert, weights = self.dispatch_postprocess(*sent)
        return rows, groups_of(tokens_per_expert.to(rows.device, non_blocking=True)), weights

    def combine(self, rows: Tensor, routes: Routes) -> Tensor:
        """Return the sum (n, d) of each position's copies from the experts' outputs."""
        if not self._has_all_experts:
            rows = self.token_combine(self.combine_preprocess(rows))
        combined: Tensor = Combined.apply(rows, routes.positions, routes.copies, self.summed)
        return combined

    def _maybe_dtoh_and_synchronize(
        self, point: str, tokens_per_expert: Tensor | None = None
    ) -> Tensor | None:
        """Megatron's hook: sizes of messages to the host, but not the positions of each expert."""
        if not self._has_all_experts:
            super()._maybe_dtoh_and_synchronize(point)
        return tokens_per_expert
