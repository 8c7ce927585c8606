"""Positions to their experts and back, in one order and without asking the device how many."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch import Tensor


class _Copied(torch.autograd.Function):
    """Rows to copies of rows. A gather has atomic additions for its gradient on a GPU, in another
    order every time; this one gathers again, and sums the copies of a row in their order."""

    @staticmethod
    def forward(context: Any, rows: Tensor, of_copy: Tensor, copies_of: Tensor) -> Tensor:
        """rows (n, d); of_copy (n·k,) the row of each copy; copies_of (n, k) the copies of each."""
        context.save_for_backward(of_copy, copies_of)
        return rows.index_select(0, of_copy)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        _, copies_of = context.saved_tensors
        return _summed(gradient, copies_of), None, None


class _Combined(torch.autograd.Function):
    """The other way: the sum of each row's copies."""

    @staticmethod
    def forward(context: Any, copies: Tensor, of_copy: Tensor, copies_of: Tensor) -> Tensor:
        context.save_for_backward(of_copy)
        return _summed(copies, copies_of)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (of_copy,) = context.saved_tensors
        return gradient.index_select(0, of_copy), None, None


def _summed(copies: Tensor, copies_of: Tensor) -> Tensor:
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

    @property
    def _has_all_experts(self) -> bool:
        """Nothing is sent, and positions sorted by expert are in the order of the experts here."""
        return self.ep_size == self.tp_size == 1

    def dispatch_preprocess(
        self, hidden_states: Tensor, routing_map: Tensor, probs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """hidden_states (l, b, d); choices and their weights (positions, experts) -> copies of the
        positions sorted by expert (positions · experts per position, d), and their weights."""
        self.hidden_shape = hidden_states.shape
        self.probs, self.routing_map = probs, routing_map
        self.tokens_per_expert = self.preprocess(routing_map)
        self._maybe_dtoh_and_synchronize("before_permutation_1")
        rows = hidden_states.view(-1, self.hidden_shape[-1])
        self.hidden_shape_before_permute = rows.shape
        copies = rows.shape[0] * self.config.moe_router_topk
        places = torch.nonzero_static(routing_map.T.contiguous().view(-1), size=copies).squeeze(1)
        of_copy = places % rows.shape[0]
        # Stable: a position's copies are added in the order of their experts.
        copies_of = torch.argsort(of_copy, stable=True).view(rows.shape[0], -1)
        self.order = of_copy, copies_of
        copied: Tensor = _Copied.apply(rows, *self.order)
        return copied, probs.T.reshape(-1).index_select(0, places)

    def combine_postprocess(self, copies: Tensor) -> Tensor:
        combined: Tensor = _Combined.apply(copies, *self.order)
        return combined.view(self.hidden_shape)

    def dispatch_postprocess(self, rows: Tensor, probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not self._has_all_experts:
            result: tuple[Tensor, Tensor, Tensor] = super().dispatch_postprocess(rows, probs)
            return result
        positions, self.tokens_per_expert = self.tokens_per_expert, None
        return rows, positions, probs

    def combine_preprocess(self, rows: Tensor) -> Tensor:
        return rows if self._has_all_experts else super().combine_preprocess(rows)

    def _maybe_dtoh_and_synchronize(
        self, point: str, tokens_per_expert: Tensor | None = None
    ) -> Tensor | None:
        """Megatron's hook: sizes of messages to the host, but not the positions of each expert."""
        if not self._has_all_experts:
            super()._maybe_dtoh_and_synchronize(point)
        return tokens_per_expert
