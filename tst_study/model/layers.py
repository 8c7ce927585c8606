"""The layers of the model: our attention and norms around Megatron's parallel products.

One set of layers for CPU and GPU, so that what the tests run is what a cluster runs. Nothing here
needs TransformerEngine. Without tensor parallelism, Megatron's wrappers of these products are
bypassed: in small models their Python costs as much as the arithmetic.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import (
    TransformerBlock,
    TransformerBlockSubmodules,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from tst_study.config.schema import Config
from tst_study.errors import UserError
from tst_study.model.experts import Dispatcher, Router, route
from tst_study.model.grouped_experts import GroupedExperts
from tst_study.model.kernels import rms_norm, rotate, sum_of_copies, swiglu, weighted_swiglu

ATTENTION = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
ATTENTION_TOLERANCE = 0.05
"""The largest relative error at which cuDNN's attention is used. bfloat16 rounds to a relative
0.004, and correct gradients have an error of about that size."""


def attention_backend(config: Config, device: torch.device) -> str:
    """Choose what computes attention of the run's shape and dtype on a device: a key of
    `ATTENTION`.

    It is the one that `execution.attention` names, untested, or for "auto" torch's choice. If torch
    chooses cuDNN and its gradients are wrong here, flash takes its place, with a warning. Raises
    `UserError` where the named one cannot compute this shape.
    """
    model, asked = config.model, config.execution.attention
    size = config.batch.sequence_length, model.head_size
    more: Any = {"dtype": getattr(torch, config.numerics.dtype), "device": device}
    query, key = (
        torch.empty(1, heads, *size, **more, requires_grad=True)
        for heads in (model.attention_heads, model.key_value_heads)
    )
    grouped = query.shape != key.shape
    wanted = list(ATTENTION.values()) if asked == "auto" else [ATTENTION[asked]]
    try:
        with sdpa_kernel(wanted):
            chosen = torch._fused_sdp_choice(query, key, key, None, 0.0, True, enable_gqa=grouped)
    except RuntimeError:
        raise UserError(
            f"execution.attention = {asked!r}: cannot compute {config.numerics.dtype} heads of "
            f"{model.head_size} on {device.type}; leave it out, and torch chooses"
        ) from None
    name = next(name for name, backend in ATTENTION.items() if backend == SDPBackend(chosen))
    if asked == "auto" and name == "cudnn":
        # NaN in its gradients is reported (pytorch issue 196678, NVIDIA/cudnn-frontend issue 160).
        error = attention_error(name, query, key)
        if error > ATTENTION_TOLERANCE:
            problem = f"gradients of cuDNN's attention are wrong here (relative error {error:.2g})"
            print(f"{problem}: flash computes it", file=sys.stderr)
            return "flash"
    return name


def attention_error(backend: str, query: Tensor, key: Tensor) -> float:
    """The relative error of a backend's attention and gradients against the formula in float32;
    infinite for NaN and where the backend fails.

    query (1, heads, l, size) and key (1, groups, l, size) give shapes, dtype and device alone. Two
    random sequences of at most 2,048 positions are tried. In the second all scores are near -120,
    for which NaN has been seen.
    """
    generator = torch.Generator().manual_seed(0)
    length, size = min(2048, query.shape[2]), query.shape[3]
    inputs = [
        torch.randn(2, x.shape[1], length, size, generator=generator) for x in (query, key, key)
    ]
    inputs[0][1, ..., 0], inputs[1][1, ..., 0] = 1.0, -120.0 * math.sqrt(size)
    upstream = torch.randn(inputs[0].shape, generator=generator).to(query)
    results = []
    for way, dtype in ((backend, query.dtype), ("math", torch.float32)):
        q, k, v = rounded = [x.to(query).to(dtype).requires_grad_() for x in inputs]
        grouped = query.shape[1] != key.shape[1]
        try:
            with sdpa_kernel(ATTENTION[way]):
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
                gradients = torch.autograd.grad(mixed, rounded, upstream.to(dtype))
        except RuntimeError:
            return math.inf
        # The first feature of a head makes the scores of -120. Its gradients are sums that cancel,
        # and are not compared.
        results.append([x.detach()[..., 1:].float() for x in (mixed, *gradients)])
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(*results, strict=True)]
    return math.inf if any(map(math.isnan, errors)) else max(errors)


class RMSNorm(torch.nn.RMSNorm):
    """torch's RMSNorm with the mark that Megatron's sequence parallelism looks for.

    Under sequence parallelism each rank sees a part of the positions; the mark on the weight makes
    `finalize_model_grads` sum its gradient over the tensor-parallel ranks. Norms of queries and
    keys see whole sequences but only a part of the heads, and need the same sum; Megatron finds
    these by their names, also without sequence parallelism.
    """

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **unused: Any
    ) -> None:
        dtype = config.params_dtype
        super().__init__(hidden_size, eps=eps, dtype=dtype, device=torch.cuda.current_device())
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """x (…, hidden_size), same shape out."""
        return rms_norm(x, self.weight, self.eps)


class _SkipTensorParallel:
    """A mixin for Megatron's products over tensor ranks: a plain product where there is only
    one."""

    def forward(self: Any, input_: Tensor, *more: Any, **named: Any) -> tuple[Tensor, None]:
        if self.tp_group.size() == 1 and not more and not named:
            return F.linear(input_, self.weight), None
        return super().forward(input_, *more, **named)  # type: ignore[misc]


class ColumnLinear(_SkipTensorParallel, ColumnParallelLinear):
    """A product whose output features are split over tensor ranks."""


class RowLinear(_SkipTensorParallel, RowParallelLinear):
    """A product whose input features are split over tensor ranks."""


class SelfAttention(MegatronModule):
    """Causal attention with rotary positions; keys and values may be shared by groups of heads.

    No mask tensor is made. Dropout is not offered: the paper's runs have none. Parameters have the
    names, shapes and order of Megatron's own `SelfAttention`.
    """

    def __init__(self, config: TransformerConfig, groups: ProcessGroupCollection) -> None:
        super().__init__(config)
        self.tp_group = groups.tp
        self.queries_per_group = config.num_attention_heads // config.num_query_groups
        queries = config.num_attention_heads * config.kv_channels
        qkv = queries + 2 * config.num_query_groups * config.kv_channels
        shared: Any = {
            "config": config,
            "bias": False,
            "skip_bias_add": True,
            "tp_group": groups.tp,
        }
        shared["init_method"] = config.init_method  # not called: see initialization.py
        # First, as in Megatron: the last bit of a gradient norm depends on the order.
        self.linear_proj = RowLinear(queries, config.hidden_size, input_is_parallel=True, **shared)
        self.linear_qkv = ColumnLinear(config.hidden_size, qkv, gather_output=False, **shared)
        norm = RMSNorm if config.qk_layernorm else IdentityOp
        self.q_layernorm = norm(config, config.kv_channels, config.layernorm_epsilon)
        self.k_layernorm = norm(config, config.kv_channels, config.layernorm_epsilon)

    def forward(self, hidden: Tensor, rotary: Tensor) -> Tensor:
        """hidden (l, b, d), or (l / tensor ranks, b, d) under sequence parallelism; same shape out.
        rotary: a table of `RotaryTable`."""
        mixed, _ = self.linear_qkv(hidden)
        # The features of each group are its queries, its key and its value. Each of the three
        # becomes (l, b, heads, size).
        by_group = mixed.unflatten(-1, (-1, self.queries_per_group + 2, self.config.kv_channels))
        query, key, value = (
            part.flatten(2, 3) for part in by_group.split([self.queries_per_group, 1, 1], dim=3)
        )
        query, key = self.q_layernorm(query), self.k_layernorm(key)
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        attended = F.scaled_dot_product_attention(
            rotate(query, rotary),
            rotate(key, rotary),
            # Attention walks over the values of one head; in Megatron's order they lie far apart.
            value.contiguous(),
            is_causal=True,
            enable_gqa=self.queries_per_group > 1,
        )
        projected, _ = self.linear_proj(attended.permute(2, 0, 1, 3).flatten(2))
        return projected


class FeedForward(MLP):
    """Megatron's matrices around our SwiGLU: the forward pass of Megatron's `MLP` serves a dozen
    activations."""

    def __init__(self, config: TransformerConfig, groups: ProcessGroupCollection) -> None:
        matrices = MLPSubmodules(linear_fc1=ColumnLinear, linear_fc2=RowLinear)
        super().__init__(config, matrices, tp_group=groups.tp)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (l, b, d), or (l / tensor ranks, b, d) under sequence parallelism; same shape
        out."""
        gate_and_up, _ = self.linear_fc1(hidden)
        down, _ = self.linear_fc2(swiglu(gate_and_up))
        return down


class MoE(MegatronModule):
    """Router, exchange of positions between ranks, and experts."""

    def __init__(
        self, config: TransformerConfig, layer_number: int, groups: ProcessGroupCollection
    ) -> None:
        super().__init__(config)
        local_experts = config.num_moe_experts // groups.ep.size()
        numbers = range(groups.ep.rank() * local_experts, (groups.ep.rank() + 1) * local_experts)
        self.router = Router(config, layer_number, groups.tp)
        self.dispatcher = Dispatcher(local_experts, list(numbers), config, groups)
        self.experts = GroupedExperts(local_experts, config, groups)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (l, b, d), or (l / tensor ranks, b, d) under sequence parallelism; same shape
        out."""
        routes = self.router(hidden)
        rows = self.experts(*self.dispatcher.dispatch(routes))
        return self.dispatcher.combine(rows, routes).view_as(hidden)


class Layer(MegatronModule):
    """Attention and feed-forward, each applied to its normed input and added to the input itself.

    It replaces Megatron's TransformerLayer, which also serves inference, and since 0.20 opens a
    telemetry span for each layer, because of which torch.compile would compile each layer anew.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        pg_collection: ProcessGroupCollection,
        **unused: Any,
    ) -> None:
        """`layer_number`: counted from 1, as TransformerBlock counts."""
        super().__init__(config)
        self.layer_number = layer_number
        shape = config, config.hidden_size, config.layernorm_epsilon
        self.input_layernorm = RMSNorm(*shape)
        self.self_attention = SelfAttention(config, pg_collection)
        self.pre_mlp_layernorm = RMSNorm(*shape)
        self.mlp: FeedForward | MoE
        if config.num_moe_experts is None:
            self.mlp = FeedForward(config, pg_collection)
        else:
            self.mlp = MoE(config, layer_number, pg_collection)

    def forward(self, hidden: Tensor, rotary: Tensor) -> Tensor:
        """hidden (l, b, d), or (l / tensor ranks, b, d) under sequence parallelism; same shape out.
        rotary: a table of `RotaryTable`."""
        hidden, normed = self.attend(hidden, rotary)
        return hidden + self.mlp(normed)

    def attend(self, hidden: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden states after attention, and their norm, which the feed-forward
        reads."""
        hidden = hidden + self.self_attention(self.input_layernorm(hidden), rotary)
        return hidden, self.pre_mlp_layernorm(hidden)


class Decoder(TransformerBlock):
    """The layers and the final norm. In a checkpoint they are named as in Megatron's
    TransformerBlock."""

    recomputed = False
    """True: keep only the inputs of each layer, and compute it again in the backward pass."""

    def __init__(self, config: TransformerConfig) -> None:
        layers = [ModuleSpec(Layer)] * config.num_layers
        super().__init__(config, TransformerBlockSubmodules(layers, layer_norm=RMSNorm))

    def forward(self, hidden: Tensor, rotary: Tensor) -> Tensor:
        """hidden (l, b, d), or (l / tensor ranks, b, d) under sequence parallelism; same shape out.
        rotary: a table of `RotaryTable`."""
        for layer in self.layers:
            if self.recomputed:
                # Megatron's checkpointing restores random generators that exist only on GPUs;
                # nothing here draws random numbers.
                hidden = checkpoint(
                    layer, hidden, rotary, use_reentrant=False, preserve_rng_state=False
                )
            else:
                hidden = layer(hidden, rotary)
        return self.final_layernorm(hidden)


def compile_layers(layers: Iterable[Any], backend: str = "inductor") -> None:
    """Apply torch.compile to the parts of layers, one compiled graph per part for all layers.

    A dense layer is one part. The parts of a layer with experts are attention, routing, activation
    and the sum of the experts' outputs; between these, messages and grouped products have sizes
    that depend on the data.

    With one tensor rank, a part that cannot be a single graph raises at its first call. With
    several, Megatron's messages between them break the graph, which is then allowed.
    """
    alone = parallel_state.get_tensor_model_parallel_world_size() == 1
    compiled = partial(torch.compile, backend=backend, fullgraph=alone)
    for layer in layers:
        if not isinstance(getattr(layer, "mlp", None), MoE):
            layer.compile(backend=backend, fullgraph=alone)
            continue
        moe = layer.mlp
        layer.attend, moe.router.route = compiled(layer.attend), compiled(route)
        moe.experts.activation = compiled(weighted_swiglu)
        moe.dispatcher.summed = compiled(sum_of_copies)
