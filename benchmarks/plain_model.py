"""The reference of speed: the same Llama-style decoder as one writes it in plain PyTorch, eager.

Same shapes, same arithmetic (RMSNorm, rotary positions, SDPA, SwiGLU), no Megatron, no parallel
layouts, no superposition. A mixture of experts has no plain counterpart here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tst_study.config import Model


class PlainModel(nn.Module):
    """Token ids and labels in, mean next-token loss out."""

    def __init__(self, config: Model) -> None:
        super().__init__()
        if config.experts is not None:
            raise ValueError("PlainModel: only dense models")
        self.embedding = nn.Embedding(config.vocabulary_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        self.head = nn.Linear(config.hidden_size, config.vocabulary_size, bias=False)
        if config.tied_embeddings:
            self.head.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=config.initial_deviation)
        self.head_size, self.theta = config.head_size, config.rope_theta
        self._table: tuple[Tensor, Tensor] | None = None

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """ids and labels (b, l) -> scalar."""
        x = self.embedding(ids)
        cosines, sines = self._rotary_table(ids.shape[1], ids.device)
        for layer in self.layers:
            x = layer(x, cosines, sines)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    def _rotary_table(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        if self._table is None or len(self._table[0]) != length:
            exponents = torch.arange(0, self.head_size, 2, device=device) / self.head_size
            angles = torch.outer(torch.arange(length, device=device), self.theta**-exponents)
            angles = torch.cat([angles, angles], dim=1)
            self._table = angles.cos(), angles.sin()
        return self._table


class Layer(nn.Module):
    def __init__(self, config: Model) -> None:
        super().__init__()
        hidden, feed_forward = config.hidden_size, config.feed_forward_size
        self.heads, self.groups = config.attention_heads, config.key_value_heads
        self.head_size = config.head_size
        self.attention_norm = nn.RMSNorm(hidden, eps=config.norm_epsilon)
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.groups) * self.head_size, bias=False)
        self.projection = nn.Linear(self.heads * self.head_size, hidden, bias=False)
        self.feed_forward_norm = nn.RMSNorm(hidden, eps=config.norm_epsilon)
        self.gate_and_up = nn.Linear(hidden, 2 * feed_forward, bias=False)
        self.down = nn.Linear(feed_forward, hidden, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """x (b, l, d) -> (b, l, d)."""
        x = x + self._attention(self.attention_norm(x), cosines, sines)
        gate, up = self.gate_and_up(self.feed_forward_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def _attention(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
        query, key, value = qkv.split([self.heads, self.groups, self.groups], dim=1)
        mixed = F.scaled_dot_product_attention(
            rotate(query, cosines, sines),
            rotate(key, cosines, sines),
            value,
            is_causal=True,
            enable_gqa=self.heads != self.groups,
        )
        return self.projection(mixed.transpose(1, 2).flatten(2))


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """x (b, heads, l, head_size), in its own dtype."""
    first, second = x.chunk(2, dim=-1)
    return (x * cosines + torch.cat([-second, first], dim=-1) * sines).to(x.dtype)
