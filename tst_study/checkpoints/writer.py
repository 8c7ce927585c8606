"""Checkpoint files in torch's distributed format, written by the training process itself.

Which rank writes what is decided at a run's first save and holds for all that follow. Each rank
then writes one file, in a thread if it trains on meanwhile. The thread ends with its process,
whatever ends that, and takes part in no message between ranks. Megatron's own asynchronous writer
forks processes or keeps a manager in one, and its main branch has removed it (Megatron-LM PR 7052).
"""

from __future__ import annotations

import os
import pickle
from collections import ChainMap, defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import tst_study.model  # noqa: F401  # before megatron.core, which it prepares

# isort: split
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from tst_study.checkpoints.pickles import reason_of
from tst_study.checkpoints.places import digests_of

FORMAT = (
    '{"sharded_backend": "torch_dist", "sharded_backend_version": 1, '
    '"common_backend": "torch", "common_backend_version": 1}'
)
"""Megatron's name for this format, in `metadata.json`, so that its own tools open it."""
COMMON = "common.pt"
SHARERS = 8
"""The most ranks among which tensors that all of them hold are shared out for writing."""

Shards = dict[MetadataIndex, Tensor]
Places = dict[MetadataIndex, _StorageInfo]


def shards_of(state: dict[str, Any]) -> tuple[Shards, list[WriteItem]]:
    """A rank's tensors by name and offset in the whole model, and those that it might write."""
    apply_factories(state)
    shards: Shards = {}
    items = []
    for shard in nested_values(state):
        if not isinstance(shard, ShardedTensor):
            continue
        # The axes of layers and experts, which a rank's own tensor does not have, come first.
        tensor = shard.data.detach()
        tensor = tensor.view(*(1,) * shard.prepend_axis_num, *tensor.shape)
        chunk = ChunkStorageMetadata(torch.Size(shard.global_offset), tensor.shape)
        index = MetadataIndex(shard.key, chunk.offsets)
        shards[index] = tensor
        if sum(shard.replica_id) < SHARERS:
            properties = TensorProperties.create_from_tensor(tensor)
            size = torch.Size(shard.global_shape)
            data = TensorWriteData(chunk, properties, size)
            items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
    return shards, items


@dataclass(frozen=True)
class Plan:
    """Who writes which tensors."""

    own: list[MetadataIndex]
    whole: Metadata
    """The description of the whole checkpoint; empty but on the first rank."""


def plan_save(items: list[WriteItem]) -> Plan:
    """Decide which rank writes what, from what each of them might write; all ranks together."""
    first, whole = dist.get_rank() == 0, Metadata({})
    offered: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(items, offered if first else None)
    own: list[Any] = [None]
    shared: list[list[MetadataIndex]] = []
    if first:
        plans = _shared_out(offered)
        _, whole = DefaultSavePlanner(flatten_state_dict=False).create_global_plan(plans)
        shared = [[item.index for item in plan.items] for plan in plans]
    dist.scatter_object_list(own, shared if first else None)
    return Plan(own[0], whole)


def _shared_out(offered: list[list[WriteItem]]) -> list[SavePlan]:
    """Plans in which each tensor is written once, and ranks write about as much as they can share.

    torch's own goes by the sizes of whole tensors, of which these are parts.
    """
    holders: dict[MetadataIndex, list[int]] = defaultdict(list)
    tensors = {}
    for rank, items in enumerate(offered):
        for item in items:
            assert item.tensor_data is not None
            holders[item.index].append(rank)
            tensors[item.index] = item, item.tensor_data.chunk.sizes.numel()
    plans, sizes = [SavePlan([]) for _ in offered], [0] * len(offered)
    # What one rank alone holds comes first, then the largest.
    for index in sorted(holders, key=lambda index: (len(holders[index]), -tensors[index][1])):
        item, size = tensors[index]
        rank = min(holders[index], key=sizes.__getitem__)
        plans[rank].items.append(item)
        sizes[rank] += size
    return plans


def _write(shards: Shards, path: Path) -> Places:
    """Write tensors to a file one after another, and forget them; returns where each lies."""
    places: Places = {}
    with open(path, "wb") as file:
        while shards:
            index, tensor = shards.popitem()
            tensor = tensor.cpu()
            if tensor.untyped_storage().nbytes() > tensor.nbytes:  # all of it would be written
                tensor = tensor.clone()
            start = file.tell()
            torch.save(tensor, file)
            places[index] = _StorageInfo(path.name, start, file.tell() - start)
        file.flush()
        os.fsync(file.fileno())
    return places


class FilesBeingWritten:
    """The file of each rank of one checkpoint, on its way to the disk."""

    def __init__(self, plan: Plan, shards: Shards, place: Path, *, while_training: bool) -> None:
        """Start to write. `while_training`: a thread writes a copy, since the next step changes
        the state in its place; otherwise `finish` writes the state itself."""
        self._plan, self._place = plan, place
        own = {index: shards[index] for index in plan.own}
        self._thread: Future[Any] | None = None
        self._work: Callable[[], Any] = lambda: self._write_own(own)
        if while_training:
            # In ordinary memory: torch would keep pinned memory for ever.
            for index, tensor in own.items():
                own[index] = tensor.to("cpu", copy=True)
            threads = ThreadPoolExecutor(1, "checkpoint")
            self._thread = threads.submit(self._work)
            threads.shutdown(wait=False)  # which ends with its work

    @property
    def done(self) -> bool:
        """Whether no thread writes any more."""
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
        written: tuple[Places, dict[str, str]] = {}, {}
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
        whole = replace(self._plan.whole, storage_data=dict(ChainMap(*(x for x, _ in everyone))))
        (self._place / ".metadata").write_bytes(pickle.dumps(whole))
        return dict(ChainMap(*(digests for _, digests in everyone)))

    def _write_own(self, own: Shards) -> tuple[Places, dict[str, str]]:
        path = self._place / f"__{dist.get_rank()}_0.distcp"
        return _write(own, path), digests_of(self._place, [path.name])


def write_common(place: Path, common: dict[str, Any]) -> None:
    """Write what is no tensor of the model: the first rank's counters, and the format's name."""
    with open(place / COMMON, "wb") as file:  # whose errors name the disk, unlike torch's own
        torch.save(common, file)
    (place / "metadata.json").write_text(FORMAT)
