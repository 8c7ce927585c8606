"""Weights of a Hugging Face model in safetensors, as Megatron's global tensors."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tst_study.config import Config, Model
from tst_study.errors import UserError, first_line
from tst_study.huggingface import need_safetensors
from tst_study.huggingface.tensor_names import Entry, entries

INDEX = "model.safetensors.index.json"


class HuggingFaceWeights:
    """Reads from the files what is asked for; nothing in them can be run.

    Raises `UserError` where files or tensors are missing, or do not fit the model.
    """

    def __init__(self, folder: str | Path, model: Model) -> None:
        self.folder = Path(folder)
        self._groups, self._size = model.key_value_heads, model.head_size
        self._file_of = files_of_tensors(self.folder)
        self._files: dict[Path, Any] = {}
        self._parts: dict[tuple[str, tuple[int, ...]], list[Entry]] = defaultdict(list)
        for entry in entries(model):
            self._check(entry)
            self._parts[entry.source, entry.index].append(entry)

    def read(self, name: str, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """The part of Megatron's tensor that begins at `offsets`, of shape `sizes`."""
        # Leading axes (layer, expert) may be asked for one index at a time only.
        parts = next(
            (
                found
                for leading in range(len(offsets))
                if (found := self._parts.get((name, tuple(offsets[:leading]))))
            ),
            None,
        )
        if parts is None:
            raise UserError(f"{self.folder}: has nothing for {name}; it is of another model")
        leading = len(parts[0].index)
        inside = tuple(
            slice(start, start + size)
            for start, size in zip(offsets[leading:], sizes[leading:], strict=True)
        )
        return self._joined(parts)[inside].reshape(tuple(sizes))

    def _joined(self, parts: list[Entry]) -> Tensor:
        tensors: list[Tensor] = [self._file(e).get_tensor(e.name) for e in parts]
        if [entry.part for entry in parts] == ["query", "key", "value"]:
            grouped = [t.view(self._groups, -1, self._size, t.shape[1]) for t in tensors]
            return torch.cat(grouped, dim=1).flatten(0, 2)
        return torch.cat(tensors) if len(tensors) > 1 else tensors[0]

    def _file(self, entry: Entry) -> Any:
        """Each is opened once and mapped, not read."""
        from safetensors import SafetensorError, safe_open

        path = self._file_of[entry.name]
        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise UserError(
                    f"{path}: cannot be read ({first_line(error)}); download the whole model again"
                ) from None
        return self._files[path]

    def _check(self, entry: Entry) -> None:
        from safetensors import SafetensorError

        if entry.name not in self._file_of:
            raise UserError(f"{self.folder}: has no tensor {entry.name}")
        try:
            shape = tuple(self._file(entry).get_slice(entry.name).get_shape())
        except SafetensorError:
            raise UserError(
                f"{self._file_of[entry.name]}: has no tensor {entry.name}, which {INDEX} places "
                "there; download the whole model again"
            ) from None
        if shape != entry.shape:
            raise UserError(
                f"{self.folder}: {entry.name} is {shape}, its config.json asks for {entry.shape}"
            )


def files_of_tensors(folder: Path) -> dict[str, Path]:
    """Tensor names and the safetensors file that each lies in. Raises `UserError`."""
    need_safetensors()
    from safetensors import SafetensorError, safe_open

    single = folder / "model.safetensors"
    try:
        if (folder / INDEX).exists():
            index = json.loads((folder / INDEX).read_bytes())
            files = index.get("weight_map") if isinstance(index, dict) else None
            if not isinstance(files, dict) or not all(isinstance(f, str) for f in files.values()):
                raise ValueError(f"{INDEX}: weight_map must give each tensor's file")
            return {name: folder / Path(file).name for name, file in files.items()}
        with safe_open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), single)
    except FileNotFoundError:
        raise UserError(
            f"{single}: missing; weights in other formats than safetensors are not read, since "
            "they can hold code"
        ) from None
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(f"{folder}: its safetensors files cannot be read ({error})") from None


def fingerprint(folder: str | Path) -> str:
    """sha256 (hex) over the names and digests of a model's weight files."""
    digest = hashlib.sha256()
    for path in sorted(set(files_of_tensors(Path(folder)).values())):
        try:
            with open(path, "rb") as file:
                digest.update(f"{path.name} ".encode())
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()


def check_initial_weights(config: Config) -> None:
    """Raise `UserError` where what `config.initial_weights` names is not there, not what it was,
    or not of the model. Reads all of it."""
    start = config.initial_weights
    assert start is not None
    found = fingerprint(start.path)
    if found != start.fingerprint:
        raise UserError(
            f"initial_weights.path = {start.path}: its weights are {found[:12]}, this run starts "
            f"from {start.fingerprint[:12]}; restore them or import again"
        )
    HuggingFaceWeights(start.path, config.model)
