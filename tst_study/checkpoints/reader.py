"""Reads tensors of a distributed checkpoint, whatever layout wrote it.

A checkpoint holds whole tensors in chunks, under Megatron's names, with layers and experts as
leading axes. `torch.distributed.checkpoint` puts the chunks together, from a description that
`read_description` has checked. No process groups and no model are needed.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
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
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from tst_study.checkpoints.pickles import read_description, reason_of
from tst_study.errors import UserError


class CheckpointReader:
    """The tensors of one checkpoint folder. Raises `UserError` where it holds no checkpoint, or a
    damaged or hostile one."""

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
        """The shape of a whole tensor. Raises `UserError` if none has that name."""
        return tuple(self._of(name).size)

    def dtype(self, name: str) -> torch.dtype:
        return self._of(name).properties.dtype

    def read(self, name: str, index: tuple[int, ...] = ()) -> Tensor:
        """Read a whole tensor, or the part of it at `index` of its leading axes, on the CPU.

        Raises `UserError`, which names the file, where that cannot be read.
        """
        sizes = self.shape(name)[len(index) :]
        offset = torch.Size((*index, *(0,) * len(sizes)))
        target = torch.empty((*(1,) * len(index), *sizes), dtype=self.dtype(name))
        self.fill({MetadataIndex(name, offset): target})
        return target.view(sizes)

    def fill(self, targets: Mapping[MetadataIndex, Tensor]) -> None:
        """Read parts of tensors into their places, each under its tensor's name and its offset.

        Raises `UserError`, which names the file, where one cannot be read.
        """
        chunks: dict[str, list[ChunkStorageMetadata]] = defaultdict(list)
        for index, target in targets.items():
            assert index.offset is not None
            chunks[index.fqn].append(ChunkStorageMetadata(index.offset, target.shape))
        files: dict[str, list[ReadItem]] = defaultdict(list)
        for name, wanted in chunks.items():
            # For all parts of a tensor at once: that is a sweep, and not a search for each.
            items = create_read_items_for_chunk_list(name, self._of(name), wanted)
            stored = sum(math.prod(item.lengths) for item in items)
            numbers = sum(chunk.sizes.numel() for chunk in wanted)
            if stored != numbers:
                raise UserError(
                    f"{self.place}: {name} holds {stored} of the {numbers} numbers at "
                    f"{tuple(wanted[0].offsets)}; it is of another model, or not whole"
                )
            for item in items:
                place = self._description.storage_data[item.storage_index].relative_path
                files[place].append(item)
        for file, items in files.items():
            try:
                self._files.read_data(LoadPlan(items), _Filling(targets)).wait()
            except Exception as error:  # damaged files fail in more ways than a list could name
                raise UserError(
                    f"{self.place / file}: cannot be read ({reason_of(error)})"
                ) from None

    def _of(self, name: str) -> TensorStorageMetadata:
        if name not in self._tensors:
            raise UserError(f"{self.place}: has no tensor {name}; it is of another kind of model")
        return self._tensors[name]


class _Filling(DefaultLoadPlanner):
    """Gives torch's reader the tensors to fill."""

    def __init__(self, targets: Mapping[MetadataIndex, Tensor]) -> None:
        super().__init__()
        self._targets = targets

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._targets[index]
