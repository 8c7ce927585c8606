"""The pickles inside a distributed checkpoint are read as data: none of them can run anything.

torch describes a checkpoint's tensors in a pickle (`.metadata`), stores objects as pickles beside
them, and would run whatever these name. Here the description may name what one is made of and
nothing else, tensors and no objects but the one in which newer versions of Megatron-Core keep a
run's common state, files of the checkpoint's own folder alone; what torch is given to read has
passed this.
"""

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    TensorStorageMetadata,
)

from tst_study.errors import UserError

COMMON_STATE = "common_state/"
"""What the name of the common state begins with, where it lies among the shards."""

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

    Raises `UserError` where it is missing, damaged, names anything that could be run, holds an
    object that is neither tensor nor common state, or points out of the folder.
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
    for name, value in found.state_dict_metadata.items():
        if not isinstance(value, TensorStorageMetadata) and not _is_common_state(name, value):
            raise UserError(f"{path}: {name} is not a tensor; no checkpoint of ours has others")
    for index, stored in found.storage_data.items():
        if Path(stored.relative_path).name != str(stored.relative_path):
            raise UserError(
                f"{path}: {index.fqn} lies at {str(stored.relative_path)!r}, which is not a file "
                "of this folder; it is refused, and nothing in this folder is to be trusted"
            )
        if _is_common_state(index.fqn, found.state_dict_metadata.get(index.fqn)):
            # torch loads this object later without asking what its pickle names.
            _refuse_code(path.parent / stored.relative_path, stored)
    return found


def _is_common_state(name: str, value: Any) -> bool:
    return isinstance(value, BytesStorageMetadata) and name.startswith(COMMON_STATE)


def _refuse_code(path: Path, stored: Any) -> None:
    """Raises `UserError` where a place of a file holds more than tensors and plain values."""
    try:
        with open(path, "rb") as file:
            file.seek(stored.offset)
            torch.load(BytesIO(file.read(stored.length)), map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files fail in more ways than a list could name
        raise UserError(f"{path}: the common state cannot be read ({reason_of(error)})") from None


def reason_of(error: BaseException) -> str:
    """Why torch could not read something, in one line; without its advice to read it nevertheless,
    which is the last thing to do with a pickle that it refused."""
    if isinstance(error, pickle.UnpicklingError):
        return "it holds more than tensors and plain values: damaged, or not to be trusted"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
