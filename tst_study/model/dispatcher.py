"""Positions to their experts and back, in one order and without asking the device how many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch import Tensor

from tst_study.model.experts import Routes
from tst_study.model.kernels import Groups, groups_of

Summed: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""What `sum_of_copies` computes."""


class _Copied(torch.autograd.Function):
    """Rows to copies of rows. Its gradient sums the copies of a row in their order, where that of a
    gather would take another order every time on a GPU."""

    @staticmethod
    def forward(
        context: Any, rows: Tensor, of_copy: Tensor, copies_of: Tensor, summed: Summed
    ) -> Tensor:
        """rows (n, d); of_copy (n·k,) the row of each copy; copies_of (n, k) the copies of each."""
        context.save_for_backward(copies_of)
        context.summed = summed
        return rows.index_select(0, of_copy)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (copies_of,) = context.saved_tensors
        return context.summed(gradient, copies_of), None, None, None


class _Combined(torch.autograd.Function):
    """The other way: the sum of each row's copies."""

    @staticmethod
    def forward(
        context: Any, copies: Tensor, of_copy: Tensor, copies_of: Tensor, summed: Summed
    ) -> Tensor:
        context.save_for_backward(of_copy)
        return summed(copies, copies_of)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (of_copy,) = context.saved_tensors
        return gradient.index_select(0, of_copy), None, None, None


def sum_of_copies(copies: Tensor, copies_of: Tensor) -> Tensor:
    """copies (n·k, d) and the copies of each row (n, k) -> (n, d)."""
    own = copies.index_select(0, copies_of.view(-1)).view(*copies_of.shape, -1)
    if own.device.type != "cpu":
        return own.sum(dim=1)
    total = own[:, 0].clone()  # one after another: the bits of recorded runs
    for nth in own.unbind(dim=1)[1:]:
        total += nth
    return total


class Dispatcher(MoEAlltoAllTokenDispatcher):
    """Megatron's, but the host waits for the device only where positions go to other ranks, once.

    Megatron's waits for the sizes of two selections, which are known (every position goes to the
    same number of experts), and hands the positions of each expert over on the host, from where
    grouped products bring them back. The sizes of messages have to be on the host.
    """

    summed: Summed = staticmethod(sum_of_copies)
    """Or the same function compiled."""

    @property
    def _has_all_experts(self) -> bool:
        """Nothing is sent, and positions sorted by expert are in the order of the experts here."""
        return self.ep_size == self.tp_size == 1

    def dispatch(self, rows: Tensor, routes: Routes) -> tuple[Tensor, Groups, Tensor]:
        """rows (n, d) of this rank's positions -> copies of all ranks' positions for the experts
        here, sorted by expert; which of them go to which; and their weights."""
        copies = _Copied.apply(rows, routes.positions, routes.copies, self.summed)
        if self._has_all_experts:
            return copies, routes.groups, routes.weights
        self.hidden_shape_before_permute = rows.shape
        self.probs = routes.weights.detach()  # for its type
        self.tokens_per_expert = self.preprocess(routes.counts.unsqueeze(0))  # it sums over rows
        self._maybe_dtoh_and_synchronize("before_permutation_1")
        copies, tokens_per_expert, weights = self.dispatch_postprocess(
            *self.token_dispatch(copies, routes.weights)
        )
        return copies, groups_of(tokens_per_expert.to(rows.device, non_blocking=True)), weights

    def combine(self, rows: Tensor, routes: Routes) -> Tensor:
        """The experts' outputs for the copies -> (n, d), each position's sum of its own."""
        if not self._has_all_experts:
            rows = self.token_combine(self.combine_preprocess(rows))
        combined: Tensor = _Combined.apply(rows, routes.positions, routes.copies, self.summed)
        return combined

    def _maybe_dtoh_and_synchronize(
        self, point: str, tokens_per_expert: Tensor | None = None
    ) -> Tensor | None:
        """Megatron's hook: sizes of messages to the host, but not the positions of each expert."""
        if not self._has_all_experts:
            super()._maybe_dtoh_and_synchronize(point)
        return tokens_per_expert
