"""Writes the files of a checkpoint in torch's distributed format, while training waits.

Each rank writes one file. The layout determines which tensors are in it, so the ranks need not
negotiate that beforehand. Afterwards rank 0 writes the list of all pieces.
"""

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
"""The content of `metadata.json`, by which Megatron recognises the format. That file and
`.metadata` are for Megatron's tools; this package reads neither."""


class Shard(NamedTuple):
    """One rank's part of a tensor."""

    tensor: Tensor
    """The part's numbers, with an axis of length 1 for each leading axis (layers, experts) that
    only the whole tensor has."""
    size: torch.Size
    """The shape of the whole tensor."""
    is_own: bool
    """Whether this rank writes the part. Of the ranks that hold the same numbers, one does."""


Shards = dict[MetadataIndex, Shard]
"""A rank's parts of tensors, by the name of the whole tensor and the part's offset in it."""


def shards_of(state: dict[str, Any]) -> Shards:
    """Collect this rank's parts of tensors from Megatron's sharded state dictionaries.

    Megatron's factories in `state`, which store a tensor in another form than the model has it, are
    replaced by what they make.
    """
    apply_factories(state)
    shards: Shards = {}
    replicated = 0
    for part in nested_values(state):
        if not isinstance(part, ShardedTensor):
            continue
        # The whole tensor has leading axes (layers, experts) that a rank's tensor lacks.
        tensor = part.data.detach()
        tensor = tensor.view(*(1,) * part.prepend_axis_num, *tensor.shape)
        *others, replica = part.replica_id
        if part.has_regular_grid:  # else it is a share of the optimizer, which one rank alone has
            # Ranks that hold the same tensors take turns at writing them, so that each writes some.
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
    """Write each rank's file of a checkpoint, then on rank 0 the files that describe them. All
    ranks must call this together.

    `common`: the values that are not sharded tensors; those of rank 0 are written. Returns the
    digests of the ranks' files, by name.

    A rank that cannot write its tensors raises the error itself, and the others raise a
    `RuntimeError` with the same reason. If rank 0 cannot write the describing files, it alone
    raises.
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
        with open(place / COMMON, "wb") as file:  # its errors name the cause; torch's do not
            torch.save({**common, "pieces": [tuple(piece) for piece in pieces]}, file)
        (place / "metadata.json").write_text(FORMAT)
        (place / ".metadata").write_bytes(pickle.dumps(description_of(pieces)))
    return {name: digest for _, digests in everyone for name, digest in digests.items()}


def _write(shards: Shards, path: Path) -> list[Piece]:
    """Write the tensors that this rank owns to a file, one after another, and list the pieces."""
    pieces = []
    with open(path, "wb") as file:
        for index, (tensor, size, is_own) in shards.items():
            if not is_own:
                continue
            tensor = tensor.cpu()
            # torch saves the whole storage behind a view.
            if tensor.untyped_storage().nbytes() > tensor.nbytes:
                tensor = tensor.clone()
            start = file.tell()
            torch.save(tensor, file)
            place = index.offset or torch.Size(), tensor.shape, path.name
            length = file.tell() - start
            pieces.append(Piece(index.fqn, size, tensor.dtype, *place, start, length))
        file.flush()
        os.fsync(file.fileno())
    return pieces
