"""The layer specification: Megatron's layers with our own attention, norm and plain products.

One specification for CPU and GPU, so that what the tests run is what a cluster runs. Nothing here
needs TransformerEngine. Where tensor parallelism is off, its wrappers are stepped around: in small
models their Python costs as much as the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tst_study.config.schema import Config
from tst_study.errors import UserError
from tst_study.model.around_calls import Recomputable, RecomputableLayer
from tst_study.model.dispatcher import Dispatcher
from tst_study.model.experts import Router
from tst_study.model.grouped_experts import GroupedExperts
from tst_study.model.kernels import rms_norm, rotate, swiglu

ATTENTION = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def attention_backend(config: Config, device: torch.device) -> str:
    """What computes attention of the run's shape on a device, a key of `ATTENTION`: the one that
    `execution.attention` names, or torch's choice. Raises `UserError` where it cannot."""
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
    return next(name for name, backend in ATTENTION.items() if backend == SDPBackend(chosen))


class RMSNorm(torch.nn.RMSNorm):
    """torch's RMSNorm with the mark that Megatron's sequence parallelism looks for.

    Under sequence parallelism each rank sees a part of the positions; the mark on the weight makes
    `finalize_model_grads` sum its gradient over the tensor-parallel ranks. Norms of queries and
    keys see whole sequences but a part of the heads and need the same sum.
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


class _PlainAlone:
    """Mixed into Megatron's products over tensor ranks: a plain one where there is one rank."""

    def forward(self: Any, input_: Tensor, *more: Any, **named: Any) -> tuple[Tensor, None]:
        if self.tp_group.size() == 1 and not more and not named:
            return F.linear(input_, self.weight), None
        return super().forward(input_, *more, **named)  # type: ignore[misc]


class ColumnLinear(_PlainAlone, ColumnParallelLinear):
    """Split by output features."""


class RowLinear(_PlainAlone, RowParallelLinear):
    """Split by input features."""


class RotarySelfAttention(SelfAttention):
    """Megatron's projections around rotation and core attention, for training on whole sequences.

    Its own forward pass also serves inference engines; this one is what training needs of it.
    """

    def forward(
        self, hidden_states: Tensor, attention_mask: None, rotary_pos_emb: Tensor, **unused: Any
    ) -> tuple[Tensor, None]:
        """hidden_states (l, b, d), or (l / tensor ranks, b, d) under sequence parallelism."""
        query, key, value = (
            x.permute(1, 2, 0, 3) for x in self.get_query_key_value_tensors(hidden_states)
        )
        query, key = rotate(query, rotary_pos_emb), rotate(key, rotary_pos_emb)
        # Attention walks over the values of one head; in Megatron's order they lie far apart.
        return self.linear_proj(self.core_attention(query, key, value.contiguous()))


class CausalAttention(torch.nn.Module):
    """Core attention by `scaled_dot_product_attention`, causal, with grouped keys and values.

    No mask tensor is made. Dropout is not offered: the paper's runs have none.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        softmax_scale: float | None = None,
        **unused: Any,
    ) -> None:
        super().__init__()
        if attn_mask_type != AttnMaskType.causal or config.context_parallel_size > 1:
            raise ValueError("CausalAttention: only causal masks and whole sequences")
        self.scale = softmax_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query (b, heads, l, size), key and value (b, groups, l, size) -> (l, b, heads·size)."""
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=True,
            scale=self.scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return mixed.permute(2, 0, 1, 3).flatten(2)


class FeedForward(Recomputable, MLP):
    """Megatron's matrices around our SwiGLU; its own forward pass serves a dozen activations."""

    def __init__(self, config: TransformerConfig, **unused: Any) -> None:
        matrices = MLPSubmodules(linear_fc1=ColumnLinear, linear_fc2=RowLinear)
        group = parallel_state.get_tensor_model_parallel_group()
        super().__init__(config, matrices, tp_group=group)

    def forward(self, hidden_states: Tensor, **unused: Any) -> tuple[Tensor, None]:
        """hidden_states (l, b, d), or (l / tensor ranks, b, d) under sequence parallelism."""
        gate_and_up, _ = self.linear_fc1(hidden_states)
        return self.linear_fc2(swiglu(gate_and_up))


class Mixture(Recomputable, MoELayer):
    """Megatron's, which makes its dispatcher by a name."""

    def __init__(self, config: TransformerConfig, **named: Any) -> None:
        parts = MoESubmodules(experts=GroupedExperts, router=Router)
        super().__init__(config, parts, **named)
        self.token_dispatcher.__class__ = Dispatcher  # of the same state


def compile_layers(layers: Iterable[torch.nn.Module], backend: str = "inductor") -> None:
    """torch.compile, layer by layer, all by one graph; of a layer with experts its attention alone,
    since what a router does with the tokens depends on the data and breaks into dozens of graphs.

    What cannot be one graph raises, instead of being left as it is. Only Megatron's messages
    between tensor ranks have to break it.
    """
    alone = parallel_state.get_tensor_model_parallel_world_size() == 1
    for layer in layers:
        has_router = hasattr(getattr(layer, "mlp", None), "router")
        part: Any = layer.self_attention if has_router else layer
        part.compile(backend=backend, fullgraph=alone)


def block_specification(config: TransformerConfig, layer: ModuleSpec) -> TransformerBlockSubmodules:
    """This rank's layers and the norm after the last one; without a name for it Megatron would
    take whatever class is installed."""
    layers = [layer] * get_num_layers_to_build(config)
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=RMSNorm)


def layer_specification(config: TransformerConfig) -> ModuleSpec:
    """One layer of the model."""
    qk_norm = RMSNorm if config.qk_layernorm else IdentityOp
    return ModuleSpec(
        module=RecomputableLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=RMSNorm,
            self_attention=ModuleSpec(
                module=RotarySelfAttention,
                params={"attn_mask_type": AttnMaskType.causal},
                submodules=SelfAttentionSubmodules(
                    linear_qkv=ColumnLinear,
                    core_attention=CausalAttention,
                    linear_proj=RowLinear,
                    q_layernorm=qk_norm,
                    k_layernorm=qk_norm,
                ),
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=RMSNorm,
            mlp=FeedForward if config.num_moe_experts is None else Mixture,
            mlp_bda=get_bias_dropout_add,
        ),
    )
