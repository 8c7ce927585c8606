"""The layers of the model: our attention, norms and experts, with Megatron's tensor-parallel matrix
products for the projections. `model.py` builds the model from `Decoder`.

The same layers run on a CPU and on a GPU, so that what the tests run is what a cluster runs.
Nothing here needs TransformerEngine. Without tensor parallelism, Megatron's wrappers of the matrix
products are bypassed, because in small models their Python code takes as long as the arithmetic.
"""

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
from megatron.core.transformer.transformer_block import TransformerBlock, TransformerBlockSubmodules
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
"""torch's kernels of attention, by the names that `execution.attention` takes."""
TRUSTED = ("flash", "efficient", "math")
"""What "auto" chooses from. cuDNN's attention, torch's own choice on Hopper and B200, is left out:
wrong or NaN gradients are reported for it and open (NVIDIA/cudnn-frontend 160 and 1072, pytorch
193893), and one training that died of them after 65,000 steps (kyutai-labs/pocket-tts 264)."""


def attention_backend(config: Config, device: torch.device) -> str:
    """Choose the kernel that computes attention of the run's shape and dtype on a device, and
    return its key in `ATTENTION`.

    For "auto" torch chooses among `TRUSTED`. Raises `UserError` if the named one cannot compute
    this shape.
    """
    model, asked = config.model, config.execution.attention
    size = config.batch.sequence_length, model.head_size
    more: Any = {"dtype": getattr(torch, config.numerics.dtype), "device": device}
    query, key = (
        torch.empty(1, heads, *size, **more, requires_grad=True)
        for heads in (model.attention_heads, model.key_value_heads)
    )
    grouped = query.shape != key.shape
    wanted = [ATTENTION[name] for name in (TRUSTED if asked == "auto" else (asked,))]
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

    Under sequence parallelism each rank sees only a part of the positions. The mark on the weight
    makes Megatron's `finalize_model_grads` sum its gradient over the tensor-parallel ranks. Norms
    of queries and keys see whole sequences but only a part of the heads, and need the same sum.
    Megatron finds them by their names, also without sequence parallelism.
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
    """A mixin for Megatron's matrix products over tensor ranks, which makes them plain products if
    there is only one tensor rank."""

    def forward(self: Any, input_: Tensor, *more: Any, **named: Any) -> tuple[Tensor, None]:
        if self.tp_group.size() == 1 and not more and not named:
            return F.linear(input_, self.weight), None
        return super().forward(input_, *more, **named)  # type: ignore[misc]


class ColumnLinear(_SkipTensorParallel, ColumnParallelLinear):
    """A matrix product whose output features are split over tensor ranks."""


class RowLinear(_SkipTensorParallel, RowParallelLinear):
    """A matrix product whose input features are split over tensor ranks."""


class SelfAttention(MegatronModule):
    """Causal attention with rotary position embeddings. Each group of query heads shares one key
    and one value head (grouped-query attention).

    No mask tensor is made. Dropout is not offered, since the paper's runs have none. Parameters
    have the names, shapes and order of those of Megatron's own `SelfAttention`.
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
        # This one is created first, as in Megatron, because the last bit of a gradient norm depends
        # on the order of the parameters.
        self.linear_proj = RowLinear(queries, config.hidden_size, input_is_parallel=True, **shared)
        self.linear_qkv = ColumnLinear(config.hidden_size, qkv, gather_output=False, **shared)
        norm = RMSNorm if config.qk_layernorm else IdentityOp
        self.q_layernorm = norm(config, config.kv_channels, config.layernorm_epsilon)
        self.k_layernorm = norm(config, config.kv_channels, config.layernorm_epsilon)

    def forward(self, hidden: Tensor, rotary: Tensor) -> Tensor:
        """hidden (l, b, d), or (l / tensor ranks, b, d) under sequence parallelism; same shape out.
        rotary: a table of `RotaryTable`."""
        mixed, _ = self.linear_qkv(hidden)
        # The features of each group of heads are its queries, its key and its value, in this order.
        # `query`, `key` and `value` become (l, b, heads, size) each.
        by_group = mixed.unflatten(-1, (-1, self.queries_per_group + 2, self.config.kv_channels))
        query, key, value = (
            part.flatten(2, 3) for part in by_group.split([self.queries_per_group, 1, 1], dim=3)
        )
        query, key = self.q_layernorm(query), self.k_layernorm(key)
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        attended = F.scaled_dot_product_attention(
            rotate(query, rotary),
            rotate(key, rotary),
            # Attention walks over the values of one head, which lie far apart in Megatron's order.
            value.contiguous(),
            is_causal=True,
            enable_gqa=self.queries_per_group > 1,
        )
        projected, _ = self.linear_proj(attended.permute(2, 0, 1, 3).flatten(2))
        return projected


class FeedForward(MLP):
    """A dense feed-forward layer: the matrices of Megatron's `MLP` with our SwiGLU between them, in
    place of Megatron's own forward pass, which serves a dozen activations."""

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
    """A mixture of experts: the router, the exchange of positions between ranks, and the experts of
    this rank."""

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
    """Attention, then a feed-forward layer or a mixture of experts, each applied to the normed
    hidden states and added to them.

    It replaces Megatron's TransformerLayer, which also serves inference. Since 0.20 that one also
    opens a telemetry span for each layer, so that torch.compile would compile each layer anew.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        pg_collection: ProcessGroupCollection,
        **unused: Any,
    ) -> None:
        """`layer_number`: counted from 1, as Megatron's TransformerBlock counts. `pg_collection`:
        the process groups."""
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
        """Return the hidden states after attention, and their normed form, which the feed-forward
        layer or the experts read."""
        hidden = hidden + self.self_attention(self.input_layernorm(hidden), rotary)
        return hidden, self.pre_mlp_layernorm(hidden)


class Decoder(TransformerBlock):
    """All layers and the final norm. In a checkpoint they have the names that Megatron's
    TransformerBlock gives them."""

    recomputed = False
    """Whether only the inputs of each layer are kept in the forward pass, and the layer is computed
    again in the backward pass (activation checkpointing)."""

    def __init__(self, config: TransformerConfig) -> None:
        layers = [ModuleSpec(Layer)] * config.num_layers
        super().__init__(config, TransformerBlockSubmodules(layers, layer_norm=RMSNorm))

    def forward(self, hidden: Tensor, rotary: Tensor) -> Tensor:
        """hidden (l, b, d), or (l / tensor ranks, b, d) under sequence parallelism; same shape out.
        rotary: a table of `RotaryTable`."""
        for layer in self.layers:
            if self.recomputed:
                # torch's checkpointing rather than Megatron's, which restores random generators
                # that exist only on GPUs. Nothing here draws random numbers.
                hidden = checkpoint(
                    layer, hidden, rotary, use_reentrant=False, preserve_rng_state=False
                )
            else:
                hidden = layer(hidden, rotary)
        return self.final_layernorm(hidden)


def compile_layers(layers: Iterable[Any], backend: str = "inductor") -> None:
    """Apply torch.compile to the parts of layers. All layers share one compiled graph per part.

    A dense layer is one part. The parts of a layer with experts are attention, routing, activation
    and the sum of the experts' outputs. What lies between these, messages and grouped products, has
    sizes that depend on the data and is not compiled.

    With one tensor rank, a part that cannot become a single graph raises an error at its first
    call. With several tensor ranks, Megatron's messages between them break the graph, which is then
    allowed.
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
