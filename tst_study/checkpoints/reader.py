"""Parts of a distributed checkpoint, whatever layout wrote it, read one at a time.

A checkpoint holds global tensors in chunks, by Megatron's names, with layers and experts as leading
axes. Reading them needs neither process groups nor a model, and never more memory than the part
that is asked for and the chunks it lies in.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from tst_study.checkpoints.pickles import load_object, read_description
from tst_study.errors import UserError

CHUNKS_KEPT = 4
"""Experts of a layer may share a chunk, and gates, upward and downward projections take turns."""


class CheckpointReader:
    """Raises `UserError` where the folder holds no checkpoint, or a damaged or hostile one."""

    def __init__(self, place: str | Path) -> None:
        self.place = Path(place)
        description = read_description(self.place)
        self._places = description.storage_data
        self._tensors = {
            name: value
            for name, value in description.state_dict_metadata.items()
            if isinstance(value, TensorStorageMetadata)
        }
        self._chunk = lru_cache(CHUNKS_KEPT)(self._load)
        self._chunks_by_place = lru_cache(None)(self._group_chunks)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole model's tensor. Raises `UserError` where there is none of that name."""
        return tuple(self._of(name).size)

    def dtype(self, name: str) -> torch.dtype:
        return self._of(name).properties.dtype

    def read(self, name: str, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """The part of a global tensor that begins at `offsets`, of shape `sizes`, on the CPU."""
        whole = self._of(name)
        part = None
        found = 0
        for chunk in self._near(name, offsets, sizes):
            low = [max(a, b) for a, b in zip(offsets, chunk.offsets, strict=True)]
            high = [
                min(a + n, b + m)
                for a, n, b, m in zip(offsets, sizes, chunk.offsets, chunk.sizes, strict=True)
            ]
            shape = [b - a for a, b in zip(low, high, strict=True)]
            if min(shape, default=1) <= 0:
                continue
            data = self._chunk(name, chunk.offsets).view(tuple(chunk.sizes))
            inside = data[_slices(low, shape, chunk.offsets)]
            if shape == list(sizes):
                return inside
            if part is None:
                part = torch.empty(tuple(sizes), dtype=whole.properties.dtype)
            part[_slices(low, shape, offsets)] = inside
            found += math.prod(shape)
        if part is None or found != math.prod(sizes):
            raise UserError(
                f"{self.place}: {name} holds {found} of the {math.prod(sizes)} numbers at "
                f"{tuple(offsets)}; it is of another model, or not whole"
            )
        return part

    def _near(
        self, name: str, offsets: Sequence[int], sizes: Sequence[int]
    ) -> Sequence[ChunkStorageMetadata]:
        """The chunks that can hold any of a part; a model of experts has thousands."""
        axes, groups = self._chunks_by_place(name)
        if any(size != 1 for size in sizes[:axes]):
            return self._of(name).chunks
        return groups.get(tuple(offsets[:axes]), [])

    def _group_chunks(
        self, name: str
    ) -> tuple[int, dict[tuple[int, ...], list[ChunkStorageMetadata]]]:
        """The number of leading axes along which all chunks are one thick, and the chunks by their
        place there: by layer, or by layer and expert."""
        chunks = self._of(name).chunks
        axes = 0
        while axes < len(chunks[0].sizes) and all(chunk.sizes[axes] == 1 for chunk in chunks):
            axes += 1
        groups: dict[tuple[int, ...], list[ChunkStorageMetadata]] = {}
        for chunk in chunks:
            groups.setdefault(tuple(chunk.offsets[:axes]), []).append(chunk)
        return axes, groups

    def _of(self, name: str) -> TensorStorageMetadata:
        if name not in self._tensors:
            raise UserError(f"{self.place}: has no tensor {name}; it is of another kind of model")
        return self._tensors[name]

    def _load(self, name: str, offsets: torch.Size) -> Tensor:
        info = self._places[MetadataIndex(name, offsets)]
        loaded: Tensor = load_object(self.place / info.relative_path, info, name)
        return loaded


def _slices(start: Sequence[int], shape: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(a - o, a - o + n) for a, n, o in zip(start, shape, origin, strict=True))
