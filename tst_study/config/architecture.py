"""The classes of `transformers` that compute what our models do, and their config.json.

Superposition adds nothing to a model. A trained one is an ordinary Llama, Qwen3, Mixtral or
Qwen3-MoE; once it is exported, transformers loads it without this package. A run may also begin
with the weights of such a model (`fork_from = "hf:FOLDER"`).

A model is given here by the keys of a config's section `[model]`, as plain values, because the
schema of that section reads models with this module.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tst_study.errors import UserError, first_line, one_of
from tst_study.text import short

HUGGING_FACE = "hf:"
"""The prefix of a config's `fork_from`, before the folder of a Hugging Face model."""


@dataclass(frozen=True)
class Architecture:
    """A class of `transformers` for causal language models."""

    model_type: str
    """The `model_type` of its config.json."""
    class_name: str
    qk_norm: bool
    """Whether its attention normalises queries and keys."""
    expert_count: str = ""
    """Key of config.json for the number of experts; empty for a dense model."""
    expert_width: str = ""
    """Key of config.json for the width of one expert; empty for a dense model."""


ARCHITECTURES = (
    Architecture("llama", "LlamaForCausalLM", False),
    Architecture("qwen3", "Qwen3ForCausalLM", True),
    Architecture("mixtral", "MixtralForCausalLM", False, "num_local_experts", "intermediate_size"),
    Architecture("qwen3_moe", "Qwen3MoeForCausalLM", True, "num_experts", "moe_intermediate_size"),
)
SHAPE = {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "attention_heads": "num_attention_heads",
    "key_value_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "feed_forward_size": "intermediate_size",
    "vocabulary_size": "vocab_size",
    "norm_epsilon": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "initial_deviation": "initializer_range",
    "tied_embeddings": "tie_word_embeddings",
}
"""Keys of our `[model]` and the corresponding keys of config.json, which are the same for all four
architectures. `qk_norm` and `experts` are not among them: they follow from the architecture and its
own keys."""
ONLY_VALUES = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "rope_type": "default",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "quantization_config": None,
}
"""Settings of config.json, each with the only value that our layers support. All but `rope_type`,
which is part of `rope_parameters`, are at the top level."""


def architecture_of(model: Mapping[str, Any]) -> Architecture:
    """Return the architecture whose layers compute the same as the layers of this model."""
    kinds = (kind for kind in ARCHITECTURES if kind.qk_norm == model["qk_norm"])
    return next(kind for kind in kinds if bool(kind.expert_count) == bool(model["experts"]))


def to_huggingface(
    model: Mapping[str, Any], positions: int, dtype: str, end_of_document: int | None
) -> dict[str, Any]:
    """Return the content of config.json for a model.

    Args:
        positions: the longest context that the model was trained on.
        dtype: torch's name of the type of the weights, such as "bfloat16".
        end_of_document: the id of the token that ends documents; None if there is none.

    Raises:
        UserError: the model would be a Llama whose `hidden_size` is not a multiple of
            `attention_heads`, which transformers refuses.
    """
    kind, hidden, heads = architecture_of(model), model["hidden_size"], model["attention_heads"]
    if kind.model_type == "llama" and hidden % heads:
        raise UserError(
            f"model.hidden_size = {hidden} is not a multiple of attention_heads = {heads}: "
            "transformers has no such Llama; train with qk_norm = true"
        )
    config = {
        "architectures": [kind.class_name],
        "model_type": kind.model_type,
        "attention_bias": False,
        "attention_dropout": 0.0,
        # Written as None rather than left out, because the classes' default ids belong to other
        # tokenizers.
        "bos_token_id": None,
        "eos_token_id": end_of_document,
        # Our tokenizers have no padding token, so the token that ends documents is used instead.
        "pad_token_id": end_of_document,
        "hidden_act": "silu",
        "max_position_embeddings": positions,
        # transformers 5 and later read this key; older releases read `rope_theta`, which is written
        # as well (`SHAPE`).
        "rope_parameters": {"rope_type": "default", "rope_theta": model["rope_theta"]},
        "torch_dtype": dtype,
        "use_cache": True,
        **{theirs: model[ours] for ours, theirs in SHAPE.items()},
    }
    if kind.model_type == "llama":
        config["mlp_bias"] = False
    if experts := model["experts"]:
        config |= {
            "num_experts_per_tok": experts["per_token"],
            "output_router_logits": False,
            "router_aux_loss_coef": experts["balance_loss"],
            kind.expert_count: experts["count"],
            kind.expert_width: experts["feed_forward_size"],
        }
    if kind.model_type == "qwen3_moe":
        config |= {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
    return config


def from_huggingface(folder: Path) -> dict[str, Any]:
    """Read the keys of `[model]` from a model's config.json, except `balance_loss`.

    Raises `UserError` if transformers can read no config.json there, if the model is of none of our
    `ARCHITECTURES`, or if one of its settings differs from `ONLY_VALUES`.
    """
    from transformers import AutoConfig

    kinds = {kind.model_type: kind for kind in ARCHITECTURES}
    try:
        theirs = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # its class depends on the file and on the version
        raise UserError(
            f"fork_from: {folder}: has no config.json that transformers reads ({first_line(error)})"
        ) from None
    kind = kinds[one_of(theirs.model_type, kinds, f"fork_from: {folder}: model_type")]
    rope = theirs.rope_parameters
    for key, ours in ONLY_VALUES.items():
        value = rope["rope_type"] if key == "rope_type" else getattr(theirs, key, ours)
        if value != ours:
            said = f"{key} is {short(value)}; only {ours!r} is supported"
            raise UserError(f"fork_from: {folder}: {said}")
    shape = {ours: getattr(theirs, key, None) for ours, key in SHAPE.items()}
    shape |= {"rope_theta": rope["rope_theta"], "qk_norm": kind.qk_norm}
    shape["head_size"] = shape["head_size"] or theirs.hidden_size // theirs.num_attention_heads
    if kind.expert_count:
        shape["experts"] = {
            "count": getattr(theirs, kind.expert_count),
            "per_token": theirs.num_experts_per_tok,
            "feed_forward_size": getattr(theirs, kind.expert_width),
        }
    return shape


def check_same_model(folder: Path, model: Mapping[str, Any]) -> None:
    """Raise `UserError` if the model in a folder is not the one that `[model]` describes, or if
    `from_huggingface` cannot read it.

    Three keys are not compared, because they do not describe the weights: `initial_deviation`,
    `experts.balance_loss` and, in a mixture of experts, `model.feed_forward_size`, which no layer
    uses.
    """
    theirs = from_huggingface(folder)
    theirs["experts"] = theirs.get("experts")
    unused = "initial_deviation", "feed_forward_size" if theirs["experts"] else ""
    for key, value in theirs.items():
        ours = model[key]
        if isinstance(ours, Mapping) and isinstance(value, Mapping):
            ours = {name: ours[name] for name in value}
        if ours != value and key not in unused:
            raise UserError(
                f"fork_from: {folder} has {key} = {value}, but model.{key} = {ours}; leave [model] "
                "out to take it from there"
            )
