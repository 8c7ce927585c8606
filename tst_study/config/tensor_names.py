"""The tensors of a Hugging Face model as parts of Megatron's, for `export.py` and `start.py`, and
the files that hold them.

In a Megatron checkpoint, one tensor holds the same weight of all layers, with the layer as its
first axis; for weights of experts, the expert is the second. The gate and the upward projection of
SwiGLU lie in one tensor, gate first. The query, key and value projections of attention also lie in
one tensor, one group of heads after another: the queries of a group, then its key and its value.
Both formats rotate the same pairs of dimensions, half a head apart, so rotary embeddings need no
reordering.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from tst_study.atomic_files import read_json
from tst_study.config.architecture import architecture_of
from tst_study.config.schema import Model
from tst_study.errors import UserError, first_line
from tst_study.text import is_file_name, short

Part = Literal["whole", "query", "key", "value", "gate", "up"]


@with_config(ConfigDict(extra="allow"))
class _Index(TypedDict):
    weight_map: dict[str, str]


@dataclass(frozen=True)
class NamedTensor:
    """One tensor of an export."""

    name: str
    """The tensor's name in the Hugging Face model."""
    shape: tuple[int, ...]
    source: str
    """The name of the Megatron tensor that holds it, in a checkpoint."""
    index: tuple[int, ...] = ()
    """Indices along the source's leading axes: the layer, then the expert."""
    part: Part = "whole"
    """The part of the source at this index that makes up the tensor."""


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
"""The file of all tensors, or the file that says which tensor lies in which of several files."""
FLOATS = ("BF16", "F16", "F32", "F64")
"""Types of numbers that are weights by themselves. Others, such as F8_E4M3, need scales."""
COMPUTED = ".rotary_emb.inv_freq"
"""The end of the names of tensors that old releases of transformers saved although they follow from
config.json."""
QKV = "self_attention.linear_qkv.weight"
EXPERTS = "mlp.experts.experts."
"""Parts of Megatron's names: of the joined projections of attention, and of the weights of
experts."""


def entries(model: Model) -> Iterator[NamedTensor]:
    """Yield all tensors of a model's export: the embedding, the layers in order, the final norm,
    and the head if it is not tied to the embedding."""
    hidden, words = model.hidden_size, model.vocabulary_size
    yield NamedTensor(EMBEDDING, (words, hidden), "embedding.word_embeddings.weight")
    for layer in range(model.layers):
        yield from _layer(model, layer)
    yield NamedTensor("model.norm.weight", (hidden,), "decoder.final_layernorm.weight")
    if not model.tied_embeddings:
        yield NamedTensor(HEAD, (words, hidden), "output_layer.weight")


def _layer(model: Model, layer: int) -> Iterator[NamedTensor]:
    hidden, size = model.hidden_size, model.head_size
    queries, keys = model.attention_heads * size, model.key_value_heads * size

    def entry(name: str, shape: tuple[int, ...], source: str, part: Part = "whole") -> NamedTensor:
        place = f"model.layers.{layer}.{name}.weight"
        return NamedTensor(place, shape, f"decoder.layers.{source}", (layer,), part)

    yield entry("input_layernorm", (hidden,), "input_layernorm.weight")
    yield entry("self_attn.q_proj", (queries, hidden), QKV, "query")
    yield entry("self_attn.k_proj", (keys, hidden), QKV, "key")
    yield entry("self_attn.v_proj", (keys, hidden), QKV, "value")
    if model.qk_norm:
        yield entry("self_attn.q_norm", (size,), "self_attention.q_layernorm.weight")
        yield entry("self_attn.k_norm", (size,), "self_attention.k_layernorm.weight")
    yield entry("self_attn.o_proj", (hidden, queries), "self_attention.linear_proj.weight")
    yield entry("post_attention_layernorm", (hidden,), "pre_mlp_layernorm.weight")
    if model.experts is None:
        wide = model.feed_forward_size
        yield entry("mlp.gate_proj", (wide, hidden), "mlp.linear_fc1.weight", "gate")
        yield entry("mlp.up_proj", (wide, hidden), "mlp.linear_fc1.weight", "up")
        yield entry("mlp.down_proj", (hidden, wide), "mlp.linear_fc2.weight")
    else:
        yield from _experts(model, layer)


def _experts(model: Model, layer: int) -> Iterator[NamedTensor]:
    assert model.experts is not None
    hidden, wide, count = model.hidden_size, model.experts.feed_forward_size, model.experts.count
    mixtral = architecture_of(model.model_dump()).model_type == "mixtral"
    block = f"model.layers.{layer}.{'block_sparse_moe' if mixtral else 'mlp'}"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    router = "decoder.layers.mlp.router.weight"
    yield NamedTensor(f"{block}.gate.weight", (count, hidden), router, (layer,))
    both, back = (f"decoder.layers.{EXPERTS}linear_fc{n}.weight" for n in (1, 2))
    for expert in range(count):
        place, index = f"{block}.experts.{expert}", (layer, expert)
        yield NamedTensor(f"{place}.{gate}.weight", (wide, hidden), both, index, "gate")
        yield NamedTensor(f"{place}.{up}.weight", (wide, hidden), both, index, "up")
        yield NamedTensor(f"{place}.{down}.weight", (hidden, wide), back, index)


def weight_files(folder: Path, model: Model) -> dict[str, Path]:
    """Return the file of each tensor in a folder with the weights of a Hugging Face model: of
    `model.safetensors`, or of the files that `model.safetensors.index.json` names, and of no
    others.

    Raises `UserError` if there is neither or both, if a file cannot be read, if the index and its
    files differ, if a tensor of `model` is missing, has another shape or holds no floats, and if
    there is a tensor that `model` lacks.
    """
    from safetensors import SafetensorError, safe_open

    place = f"fork_from: {folder}"
    index = read_json(folder / INDEX, TypeAdapter(_Index))
    if (index is None) != (folder / WEIGHTS).exists():
        problem = f"has neither {WEIGHTS} nor" if index is None else f"has both {WEIGHTS} and"
        raise UserError(f"{place}: {problem} {INDEX}; save the model again, into an empty folder")
    listed = index["weight_map"] if index is not None else {}
    if odd := [name for name in listed.values() if not is_file_name(name)]:
        raise UserError(f"{folder / INDEX}: names {short(odd[0])}, which is not in this folder")
    files: dict[str, Path] = {}
    there: dict[str, tuple[str, tuple[int, ...]]] = {}
    for path in sorted({folder / name for name in listed.values()} or {folder / WEIGHTS}):
        try:
            with safe_open(path, "np") as file:
                for name in file.keys():  # noqa: SIM118  # it cannot be iterated
                    part = file.get_slice(name)
                    there[name] = part.get_dtype(), tuple(part.get_shape())
                    if name in files or listed.get(name, path.name) != path.name:
                        raise UserError(f"{path}: holds {name}, which {INDEX} has elsewhere")
                    files[name] = path
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path}: cannot be read ({first_line(error)}); restore it") from None
    wanted = {entry.name: entry.shape for entry in entries(model)}
    for name, shape in wanted.items():
        if name not in there:
            raise UserError(f"{place} has no tensor {name}")
        kind, found = there[name]
        if found != shape:
            raise UserError(f"{place}: {name} is {found}, not {shape}")
        if kind not in FLOATS:
            raise UserError(
                f"{place}: {name} holds {kind}, numbers that need scales; give the model in one of "
                f"{', '.join(FLOATS)}"
            )
    computed = {name for name in there if name.endswith(COMPUTED)}
    tied = {HEAD} if model.tied_embeddings else set()
    if more := sorted((there.keys() | listed.keys()) - wanted.keys() - computed - tied):
        raise UserError(f"{place}: has the tensor {short(more[0])}, which this model lacks")
    return files
