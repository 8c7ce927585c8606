"""Reads the pickle that describes a distributed checkpoint without running anything.

torch describes a checkpoint's tensors in a pickle (`.metadata`) and would call whatever function
that names. Here the description may only use the classes of which torch makes one, may fill only
objects that it has just made, may list tensors but no other objects, and may point to files of the
checkpoint's own folder alone. torch reads only what has passed these checks.
"""

import pickle
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint.metadata import (
    Metadata,
    TensorStorageMetadata,
)

from tst_study.errors import UserError
from tst_study.text import printable

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


class _DescriptionUnpickler(pickle._Unpickler):
    """The Python one, as the one in C cannot be told which objects a pickle may fill."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        module = module.removesuffix("._local")  # of pathlib, in pickles of Python 3.13
        if name not in _CLASSES.get(module, ()):
            raise _refused(f"it would run {printable(f'{module}.{name}')}")
        return super().find_class(module, name)

    def load_build(self) -> None:
        """Fill an object. A class, a function or a member of an enumeration is shared by the whole
        process, which would go on with what the pickle has made of it."""
        made: Any = self.stack[-2]  # type: ignore[attr-defined]
        if isinstance(made, type) or not is_dataclass(made):
            raise _refused(f"it would change {made!r}")
        super().load_build()  # type: ignore[misc]

    dispatch[pickle.BUILD[0]] = load_build


def _refused(what: str) -> UserError:
    return UserError(
        f"{what}, which no checkpoint needs; it is refused, and nothing in this folder is to be "
        "trusted"
    )


def read_description(place: str | Path) -> Metadata:
    """Read a checkpoint folder's `.metadata`: its tensors, their chunks, and where each chunk lies.

    Raises `UserError` if it is missing or damaged, names a function, lists anything but tensors, or
    points out of the folder.
    """
    path = Path(place) / ".metadata"
    try:
        with open(path, "rb") as file:
            description = _DescriptionUnpickler(file).load()
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except FileNotFoundError:
        raise UserError(f"{path}: missing; {place} is not a whole checkpoint") from None
    except Exception as error:  # a damaged pickle fails in more ways than a list could name
        raise UserError(f"{path}: cannot be read ({error!r}); the file is damaged") from None
    if not isinstance(description, Metadata):
        raise UserError(
            f"{path}: holds a {type(description).__name__}, not a checkpoint's description"
        )
    for name, value in description.state_dict_metadata.items():
        if not isinstance(value, TensorStorageMetadata):
            raise UserError(f"{path}: {name} is not a tensor; no checkpoint of ours has others")
    for index, stored in description.storage_data.items():
        if Path(stored.relative_path).name != str(stored.relative_path):
            raise UserError(
                f"{path}: {index.fqn} lies at {str(stored.relative_path)!r}, which is not a file "
                "of this folder; it is refused, and nothing in this folder is to be trusted"
            )
    return description


def reason_of(error: BaseException) -> str:
    """Return in one line why torch could not read something.

    torch advises to read a refused pickle without its checks; that advice is left out.
    """
    if isinstance(error, pickle.UnpicklingError):
        return "it holds more than tensors and plain values: damaged, or not to be trusted"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
