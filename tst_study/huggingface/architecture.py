"""Which of transformers' architectures a model is, and its config.json.

Superposition leaves nothing in a model: a trained one is a Llama, Qwen3, Mixtral or Qwen3-MoE, and
no code of ours is needed to load it.
"""

from dataclasses import dataclass
from typing import Any

from tst_study.config.schema import Model
from tst_study.errors import UserError


@dataclass(frozen=True)
class Architecture:
    model_type: str
    class_name: str
    qk_norm: bool
    expert_count: str = ""
    """Key of config.json; empty without experts."""
    expert_width: str = ""


ARCHITECTURES = (
    Architecture("llama", "LlamaForCausalLM", False),
    Architecture("qwen3", "Qwen3ForCausalLM", True),
    Architecture("mixtral", "MixtralForCausalLM", False, "num_local_experts", "intermediate_size"),
    Architecture("qwen3_moe", "Qwen3MoeForCausalLM", True, "num_experts", "moe_intermediate_size"),
)


def architecture_of(model: Model) -> Architecture:
    kinds = (kind for kind in ARCHITECTURES if kind.qk_norm == model.qk_norm)
    return next(kind for kind in kinds if bool(kind.expert_count) == bool(model.experts))


def to_huggingface(
    model: Model, positions: int, dtype: str, end_of_document: int | None
) -> dict[str, Any]:
    """config.json of a model.

    `positions`: the longest context it was trained on. Raises `UserError` for a shape that
    transformers refuses.
    """
    kind = architecture_of(model)
    if kind.model_type == "llama" and model.hidden_size % model.attention_heads:
        raise UserError(
            f"model.hidden_size = {model.hidden_size} is not a multiple of attention_heads = "
            f"{model.attention_heads}: transformers has no such Llama; train with qk_norm = true"
        )
    config = {
        "architectures": [kind.class_name],
        "model_type": kind.model_type,
        "attention_bias": False,
        "attention_dropout": 0.0,
        # None, not left out: the classes' own defaults are ids of other tokenizers.
        "bos_token_id": None,
        "eos_token_id": end_of_document,
        # Where a document ends, no loss looks: it may as well fill lines up.
        "pad_token_id": end_of_document,
        "head_dim": model.head_size,
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "initializer_range": model.initial_deviation,
        "intermediate_size": model.feed_forward_size,
        "max_position_embeddings": positions,
        "num_attention_heads": model.attention_heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.key_value_heads,
        "rms_norm_eps": model.norm_epsilon,
        # Releases before 5 read the first, those since then the second.
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "tie_word_embeddings": model.tied_embeddings,
        "torch_dtype": dtype,
        "use_cache": True,
        "vocab_size": model.vocabulary_size,
    }
    if kind.model_type == "llama":
        config["mlp_bias"] = False
    if model.experts is not None:
        config |= {
            "num_experts_per_tok": model.experts.per_token,
            "output_router_logits": False,
            "router_aux_loss_coef": model.experts.balance_loss,
            kind.expert_count: model.experts.count,
            kind.expert_width: model.experts.feed_forward_size,
        }
    if kind.model_type == "qwen3_moe":
        config |= {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
    return config
