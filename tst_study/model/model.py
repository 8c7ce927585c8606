"""Megatron's GPTModel with the two hooks of superposition: the input fold and the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from megatron.core.tensor_parallel.mappings import (
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.moe.router import Router
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from tst_study.config.schema import Config
from tst_study.cost.parallel_layout import layout_of, stage_layers
from tst_study.model.around_calls import AwaitsWeights
from tst_study.model.cpu_backend import cuda_means_cpu
from tst_study.model.initialization import initialize
from tst_study.model.kernels import RotaryTable
from tst_study.model.layers import block_specification, layer_specification
from tst_study.superposition import (
    bag_embedding,
    bag_log_probabilities,
    bag_loss,
    linear_bag_loss,
)
from tst_study.superposition.loss_kinds import Pooling
from tst_study.superposition.steps import NEXT_TOKEN, Objective
from tst_study.superposition.vocabulary_shard import VocabularyShard


@dataclass(frozen=True)
class Targets:
    """What the loss needs of a micro-batch, apart from the logits."""

    labels: Tensor
    """(b, l·stride) next-token labels of the raw sequence."""
    valid_counts: Tensor
    """(s,) valid targets per offset in the whole step."""
    objective: Objective = NEXT_TOKEN


class SuperposedGPT(AwaitsWeights, GPTModel):
    """An ordinary GPTModel that can read bags and predict bags.

    Superposition adds no weights and no state: a checkpoint of it is a GPTModel's.
    """

    compiled_loss = False
    """Whether torch.compile makes a kernel of what head and loss do beside their products."""

    def forward(self, bags: Tensor, targets: Targets | None = None) -> Tensor:
        """bags (b, l, s) token ids; s = 1 is ordinary text.

        Returns this micro-batch's summand of the step's loss, or the logits (b, l, V / tensor
        ranks) where `targets` is None; on a pipeline stage that is not the last, hidden states.
        """
        pooling = targets.objective.pooling if targets is not None else "mean"
        embedded = self.embed(bags, pooling) if self.pre_process else None
        return super().forward(
            input_ids=None,
            position_ids=None,
            attention_mask=None,
            decoder_input=embedded,
            labels=targets,
        )

    def embed(self, bags: Tensor, pooling: Pooling = "mean") -> Tensor:
        """(b, l, s) -> (l, b, d), or (l / tensor ranks, b, d) under sequence parallelism."""
        table = self.embedding.word_embeddings
        # Positions first, so that a sequence-parallel rank's share is contiguous.
        bags = bags.transpose(0, 1)
        if parallel_state.get_tensor_model_parallel_world_size() == 1:
            return bag_embedding(table.weight, bags, pooling=pooling)
        sequence_parallel = self.config.sequence_parallel
        return bag_embedding(
            table.weight,
            bags,
            pooling=pooling,
            vocabulary_start=table.vocab_start_index,
            reduce=reduce_scatter_to_sequence_parallel_region
            if sequence_parallel
            else reduce_from_tensor_model_parallel_region,
        )

    def _postprocess(
        self, hidden_states: Tensor, *more: Any, labels: Targets | None, **named: Any
    ) -> Tensor:
        """Megatron's last step: head and loss. hidden_states (l, b, d)."""
        # Where this rank has the whole vocabulary, head and loss are one pass over rows.
        if (
            labels is None
            or not self.post_process
            or self.tp_group.size() > 1
            or not labels.objective.loss.in_one_pass
        ):
            return super()._postprocess(hidden_states, *more, labels=labels, **named)
        tied = self.share_embeddings_and_output_weights
        return linear_bag_loss(
            hidden_states,
            self.shared_embedding_or_output_weight() if tied else self.output_layer.weight,
            labels.labels,
            labels.objective.bag_size,
            weighting=labels.objective.weighting,
            stride=labels.objective.stride,
            valid_counts=labels.valid_counts,
            compiled=self.compiled_loss,
        )

    def compute_language_model_loss(self, labels: Targets, logits: Tensor) -> Tensor:
        """Megatron's hook, called by GPTModel.forward; logits (l, b, V / tensor ranks)."""
        objective = labels.objective
        return bag_loss(
            logits.transpose(0, 1),
            labels.labels,
            objective.bag_size,
            kind=objective.loss,
            weighting=objective.weighting,
            stride=objective.stride,
            valid_counts=labels.valid_counts,
            vocabulary_start=self.tp_group.rank() * logits.shape[-1],
            group=self.tp_group,
            inplace=True,
        )

    def next_token_losses(self, ids: Tensor, labels: Tensor) -> Tensor:
        """(b, l) token ids and labels -> (b, l) losses in nats, 0 where a label is negative.

        On a pipeline stage that is not the last, hidden states.
        """
        output = self(NEXT_TOKEN.fold(ids))
        if not self.post_process:
            return output
        logits = output.flatten(0, 1)
        width = logits.shape[1]
        log_probabilities = bag_log_probabilities(
            logits,
            labels.clamp(min=0).view(-1, 1),
            shard=VocabularyShard.of(self.tp_group.rank() * width, width, self.tp_group),
        )
        return torch.where(labels >= 0, -log_probabilities.view(labels.shape), 0.0)


def transformer_config(config: Config) -> TransformerConfig:
    """Megatron's configuration of this model and layout."""
    model, parallel = config.model, layout_of(config)
    _, last = stage_layers(model, parallel.pipeline)
    dtype = torch.bfloat16 if config.numerics.dtype == "bfloat16" else torch.float32
    experts: dict[str, Any] = {}
    width = model.feed_forward_size
    if model.experts is not None:
        width = model.experts.feed_forward_size
        experts = {
            "num_moe_experts": model.experts.count,
            "moe_ffn_hidden_size": width,
            "moe_router_topk": model.experts.per_token,
            # Per sequence, so that it does not depend on how sequences are spread over ranks.
            "moe_router_load_balancing_type": "seq_aux_loss",
            "moe_aux_loss_coeff": model.experts.balance_loss,
            "moe_z_loss_coeff": model.experts.router_z_loss or None,
            "moe_router_dtype": "fp32",
            "moe_token_dispatcher_type": "alltoall",
        }
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.attention_heads,
        num_query_groups=model.key_value_heads,
        kv_channels=model.head_size,
        ffn_hidden_size=width,
        layernorm_epsilon=model.norm_epsilon,
        normalization="RMSNorm",
        qk_layernorm=model.qk_norm,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        # Losses are exact sums over a step already: gradients are summed over ranks, not averaged.
        calculate_per_token_loss=True,
        perform_initialization=False,  # by parameter name instead: see initialization.py
        use_cpu_initialization=False,
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        num_layers_in_last_pipeline_stage=last if parallel.pipeline > 1 else None,
        expert_model_parallel_size=parallel.expert,
        expert_tensor_parallel_size=parallel.expert_tensor_ranks,
        sequence_parallel=parallel.sequence_parallel,
        batch_p2p_sync=False,  # waits for all kernels at every exchange, for torch before 2.0
        deallocate_pipeline_outputs=True,  # the next stage has them
        gradient_accumulation_fusion=False,  # these fusions need TransformerEngine or Apex
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        moe_permute_fusion=False,
        moe_router_fusion=False,
        **experts,
    )


def build_model(config: Config) -> SuperposedGPT:
    """The model on this rank's device, with the weights that `config.seed` names."""
    model = empty_model(config)
    initialize(model, config.model, config.seed)
    return model


def empty_model(config: Config) -> SuperposedGPT:
    """This rank's part of the model, its weights not filled yet; also on the meta device."""
    megatron_config = transformer_config(config)
    layer = layer_specification(megatron_config)
    with cuda_means_cpu():
        model = SuperposedGPT(
            config=megatron_config,
            transformer_layer_spec=block_specification(megatron_config, layer),
            vocab_size=config.model.vocabulary_size,
            max_sequence_length=config.batch.sequence_length,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            share_embeddings_and_output_weights=config.model.tied_embeddings,
            position_embedding_type="rope",
            rotary_base=config.model.rope_theta,
        )
    model.rotary_pos_emb = RotaryTable(config.model.head_size, config.model.rope_theta)
    others = (p for name, p in model.named_parameters() if not name.endswith("router.weight"))
    device = next(others).device
    for module in model.modules():
        if isinstance(module, Router):
            # Megatron makes it on the CPU and moves it in the first forward pass: after the
            # optimizer's hooks and main weights were made.
            moved = torch.nn.Parameter(module.weight.to(device))
            moved.__dict__.update(module.weight.__dict__)  # marks that Megatron goes by
            module.weight = moved
        split = isinstance(
            module, ColumnParallelLinear | RowParallelLinear | VocabParallelEmbedding
        )
        if split and module.weight is not None:
            # Megatron leaves this mark where it draws the weights, which `initialize` does here.
            module.weight.tensor_model_parallel = True
    for layer in model.decoder.layers:
        layer.recomputed = config.execution.recompute == "layer"
        layer.mlp.recomputed = config.execution.recompute == "feed_forward"
    return model
