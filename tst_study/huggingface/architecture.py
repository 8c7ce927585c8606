"""Which of transformers' architectures a model is, and its config.json in both directions.

Superposition leaves nothing in a model: a trained one is a Llama, Qwen3, Mixtral or Qwen3-MoE, and
no code of ours is needed to load it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tst_study.config import Experts, Model
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
        "pad_token_id": None,
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


_ONLY: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "hidden_act": ("silu", "swish"),
    "rope_scaling": (None,),
    "partial_rotary_factor": (1, None),
    "use_sliding_window": (False, None),
    "norm_topk_prob": (True,),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
    "shared_expert_intermediate_size": (0, None),
}
"""What our models can be, where a config says it at all."""


def from_huggingface(config: Mapping[str, Any], source: str) -> Model:
    """The model that a config.json describes.

    Raises `UserError`, one line that begins with `source`, for what our models cannot be.
    """
    kinds = {known.model_type: known for known in ARCHITECTURES}
    kind = kinds.get(str(config.get("model_type")))
    if kind is None:
        raise UserError(
            f"{source}: model_type = {config.get('model_type')!r} is not known; there are "
            f"{', '.join(kinds)}"
        )
    for key, allowed in _ONLY.items():
        if key in config and config[key] not in allowed:
            raise UserError(f"{source}: {key} = {config[key]!r} is not supported")
    if kind.model_type == "qwen3_moe" and not config.get("norm_topk_prob", False):
        raise UserError(f"{source}: norm_topk_prob = false is not supported")
    if kind.model_type == "mixtral" and config.get("sliding_window"):
        raise UserError(f"{source}: sliding_window = {config['sliding_window']} is not supported")
    try:
        heads = config["num_attention_heads"]
        experts = None
        if kind.expert_count:
            experts = Experts(
                count=config[kind.expert_count],
                per_token=config["num_experts_per_tok"],
                feed_forward_size=config[kind.expert_width],
                balance_loss=float(config.get("router_aux_loss_coef", 1e-3)),
            )
        return Model(
            layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            attention_heads=heads,
            key_value_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            feed_forward_size=config["intermediate_size"],
            vocabulary_size=config["vocab_size"],
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            qk_norm=kind.qk_norm,
            rope_theta=_rope_theta(config, source),
            norm_epsilon=float(config["rms_norm_eps"]),
            initial_deviation=float(config.get("initializer_range", 0.02)),
            experts=experts,
        )
    except KeyError as error:
        raise UserError(f"{source}: {error.args[0]} is missing") from None
    except (ArithmeticError, TypeError, ValueError) as error:  # pydantic's too
        raise UserError(f"{source}: {' '.join(str(error).split())}") from None


def _rope_theta(config: Mapping[str, Any], source: str) -> float:
    parameters = config.get("rope_parameters") or {}
    if not isinstance(parameters, Mapping):
        raise UserError(f"{source}: rope_parameters = {parameters!r} is not supported")
    if parameters.get("rope_type", "default") != "default":
        raise UserError(
            f"{source}: rope_parameters.rope_type = {parameters['rope_type']!r} is not supported"
        )
    theta = parameters.get("rope_theta", config.get("rope_theta"))
    if theta is None:
        raise UserError(f"{source}: rope_theta is missing")
    return float(theta)


def read_config(folder: str | Path) -> dict[str, Any]:
    """config.json of a folder. Raises `UserError`."""
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{path}: missing; name a local folder of a model (`hf download` makes one)"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: is not a model's config.json")
    return config
