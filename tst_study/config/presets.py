"""Named model shapes, which a config selects with `model.preset`.

The shapes of the paper's models come from the public configurations of the model families that it
names. The presets `laptop-*`, `moe-10b-a1b-twin` and `moe-1b` are our own. The models that the
paper calls 270M and 600M have that many weights only with as many key/value heads as query heads,
which is the default of the paper's training library. So `270m`, `600m` and `3b` do not use
grouped-query attention.
"""

from collections.abc import Mapping
from typing import Any

from tst_study.errors import one_of

LAPTOP_VOCABULARY = 1024
"""The vocabulary size of the bundled corpus's tokenizer."""
LLAMA3_VOCABULARY = 128_256
_QWEN3 = {"rope_theta": 50_000.0, "norm_epsilon": 1e-6}


_SHAPE = "layers", "hidden_size", "attention_heads", "key_value_heads", "feed_forward_size"
"""The keys of `[model]` whose values `dense` takes, in this order."""


def dense(*numbers: int, vocabulary_size: int = LLAMA3_VOCABULARY) -> dict[str, Any]:
    """Return the shape of a dense model; `numbers` are the values of the keys in `_SHAPE`."""
    shape = dict(zip(_SHAPE, numbers, strict=True))
    head_size = shape["hidden_size"] // shape["attention_heads"]
    return shape | {"head_size": head_size, "vocabulary_size": vocabulary_size}


def _moe(shape: dict[str, Any], count: int, per_token: int, size: int) -> dict[str, Any]:
    """Turn a dense shape into a mixture of `count` experts of width `size`."""
    return {
        **shape,
        "qk_norm": True,
        "experts": {"count": count, "per_token": per_token, "feed_forward_size": size},
    }


PRESETS: dict[str, dict[str, Any]] = {
    # Laptop sizes.
    "laptop-32": dense(2, 32, 1, 1, 88, vocabulary_size=LAPTOP_VOCABULARY),
    "laptop-64": dense(2, 64, 2, 2, 176, vocabulary_size=LAPTOP_VOCABULARY),
    "laptop-128": dense(4, 128, 4, 4, 352, vocabulary_size=LAPTOP_VOCABULARY),
    "laptop-256": dense(4, 256, 4, 4, 704, vocabulary_size=LAPTOP_VOCABULARY),
    "laptop-moe": _moe(dense(2, 64, 4, 2, 176, vocabulary_size=LAPTOP_VOCABULARY), 8, 2, 64),
    # SmolLM2-135M, SmolLM2-360M and SmolLM3-3B with the vocabulary of Llama 3, an output head of
    # their own, and no grouped queries.
    "270m": dense(30, 576, 9, 9, 1536),
    "600m": dense(32, 960, 15, 15, 2560),
    "3b": dense(36, 2048, 16, 16, 11008),
    # A Qwen3-MoE with 10B weights, of which 1B are active, as the authors' lab has it in its fork
    # of the training library.
    "moe-10b-a1b": _moe(
        dense(32, 1536, 24, 4, 512, vocabulary_size=151_936) | {"head_size": 128}, 128, 8, 512
    )
    | _QWEN3,
    # The same structure with fewer layers and small widths, for CPUs.
    "moe-10b-a1b-twin": _moe(
        dense(4, 96, 24, 4, 16, vocabulary_size=LAPTOP_VOCABULARY) | {"head_size": 8}, 128, 8, 16
    )
    | _QWEN3,
    # A model of the same family with about 1B weights, which fits one GPU with its optimizer state.
    "moe-1b": _moe(dense(16, 1024, 16, 4, 512, vocabulary_size=50_304), 32, 8, 512) | _QWEN3,
}


def expand_preset(model: Mapping[str, Any], source: str = "config") -> dict[str, Any]:
    """Return the section `model` with `preset = NAME` replaced by the keys of that shape.

    Keys that are given beside `preset` override those of the shape, also one by one inside
    `experts`. Raises `UserError`, which begins with `source`, for an unknown name.
    """
    given = dict(model)
    if "preset" not in given:
        return given
    name = given.pop("preset")
    shape = {**PRESETS[one_of(name, PRESETS, f"{source}: model.preset:")]}
    if isinstance(given.get("experts"), Mapping) and isinstance(shape.get("experts"), Mapping):
        given["experts"] = {**shape["experts"], **given["experts"]}
    return {**shape, **given}
