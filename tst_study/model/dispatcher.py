"""Positions to their experts and back, in one order and without asking the device how many."""

from __future__ import annotations

from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch import Tensor

from tst_study.model.experts import Routes
from tst_study.model.kernels import Combined, Groups, groups_of, sum_of_copies


class Dispatcher(MoEAlltoAllTokenDispatcher):
    """Megatron's, but the host waits for the device only where positions go to other ranks, once.

    Megatron's waits for the sizes of two selections, which are known (every position goes to the
    same number of experts), and hands the positions of each expert over on the host, from where
    grouped products bring them back. The sizes of messages have to be on the host.
    """

    summed = staticmethod(sum_of_copies)
    """Or the same function compiled."""

    @property
    def _has_all_experts(self) -> bool:
        """Nothing is sent, and positions sorted by expert are in the order of the experts here."""
        return self.ep_size == self.tp_size == 1

    def dispatch(self, routes: Routes) -> tuple[Tensor, Groups, Tensor]:
        """Copies of all ranks' positions for the experts here, sorted by expert; which of them go
        to which; and their weights."""
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
        """The experts' outputs for the copies -> (n, d), each position's sum of its own."""
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
