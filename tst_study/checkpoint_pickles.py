"""The pickles inside a distributed checkpoint are read as data: none of them can run anything.

torch describes a checkpoint's tensors in a pickle (`.metadata`) and stores small objects as
pickles beside them, and would run whatever these name. Here a pickle may name what a description
is made of and nothing else.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from tst_study.errors import UserError

_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.planner": {
        "BytesIOWriteData",
        "SavePlan",
        "TensorWriteData",
        "WriteItem",
        "WriteItemType",
    },
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"}
    | {name for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
    "collections": {"OrderedDict", "defaultdict"},
    "pathlib": {"Path", "PosixPath", "PurePath", "PurePosixPath"},
}


class _DescriptionUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _CLASSES.get(module, ()):
            raise UserError(
                f"it would run {module}.{name}, which no checkpoint needs; it is refused, and "
                "nothing in this folder is to be trusted"
            )
        return super().find_class(module, name)


def read_description(place: str | Path) -> Metadata:
    """What `.metadata` of a checkpoint folder says: tensors, their chunks, where each lies.

    Raises `UserError` where it is missing, damaged, or names anything that could be run.
    """
    path = Path(place) / ".metadata"
    try:
        with open(path, "rb") as file:
            found = _DescriptionUnpickler(file).load()
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except FileNotFoundError:
        raise UserError(f"{path}: missing; {place} is not a whole checkpoint") from None
    except Exception as error:  # a damaged pickle fails in more ways than a list could name
        raise UserError(f"{path}: cannot be read ({error!r}); the file is damaged") from None
    if not isinstance(found, Metadata):
        raise UserError(f"{path}: holds a {type(found).__name__}, not a checkpoint's description")
    return found


_TORCHS_LOAD_BYTES = DefaultLoadPlanner.load_bytes


def read_pickles_as_data() -> None:
    """Make torch and Megatron read checkpoints this way, for the whole program."""
    FileSystemReader.read_metadata = _read_metadata  # type: ignore[method-assign]
    DefaultLoadPlanner.load_bytes = _load_bytes  # type: ignore[method-assign]


def _read_metadata(self: FileSystemReader, *args: Any, **kwargs: Any) -> Metadata:
    """Same contract as torch's."""
    metadata = read_description(str(self.path))
    if metadata.storage_meta is None:
        metadata.storage_meta = StorageMeta()
    metadata.storage_meta.load_id = self.load_id
    return metadata


def _load_bytes(self: DefaultLoadPlanner, read_item: Any, value: io.BytesIO) -> None:
    """Same contract as torch's."""
    try:
        torch.load(value, weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{read_item.dest_index.fqn}: is not plain data; it is refused ({reason})"
        ) from None
    value.seek(0)
    _TORCHS_LOAD_BYTES(self, read_item, value)  # where it goes in the state is torch's matter
