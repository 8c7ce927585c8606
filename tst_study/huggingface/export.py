"""Exports a run's checkpoint as a folder that transformers loads without this package.

`tst-study export` calls `export`, and `tst-study evaluate --tasks` does so in a temporary folder.

The layout of ranks that wrote the checkpoint does not matter. Weights go layer by layer into
safetensors files of at most a gigabyte (more only for a single tensor that is larger). At any time,
memory holds the tensors of one file and at most three that were read from the checkpoint. If a
tensor of the checkpoint holds all layers, it is read one layer at a time.
"""

import math
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from tst_study.atomic_files import disk_errors_named, write_json
from tst_study.checkpoints.reader import CheckpointReader
from tst_study.checkpoints.trained_run import TrainedRun
from tst_study.config.architecture import to_huggingface
from tst_study.config.schema import Model
from tst_study.config.tensor_names import NamedTensor, entries
from tst_study.data.preparation.text_tokenizers import Tokenizer
from tst_study.errors import UserError, first_line
from tst_study.huggingface.model_card import model_card
from tst_study.huggingface.tokenizer_files import tokenizer_files
from tst_study.record.reader import read

FILE_BYTES = 10**9
"""The most bytes of tensors in a safetensors file, unless a single tensor has more."""


def export(run: TrainedRun, to: str | Path, tokenizer: Tokenizer | None) -> Path:
    """Write weights, configuration, tokenizer, generation settings and model card into `to`.

    Args:
        run: the run and the checkpoint to export.
        to: a folder that does not exist yet; it appears whole or not at all.
        tokenizer: that of the run's corpora, or None if they name none.

    Returns the folder.

    Raises:
        UserError: the checkpoint cannot be read or is from inside the superposition phase,
            transformers has no model of this shape, or the folder exists, cannot be written, or was
            written by another process meanwhile.
    """
    to = Path(to)
    if to.exists():
        raise UserError(f"{to}: already exists; name a new folder, or delete it first")
    superposed, length = run.header["plan"]["superposed_steps"], run.config.batch.sequence_length
    if run.phase == "superposition":
        raise UserError(
            f"{run.checkpoint}: is from inside the superposition phase (step {run.step} of "
            f"{superposed} superposed ones), so it predicts bags, not next "
            "tokens; train on, or name a later --step"
        )
    reader = CheckpointReader(run.checkpoint)
    wanted = list(entries(run.model))
    dtype = reader.dtype(wanted[0].source)
    end = tokenizer.end_of_document if tokenizer else None
    with disk_errors_named(to):
        to.parent.mkdir(parents=True, exist_ok=True)
    with disk_errors_named(to), TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as hidden:
        # The export is made in a subfolder, since a temporary folder is readable by its owner only.
        beside = Path(hidden) / to.name
        beside.mkdir()
        write_weights(reader, run.model, wanted, dtype, beside)
        config = to_huggingface(run.model.model_dump(), length, _name(dtype), end)
        write_json(beside / "config.json", config)
        ends = {} if end is None else {"eos_token_id": end, "pad_token_id": end}
        write_json(beside / "generation_config.json", {"do_sample": True, **ends})
        files = tokenizer_files(tokenizer, length) if tokenizer else {}
        for name, content in files.items():
            (beside / name).write_bytes(content)
        text = model_card(run, read(run.folder), _name(dtype), tokenizer)
        (beside / "README.md").write_text(text, encoding="utf8")
        os.rename(beside, to)
    return to


def write_weights(
    reader: CheckpointReader,
    model: Model,
    wanted: Sequence[NamedTensor],
    dtype: torch.dtype,
    to: Path,
) -> None:
    """Write the tensors `wanted` as `model.safetensors`, or as several files of at most
    `FILE_BYTES` with an index that tells which tensor lies in which file.

    `dtype` is that of the checkpoint's weights. Raises `UserError` if a tensor cannot be read or a
    file cannot be written.
    """
    from huggingface_hub import split_state_dict_into_shards_factory
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    of_name = {entry.name: entry for entry in wanted}
    split = split_state_dict_into_shards_factory(
        of_name,
        get_storage_size=lambda entry: math.prod(entry.shape) * dtype.itemsize,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=FILE_BYTES,
    )
    read = lru_cache(2)(reader.read)  # the experts of a layer alternate between two tensors
    for file, names in split.filename_to_tensors.items():
        tensors = {
            entry.name: _part(entry, read(entry.source, entry.index[:1]), model)
            for entry in map(of_name.__getitem__, names)
        }
        try:
            save_file(tensors, to / file, metadata={"format": "pt"})
        except SafetensorError as error:
            raise UserError(f"{to.name}: cannot be written ({first_line(error)})") from error
        # The library makes files that only their owner can read. Give them the permissions of the
        # folder, which follow the user's umask, but not its executable bits.
        (to / file).chmod(to.stat().st_mode & 0o666)
        del tensors  # before the next file's are read
    if split.is_sharded:
        content = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(to / "model.safetensors.index.json", content)


def _part(entry: NamedTensor, layer: Tensor, model: Model) -> Tensor:
    """Copy the tensor of an entry, of shape `entry.shape`, out of `layer`.

    `layer` is one layer of the entry's source, the one at the entry's first index. If the entry has
    no index, `layer` is the whole source.
    """
    whole = layer[entry.index[1:]]
    if entry.part in ("query", "key", "value"):
        mixed = whole.view(model.key_value_heads, -1, model.head_size, model.hidden_size)
        part = {"query": mixed[:, :-2], "key": mixed[:, -2], "value": mixed[:, -1]}[entry.part]
    elif entry.part == "whole":
        part = whole[: entry.shape[0]]  # drops the rows that pad a vocabulary
    else:
        part = whole[entry.shape[0] :] if entry.part == "up" else whole[: entry.shape[0]]
    return part.reshape(entry.shape).clone()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
