"""Loads the weights of a Hugging Face model into the model of a run that begins with them
(`fork_from = "hf:FOLDER"`): the inverse of `export.py`."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tst_study.config.schema import Model
from tst_study.config.tensor_names import EMBEDDING, HEAD, NamedTensor, entries, weight_files
from tst_study.errors import UserError
from tst_study.model.initialization import copy_slice, shards


def load_weights(model: torch.nn.Module, shape: Model, folder: Path) -> None:
    """Fill this rank's shards of the weights in place from the files of a Hugging Face model.

    `shape` describes the model. Numbers are converted to the dtype of the run's weights.

    Raises `UserError` as `tensor_names.weight_files` does, and if a head that is tied to the
    embedding is stored with other numbers.
    """
    from safetensors import safe_open

    places = weight_files(folder, shape)
    opened: dict[Path, Any] = {path: safe_open(path, "pt") for path in {*places.values()}}

    def read(name: str) -> Tensor:
        tensor: Tensor = opened[places[name]].get_tensor(name)
        return tensor

    if shape.tied_embeddings and HEAD in places and not torch.equal(read(HEAD), read(EMBEDDING)):
        raise UserError(
            f"fork_from: {folder}: {HEAD} differs from {EMBEDDING}, though config.json ties them; "
            "set tie_word_embeddings there to false"
        )
    parts: dict[tuple[str, tuple[int, ...]], list[NamedTensor]] = {}
    for entry in entries(shape):
        parts.setdefault((entry.source, entry.index), []).append(entry)

    # The shards of the gate and the upward projection follow each other and have one source, so
    # that a cache of one tensor saves reading it twice.
    @lru_cache(1)
    def whole(source: str, index: tuple[int, ...]) -> Tensor:
        return _joined({entry.part: read(entry.name) for entry in parts[source, index]}, shape)

    with torch.no_grad():
        for shard in shards(model):
            copy_slice(
                shard, whole(shard.key, tuple(shard.global_offset[: shard.prepend_axis_num]))
            )


def _joined(tensors: dict[str, Tensor], shape: Model) -> Tensor:
    """Join parts of the Hugging Face model into the Megatron tensor of one layer or expert, in the
    order that the docstring of `tensor_names` describes."""
    if "query" in tensors:
        by_group = [
            tensors[part].view(shape.key_value_heads, -1, shape.head_size, shape.hidden_size)
            for part in ("query", "key", "value")
        ]
        return torch.cat(by_group, dim=1).flatten(0, 2)
    return torch.cat(list(tensors.values()))
