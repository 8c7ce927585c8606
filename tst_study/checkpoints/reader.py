"""Reads tensors of a distributed checkpoint, whatever layout of ranks wrote it.

A checkpoint holds whole tensors in pieces, under Megatron's names, with layers and experts as
leading axes. `torch.distributed.checkpoint` puts the pieces together, without process groups and
without a model. A hostile checkpoint can neither run code nor name files elsewhere: only tensors
and plain values are unpickled, and only files in the checkpoint's own folder are read.
"""

import math
import pickle
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from tst_study.checkpoints.places import checkpoint_place
from tst_study.errors import UserError

COMMON = "common.pt"
"""The file that holds everything but the sharded tensors: the counters, the optimizer's
step count, and the list of the tensors' pieces."""


class Piece(NamedTuple):
    """A part of a tensor in a checkpoint, with its place in the whole tensor and in a file."""

    name: str
    whole: torch.Size
    """The shape of the whole tensor."""
    dtype: torch.dtype
    offset: torch.Size
    """The index of the part's first element in the whole tensor."""
    sizes: torch.Size
    """The shape of the part."""
    file: str
    start: int
    """The first byte in the file."""
    length: int
    """Number of bytes."""


def description_of(pieces: Iterable[Piece]) -> Metadata:
    """Describe the tensors of a checkpoint as torch's `Metadata`.

    Raises `ValueError` for a piece whose file lies outside the checkpoint's folder.
    """
    tensors: dict[str, Any] = {}
    whole = Metadata(tensors, storage_data={})
    for piece in pieces:
        if Path(piece.file).name != piece.file:
            raise ValueError(f"{piece.name} lies at {piece.file!r}, which is not in this folder")
        new = TensorStorageMetadata(TensorProperties(piece.dtype), piece.whole, [])
        chunk = ChunkStorageMetadata(piece.offset, piece.sizes)
        tensors.setdefault(piece.name, new).chunks.append(chunk)
        stored = _StorageInfo(piece.file, piece.start, piece.length)
        whole.storage_data[MetadataIndex(piece.name, piece.offset)] = stored
    return whole


class CheckpointReader:
    """The tensors of one checkpoint folder. Raises `UserError` if its description, `common.pt`, is
    missing, damaged or hostile."""

    common: dict[str, Any]
    """The content of `COMMON`: everything but the sharded tensors."""

    def __init__(self, place: str | Path) -> None:
        self.place = Path(place)
        try:
            self.common = torch.load(self.place / COMMON, "cpu", weights_only=True)
            self._description = description_of(Piece(*it) for it in self.common["pieces"])
            step = self.common.get("common", {}).get("step")
        except Exception as error:  # damaged files fail in more ways than a list could name
            raise UserError(f"{self.place / COMMON}: cannot be read ({reason_of(error)})") from None
        if step is not None and checkpoint_place(Path(), step).name != self.place.name:
            raise UserError(f"{self.place}: is of step {step}; give the folder its name back")
        self._files = FileSystemReader(self.place)
        self._files.set_up_storage_reader(self._description, is_coordinator=True)
        self._tensors: dict[str, Any] = self._description.state_dict_metadata

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole tensor. Raises `UserError` if no tensor has that name."""
        return tuple(self._of(name).size)

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of a tensor's numbers. Raises `UserError` if no tensor has that name."""
        return self._of(name).properties.dtype

    def read(self, name: str, index: tuple[int, ...] = ()) -> Tensor:
        """Read a whole tensor, or the part of it at `index` of its leading axes, into the CPU's
        memory. Raises `UserError` as `fill` does."""
        sizes = self.shape(name)[len(index) :]
        offset = torch.Size((*index, *(0,) * len(sizes)))
        target = torch.empty((*(1,) * len(index), *sizes), dtype=self.dtype(name))
        self.fill({MetadataIndex(name, offset): target})
        return target.view(sizes)

    def fill(self, targets: Mapping[MetadataIndex, Tensor]) -> None:
        """Read parts of tensors into `targets`. The key of each gives the name of the tensor and
        the offset of the part in it.

        Raises `UserError` if the checkpoint lacks a tensor or a part of one, or is damaged.
        """
        chunks: dict[str, list[ChunkStorageMetadata]] = defaultdict(list)
        for index, target in targets.items():
            assert index.offset is not None
            chunks[index.fqn].append(ChunkStorageMetadata(index.offset, target.shape))
        items: list[ReadItem] = []
        for name, wanted in chunks.items():
            # One call for all parts of a tensor lets torch find them in one sweep.
            found = create_read_items_for_chunk_list(name, self._of(name), wanted)
            stored = sum(math.prod(item.lengths) for item in found)
            numbers = sum(chunk.sizes.numel() for chunk in wanted)
            if stored != numbers:
                raise UserError(
                    f"{self.place}: {name} holds {stored} of the {numbers} numbers that this model "
                    "needs; the checkpoint is of another model, or not whole"
                )
            items += found
        try:
            self._files.read_data(LoadPlan(items), _Filling(targets)).wait()
        except Exception as error:  # damaged files fail in more ways than a list could name
            raise UserError(f"{self.place}: cannot be read ({reason_of(error)})") from None

    def _of(self, name: str) -> TensorStorageMetadata:
        if name not in self._tensors:
            raise UserError(f"{self.place}: has no tensor {name}; it is of another kind of model")
        tensor: TensorStorageMetadata = self._tensors[name]
        return tensor


class _Filling(DefaultLoadPlanner):
    """Gives torch's reader the tensors to fill."""

    def __init__(self, targets: Mapping[MetadataIndex, Tensor]) -> None:
        super().__init__()
        self._targets = targets

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._targets[index]


def reason_of(error: BaseException) -> str:
    """Return in one line why torch could not read or write something.

    If torch refuses a pickle, it advises turning its checks off; that advice is left out.
    """
    # The first error of the chain names the cause. When a write fails, torch's zip writer raises a
    # second error, about its own state.
    while before := error.__cause__ or error.__context__:
        error = before
    if isinstance(error, pickle.UnpicklingError):
        return "it holds more than tensors and plain values: damaged, or not to be trusted"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
