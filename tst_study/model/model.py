"""The whole model, which reads and predicts bags or single tokens: Megatron-Core's embedding and
head around our layers, with the losses of both phases.

The trainer calls `build_model`. `tst-study evaluate` calls `empty_model`, and loads the weights of
a checkpoint into the result.
"""

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.models.common.embeddings.language_model_embedding import LanguageModelEmbedding
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.tensor_parallel.mappings import (
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from tst_study.config.schema import Config, Model
from tst_study.cost.memory import held_parameters
from tst_study.cost.parallel_layout import layout_of
from tst_study.errors import UserError
from tst_study.model.initialization import initialize
from tst_study.model.kernels import RotaryTable
from tst_study.model.layers import Decoder
from tst_study.model.megatron_patches import mark_split_weights
from tst_study.superposition import bag_embedding, bag_loss, linear_bag_loss
from tst_study.superposition.log_probabilities import bag_log_probabilities
from tst_study.superposition.steps import NEXT_TOKEN, Objective
from tst_study.superposition.vocabulary_shard import VocabularyShard


@dataclass(frozen=True)
class Targets:
    """The inputs that the loss of a micro-batch needs besides its logits."""

    labels: Tensor
    """(b, l·stride): the next-token labels of the raw sequences."""
    valid_counts: Tensor
    """(s,): for each offset in a bag, the number of targets that are not ignored, over the whole
    step and all ranks."""
    objective: Objective = NEXT_TOKEN


class SuperposedGPT(LanguageModule):
    """A decoder that can read bags and predict bags.

    Superposition adds no weights and no state. Parameters have the names that Megatron-Core's
    `GPTModel` gives them, so that both models have the same tensors in a checkpoint.
    """

    pre_process = post_process = True
    """Two flags that Megatron reads: whether a model has the embedding, and whether it has the
    head. A model that is divided into pipeline stages may lack one; ours is never divided."""
    compiled_loss = False
    """Whether torch.compile makes one kernel of all but the matrix products, where head and loss
    are computed in one pass."""

    def __init__(self, config: TransformerConfig, model: Model, length: int) -> None:
        """`length`: latent positions of a sequence."""
        super().__init__(config)
        self.share_embeddings_and_output_weights = model.tied_embeddings
        self.embedding = LanguageModelEmbedding(
            config, model.vocabulary_size, length, position_embedding_type="rope"
        )
        self.rotary = RotaryTable(model.head_size, model.rope_theta)
        self.decoder = Decoder(config)
        self.output_layer = ColumnParallelLinear(
            config.hidden_size,
            model.vocabulary_size,
            config=config,
            init_method=config.init_method,
            bias=False,
            gather_output=False,
            skip_weight_param_allocation=model.tied_embeddings,
            tp_group=self.tp_group,
        )
        self.setup_embeddings_and_output_layer()

    def forward(self, bags: Tensor, targets: Targets | None = None) -> Tensor:
        """Read bags of token ids (b, l, stride); with stride 1 each position reads one token.

        Returns this micro-batch's summand of the step's loss. If `targets` is None, returns the
        logits (b, l, V / tensor ranks) instead.
        """
        hidden = self.decoder(self.embed(bags), self.rotary(bags.shape[1]))
        return self.predict(hidden, targets)

    def embed(self, bags: Tensor) -> Tensor:
        """Embed bags of token ids, each as one vector: (b, l, stride) -> (l, b, d), or
        (l / tensor ranks, b, d) under sequence parallelism."""
        table = self.embedding.word_embeddings
        # Positions first, so that a sequence-parallel rank's share is contiguous.
        bags = bags.transpose(0, 1)
        if self.tp_group.size() == 1:
            return bag_embedding(table.weight, bags)
        sequence_parallel = self.config.sequence_parallel
        return bag_embedding(
            table.weight,
            bags,
            vocabulary_start=table.vocab_start_index,
            reduce=reduce_scatter_to_sequence_parallel_region
            if sequence_parallel
            else reduce_from_tensor_model_parallel_region,
        )

    def predict(self, hidden: Tensor, targets: Targets | None) -> Tensor:
        """Apply the head and the loss to hidden states (l, b, d), or (l / tensor ranks, b, d) under
        sequence parallelism, and return what `forward` returns."""
        tied = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if tied else None
        # If this rank has the whole vocabulary and the loss allows it, head and loss are computed
        # in one pass over chunks of rows, without logits for all positions at once.
        if targets is not None and self.tp_group.size() == 1 and targets.objective.loss.in_one_pass:
            return linear_bag_loss(
                hidden,
                self.output_layer.weight if weight is None else weight,
                targets.labels,
                targets.objective.bag_size,
                weighting=targets.objective.weighting,
                stride=targets.objective.stride,
                valid_counts=targets.valid_counts,
                compiled=self.compiled_loss,
            )
        logits, _ = self.output_layer(hidden, weight=weight)
        logits = logits.transpose(0, 1)
        if targets is None:
            return logits.contiguous()
        objective = targets.objective
        return bag_loss(
            logits,
            targets.labels,
            objective.bag_size,
            kind=objective.loss,
            weighting=objective.weighting,
            stride=objective.stride,
            valid_counts=targets.valid_counts,
            vocabulary_start=self.tp_group.rank() * logits.shape[-1],
            group=self.tp_group,
        )

    def next_token_losses(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each position in nats: token ids (b, l) and labels (b, l) -> (b, l).
        Where the label is negative, the loss is 0."""
        logits = self(NEXT_TOKEN.fold(ids)).flatten(0, 1)
        width = logits.shape[1]
        log_probabilities = bag_log_probabilities(
            logits,
            labels.clamp(min=0).view(-1, 1),
            shard=VocabularyShard.of(self.tp_group.rank() * width, width, self.tp_group),
        )
        return torch.where(labels >= 0, -log_probabilities.view(labels.shape), 0.0)


def transformer_config(config: Config) -> TransformerConfig:
    """Return the model's shape and layout as Megatron's configuration, which Megatron's modules and
    ours read.

    Raises `ValueError` for a layout that is still "auto".
    """
    model, parallel = config.model, layout_of(config)
    dtype = torch.bfloat16 if config.numerics.dtype == "bfloat16" else torch.float32
    experts: dict[str, Any] = {}
    width = model.feed_forward_size
    if model.experts is not None:
        width = model.experts.feed_forward_size
        experts = {
            "num_moe_experts": model.experts.count,
            "moe_ffn_hidden_size": width,
            "moe_router_topk": model.experts.per_token,
            "moe_router_dtype": "fp32",  # our router uses it anyway; Megatron warns of less
            "moe_aux_loss_coeff": model.experts.balance_loss,
        }
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.attention_heads,
        num_query_groups=model.key_value_heads,
        kv_channels=model.head_size,
        ffn_hidden_size=width,
        layernorm_epsilon=model.norm_epsilon,
        qk_layernorm=model.qk_norm,
        gated_linear_unit=True,
        add_bias_linear=False,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        # A micro-batch's loss is already its summand of the step's mean, so gradients must be
        # summed over ranks. Without this setting Megatron would average them.
        calculate_per_token_loss=True,
        perform_initialization=False,  # initialization.py draws the weights
        tensor_model_parallel_size=parallel.tensor,
        expert_model_parallel_size=parallel.expert,
        expert_tensor_parallel_size=parallel.expert_tensor_ranks,
        sequence_parallel=parallel.sequence_parallel,
        **experts,
    )


def build_model(config: Config) -> SuperposedGPT:
    """Build this rank's part of the model, with initial weights drawn from `config.seed`.

    Raises `UserError` if it has more or fewer weights than `tst_study.cost` counts, because arms
    are compared at the FLOPs that are counted there.
    """
    model = empty_model(config)
    held = held_parameters(config.model, layout_of(config))
    built, counted = sum(p.numel() for p in model.parameters()), held.dense + held.experts
    if built != counted:
        raise UserError(
            f"the model has {built:,} weights on this rank, but its cost counts {counted:,}: teach "
            "count_parameters and flops_per_position (tst_study/cost/compute.py) what was added"
        )
    initialize(model, config.model, config.seed)
    return model


def empty_model(config: Config) -> SuperposedGPT:
    """Build this rank's part of the model with uninitialized weights. This also works on torch's
    meta device, where no memory is allocated."""
    model = SuperposedGPT(transformer_config(config), config.model, config.batch.sequence_length)
    mark_split_weights(model)
    model.decoder.recomputed = config.execution.recompute == "layer"
    return model
