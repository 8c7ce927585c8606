"""A Llama written from its definition, on the weights of the Megatron model: slow and independent.

No torch.nn module, no attention kernel, rotations as complex numbers, experts in a loop.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tst_study.config.schema import Experts, Model

Weights = dict[str, Tensor]


def copied_weights(model: torch.nn.Module) -> Weights:
    """Leaves of their own, so that gradients can be compared by name."""
    return {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}


def embedded(weights: Weights, bags: Tensor) -> Tensor:
    """(b, l, s) ids -> (b, l, d): the mean of the embeddings of each bag."""
    table = weights["embedding.word_embeddings.weight"]
    return sum(table[bags[:, :, i]] for i in range(bags.shape[2])) / bags.shape[2]


def logits(
    weights: Weights, model: Model, x: Tensor, of_routers: list[Tensor] | None = None
) -> Tensor:
    """(b, l, d) embeddings -> (b, l, V); each layer's router loss is appended to `of_routers`."""
    for number in range(model.layers):
        prefix = f"decoder.layers.{number}."
        layer = {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}
        normed = rms_norm(x, layer["input_layernorm.weight"], model.norm_epsilon)
        x = x + attention(layer, model, normed)
        normed = rms_norm(x, layer["pre_mlp_layernorm.weight"], model.norm_epsilon)
        if model.experts is None:
            x = x + swiglu(normed, layer["mlp.linear_fc1.weight"], layer["mlp.linear_fc2.weight"])
        else:
            if of_routers is not None:
                of_routers.append(router_losses(layer, model.experts, normed))
            x = x + mixture(layer, model.experts, normed)
    x = rms_norm(x, weights["decoder.final_layernorm.weight"], model.norm_epsilon)
    head = weights.get("output_layer.weight", weights["embedding.word_embeddings.weight"])
    return x @ head.T


def router_losses(layer: Weights, experts: Experts, x: Tensor) -> Tensor:
    """What one layer adds to the loss: balance per sequence (Switch Transformer), and z-loss."""
    logits = x @ layer["mlp.router.weight"].T
    probabilities = logits.softmax(dim=-1)
    best = probabilities.topk(experts.per_token, dim=-1).indices
    balance = []
    for sequence in range(x.shape[0]):
        chosen = torch.bincount(best[sequence].flatten(), minlength=experts.count)
        share = chosen / chosen.sum()
        balance.append(experts.count * (share * probabilities[sequence].mean(dim=0)).sum())
    z = logits.logsumexp(dim=-1).square().mean()
    return experts.balance_loss * torch.stack(balance).mean() + experts.router_z_loss * z


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return weight * x / (x.square().mean(dim=-1, keepdim=True) + epsilon).sqrt()


def attention(layer: Weights, model: Model, x: Tensor) -> Tensor:
    batch, length, _ = x.shape
    groups, size = model.key_value_heads, model.head_size
    per_group = model.attention_heads // groups
    # Megatron stores, group by group, the queries of the group, its key and its value.
    mixed = (x @ layer["self_attention.linear_qkv.weight"].T).view(
        batch, length, groups, per_group + 2, size
    )
    query, key, value = mixed[..., :per_group, :], mixed[..., per_group, :], mixed[..., -1, :]
    if model.qk_norm:
        query = rms_norm(query, layer["self_attention.q_layernorm.weight"], model.norm_epsilon)
        key = rms_norm(key, layer["self_attention.k_layernorm.weight"], model.norm_epsilon)
    query, key = rotated(query, model.rope_theta), rotated(key, model.rope_theta)
    heads = []
    allowed = torch.ones(length, length).tril().bool()
    for head in range(model.attention_heads):
        group = head // per_group
        q, k, v = query[:, :, group, head % per_group], key[:, :, group], value[:, :, group]
        scores = (q @ k.transpose(1, 2) / size**0.5).masked_fill(~allowed, -torch.inf)
        heads.append(scores.softmax(dim=-1) @ v)
    return torch.cat(heads, dim=-1) @ layer["self_attention.linear_proj.weight"].T


def rotated(x: Tensor, theta: float) -> Tensor:
    """Turn the pair (x_j, x_{j + size/2}) at position t by the angle t · theta^(-2j/size)."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float64), frequencies)
    turns = torch.polar(torch.ones_like(angles), angles).view(
        1, x.shape[1], *[1] * (x.dim() - 3), half
    )
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double()) * turns
    return torch.cat([pairs.real, pairs.imag], dim=-1).to(x.dtype)


def swiglu(x: Tensor, gate_and_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (x @ gate_and_up.T).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ down.T


def mixture(layer: Weights, experts: Experts, x: Tensor) -> Tensor:
    """Softmax over all experts, the best of them, their weights normalised to one."""
    probabilities = (x @ layer["mlp.router.weight"].T).softmax(dim=-1)
    best = probabilities.topk(experts.per_token, dim=-1).indices
    chosen = torch.zeros_like(probabilities).scatter(-1, best, 1.0) * probabilities
    chosen = chosen / chosen.sum(dim=-1, keepdim=True)
    result = torch.zeros_like(x)
    first, second = layer["mlp.experts.linear_fc1"], layer["mlp.experts.linear_fc2"]
    for number in range(experts.count):
        out = swiglu(x, first[number], second[number])
        result = result + chosen[..., number, None] * out
    return result
