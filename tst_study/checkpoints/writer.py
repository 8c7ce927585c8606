"""Checkpoint files in torch's distributed format, while training waits.

Each rank writes one file; which tensors are in it follows from the layout, so that nothing has to
be agreed.
"""

from __future__ import annotations

import os
import pickle
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
from torch.distributed.checkpoint.metadata import MetadataIndex

from tst_study.checkpoints.places import digests_of
from tst_study.checkpoints.reader import COMMON, Piece, description_of, reason_of

FORMAT = (
    '{"sharded_backend": "torch_dist", "sharded_backend_version": 1, '
    '"common_backend": "torch", "common_backend_version": 1}'
)
"""Megatron's name for this format, in `metadata.json`; its tools open that and `.metadata`, which
nothing of ours reads."""


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


def write_checkpoint(place: Path, shards: Shards, common: dict[str, Any]) -> dict[str, str]:
    """Write each rank's file of a checkpoint and describe them all; all ranks together.

    `common`: what is no tensor of the model, on the first rank. Returns the digests of the ranks'
    files by name. Raises, on all ranks, what writing has raised on any.
    """
    path = place / f"__{dist.get_rank()}_0.distcp"
    failure: Exception | None = None
    result: tuple[list[Piece], dict[str, str]] | str
    try:
        result = _write(shards, path), digests_of(place, [path.name])
    except Exception as error:
        failure, result = error, reason_of(error)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, result)
    if failure:
        raise failure
    for reason in everyone:
        if isinstance(reason, str):
            raise RuntimeError(reason)
    if dist.get_rank() == 0:
        pieces = [piece for written, _ in everyone for piece in written]
        with open(place / COMMON, "wb") as file:  # whose errors name the disk, unlike torch's own
            torch.save({**common, "pieces": [tuple(piece) for piece in pieces]}, file)
        (place / "metadata.json").write_text(FORMAT)
        (place / ".metadata").write_bytes(pickle.dumps(description_of(pieces)))
    return {name: digest for _, digests in everyone for name, digest in digests.items()}


def _write(shards: Shards, path: Path) -> list[Piece]:
    """Write a rank's own tensors to a file, one after another."""
    pieces = []
    with open(path, "wb") as file:
        for index, (tensor, size, is_own) in shards.items():
            if not is_own:
                continue
            tensor = tensor.cpu()
            if tensor.untyped_storage().nbytes() > tensor.nbytes:  # all of it would be written
                tensor = tensor.clone()
            start = file.tell()
            torch.save(tensor, file)
            place = index.offset or torch.Size(), tensor.shape, path.name
            length = file.tell() - start
            pieces.append(Piece(index.fqn, size, tensor.dtype, *place, start, length))
        file.flush()
        os.fsync(file.fileno())
    return pieces
