"""Loads the weights of a Hugging Face model into the model of a run that begins with them
(`fork_from = "hf:FOLDER"`): the inverse of `export.py`."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tst_study.config.schema import Model
from tst_study.errors import UserError, first_line
from tst_study.huggingface.tensor_names import Entry, entries
from tst_study.model.initialization import copy_slice, shards


def load_weights(model: torch.nn.Module, shape: Model, folder: Path) -> None:
    """Fill this rank's shards of the weights in place from a folder of `.safetensors` files.

    `shape` describes the model. Numbers are converted to the dtype of the run's weights.

    Raises `UserError` if a file cannot be opened, or if a tensor is missing or has another shape.
    """
    read = _tensors(folder)
    parts: dict[tuple[str, tuple[int, ...]], list[Entry]] = {}
    for entry in entries(shape):
        parts.setdefault((entry.source, entry.index), []).append(entry)

    # The shards of the gate and the upward projection follow each other and have one source, so
    # that a cache of one tensor saves reading it twice.
    @lru_cache(1)
    def whole(source: str, index: tuple[int, ...]) -> Tensor:
        return _joined({entry.part: read(entry) for entry in parts[source, index]}, shape)

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


def _tensors(folder: Path) -> Callable[[Entry], Tensor]:
    """Return a function that reads the tensor of an entry from a folder, and checks its shape."""
    from safetensors import SafetensorError, safe_open

    try:
        files: list[Any] = [safe_open(path, "pt") for path in sorted(folder.glob("*.safetensors"))]
    except (OSError, SafetensorError) as error:
        raise UserError(f"fork_from: {folder}: cannot be read ({first_line(error)})") from None
    places = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    def read(entry: Entry) -> Tensor:
        if entry.name not in places:
            raise UserError(f"fork_from: {folder} has no tensor {entry.name}")
        tensor: Tensor = places[entry.name].get_tensor(entry.name)
        if tuple(tensor.shape) != entry.shape:
            raise UserError(
                f"fork_from: {folder}: {entry.name} is {tuple(tensor.shape)}, not {entry.shape}"
            )
        return tensor

    return read
