"""Tensors of a distributed checkpoint, whatever layout wrote it, read without groups or a model.

A checkpoint holds global tensors in chunks, by Megatron's names, with layers and experts as leading
axes. `torch.distributed.checkpoint` puts the chunks together; what it is told of them has passed
`read_description`.
"""

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from tst_study.checkpoints.pickles import read_description, reason_of
from tst_study.errors import UserError


class CheckpointReader:
    """Raises `UserError` where the folder holds no checkpoint, or a damaged or hostile one."""

    def __init__(self, place: str | Path) -> None:
        self.place = Path(place)
        self._description = read_description(self.place)
        self._files = FileSystemReader(self.place)
        self._files.set_up_storage_reader(self._description, is_coordinator=True)
        self._tensors = {
            name: value
            for name, value in self._description.state_dict_metadata.items()
            if isinstance(value, TensorStorageMetadata)
        }

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole model's tensor. Raises `UserError` where there is none of that name."""
        return tuple(self._of(name).size)

    def dtype(self, name: str) -> torch.dtype:
        return self._of(name).properties.dtype

    def read(self, name: str, index: tuple[int, ...] = ()) -> Tensor:
        """A global tensor, or the part of it at `index` of its leading axes, on the CPU.

        Raises `UserError`, which names the file, where that cannot be read.
        """
        whole = self._of(name)
        leading, sizes = len(index), whole.size[len(index) :]
        chunk = ChunkStorageMetadata(
            torch.Size((*index, *(0,) * len(sizes))), torch.Size((*(1,) * leading, *sizes))
        )
        target = torch.empty(chunk.sizes, dtype=whole.properties.dtype)
        items = create_read_items_for_chunk_list(name, whole, [chunk])
        found = sum(math.prod(item.lengths) for item in items)
        if found != target.numel():
            raise UserError(
                f"{self.place}: {name} holds {found} of the {target.numel()} numbers at {index}; "
                "it is of another model, or not whole"
            )
        for item in items:
            file = self._description.storage_data[item.storage_index].relative_path
            try:
                self._files.read_data(LoadPlan([item]), _Filling(target)).wait()
            except Exception as error:  # damaged files fail in more ways than a list could name
                raise UserError(
                    f"{self.place / file}: {name} cannot be read ({reason_of(error)})"
                ) from None
        return target.view(sizes)

    def _of(self, name: str) -> TensorStorageMetadata:
        if name not in self._tensors:
            raise UserError(f"{self.place}: has no tensor {name}; it is of another kind of model")
        return self._tensors[name]


class _Filling(DefaultLoadPlanner):
    """Whatever is read goes into one tensor."""

    def __init__(self, target: Tensor) -> None:
        super().__init__()
        self._target = target

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._target
