"""Checkpoint files in torch's distributed format, written by the training process itself.

Each rank writes one file, in a thread if it trains on meanwhile; which tensors are in it follows
from the layout, so that nothing has to be agreed. The thread ends with its process, whatever ends
that, and takes part in no message between ranks. Megatron's own asynchronous writer forks processes
or keeps a manager in one, and its main branch has removed it (Megatron-LM PR 7052).
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import tst_study.model  # noqa: F401  # before megatron.core, which it prepares

# isort: split
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from tst_study.checkpoints.pickles import reason_of
from tst_study.checkpoints.places import digests_of

FORMAT = (
    '{"sharded_backend": "torch_dist", "sharded_backend_version": 1, '
    '"common_backend": "torch", "common_backend_version": 1}'
)
"""Megatron's name for this format, in `metadata.json`, so that its own tools open it."""
COMMON = "common.pt"


class Shard(NamedTuple):
    tensor: Tensor
    """A rank's part of a tensor of the whole model, with all of its axes."""
    size: torch.Size
    """The shape of the whole."""
    is_own: bool
    """True on the one rank that writes it, of all that hold the same numbers."""


Shards = dict[MetadataIndex, Shard]


def shards_of(state: dict[str, Any]) -> Shards:
    """Find a rank's parts of the model's tensors, by their names and offsets there."""
    apply_factories(state)
    shards: Shards = {}
    replicated = 0
    for part in nested_values(state):
        if not isinstance(part, ShardedTensor):
            continue
        # The axes of layers and experts, which a rank's own tensor does not have, come first.
        tensor = part.data.detach()
        tensor = tensor.view(*(1,) * part.prepend_axis_num, *tensor.shape)
        *others, replica = part.replica_id
        if part.has_regular_grid:  # else it is a share of the optimizer, which one rank alone has
            # Ranks that hold the same tensors take turns, in the same order.
            sharers = parallel_state.get_data_parallel_world_size()
            if ".experts." in part.key:
                sharers = parallel_state.get_expert_data_parallel_world_size()
            replica -= replicated % sharers
            replicated += 1
        index = MetadataIndex(part.key, torch.Size(part.global_offset))
        is_own = not any(others) and replica == 0
        shards[index] = Shard(tensor, torch.Size(part.global_shape), is_own)
    return shards


class _Written(NamedTuple):
    """A shard as the description of a checkpoint lists it."""

    size: torch.Size
    properties: TensorProperties
    chunk: ChunkStorageMetadata
    place: _StorageInfo


_File = dict[MetadataIndex, _Written]


def _write(shards: Shards, path: Path) -> _File:
    """Write tensors to a file one after another, and empty `shards`, which frees their memory."""
    written: _File = {}
    with open(path, "wb") as file:
        for index in list(shards):
            tensor, size, _ = shards.pop(index)
            tensor = tensor.cpu()
            if tensor.untyped_storage().nbytes() > tensor.nbytes:  # all of it would be written
                tensor = tensor.clone()
            start = file.tell()
            torch.save(tensor, file)
            written[index] = _Written(
                size,
                TensorProperties(tensor.dtype),
                ChunkStorageMetadata(torch.Size(index.offset or ()), tensor.shape),
                _StorageInfo(path.name, start, file.tell() - start),
            )
        file.flush()
        os.fsync(file.fileno())
    return written


def _described(files: list[_File]) -> Metadata:
    """Describe the tensors that all files together hold."""
    tensors: dict[str, Any] = {}
    whole = Metadata(tensors, storage_data={})
    for index, shard in (entry for file in files for entry in file.items()):
        new = TensorStorageMetadata(shard.properties, shard.size, [])
        tensors.setdefault(index.fqn, new).chunks.append(shard.chunk)
        whole.storage_data[index] = shard.place
    return whole


class FilesBeingWritten:
    """The file of each rank of one checkpoint, on its way to the disk."""

    def __init__(self, shards: Shards, place: Path, *, while_training: bool) -> None:
        """Start to write. `while_training`: a thread writes a copy, since the next step changes
        the state in its place; otherwise `finish` writes the state itself."""
        self._place = place
        own = {index: shard for index, shard in shards.items() if shard.is_own}
        self._thread: Future[Any] | None = None
        self._work: Callable[[], Any] = lambda: self._write_own(own)
        if while_training:
            # In ordinary memory: torch would keep pinned memory for ever.
            for index, shard in own.items():
                own[index] = shard._replace(tensor=shard.tensor.to("cpu", copy=True))
            threads = ThreadPoolExecutor(1, "checkpoint")
            self._thread = threads.submit(self._work)
            threads.shutdown(wait=False)  # which ends with its work

    @property
    def done(self) -> bool:
        """True once no thread writes any more."""
        return self._thread is None or self._thread.done()

    def wait(self) -> None:
        """Wait for the thread, whatever became of its file."""
        wait([self._thread] if self._thread else [])

    def finish(self) -> dict[str, str]:
        """Wait until all ranks have written, and describe their files; all ranks together.

        Returns the digests of all these files on the first rank, and an empty dictionary on the
        others. Raises, on all ranks, what writing has raised on any.
        """
        failure: Exception | None = None
        written: tuple[_File, dict[str, str]] = {}, {}
        try:
            written = self._thread.result() if self._thread else self._work()
        except Exception as error:
            failure = error
        reasons: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(reasons, reason_of(failure) if failure else None)
        if failure:
            raise failure
        for reason in filter(None, reasons):
            raise RuntimeError(reason)
        everyone: list[Any] = [None] * dist.get_world_size()
        first = dist.get_rank() == 0
        dist.gather_object(written, everyone if first else None)
        if not first:
            return {}
        description = _described([file for file, _ in everyone])
        (self._place / ".metadata").write_bytes(pickle.dumps(description))
        return {name: digest for _, digests in everyone for name, digest in digests.items()}

    def _write_own(self, own: Shards) -> tuple[_File, dict[str, str]]:
        path = self._place / f"__{dist.get_rank()}_0.distcp"
        return _write(own, path), digests_of(self._place, [path.name])


def write_common(place: Path, common: dict[str, Any]) -> None:
    """Write what is no tensor of the model: the first rank's counters, and the format's name."""
    with open(place / COMMON, "wb") as file:  # whose errors name the disk, unlike torch's own
        torch.save(common, file)
    (place / "metadata.json").write_text(FORMAT)
