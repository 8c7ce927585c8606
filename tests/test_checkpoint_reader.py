"""Checkpoints of any layout are read alike, and nothing in one can run anything."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader

from tests.distributed import run_ranks
from tests.tiny_runs import MIXTURE, checkpoint_folders, last_tensors, run, tiny
from tst_study.checkpoint_reader import CheckpointReader
from tst_study.errors import UserError
from tst_study.megatron.checkpoint import Checkpoints
from tst_study.megatron.model import build_model
from tst_study.megatron.optimizer import AdamW, with_gradient_buffers
from tst_study.megatron.process_groups import process_groups
from tst_study.trained_run import open_run


@pytest.fixture(scope="module")
def trained(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "trained"
    run(words, folder, "schedule.steps=4", "execution.checkpoint_every=2")
    return folder


def test_it_reads_what_megatron_reads(trained: Path) -> None:
    reader = CheckpointReader(open_run(trained).checkpoint)
    expected = {name: x for name, x in last_tensors(trained).items() if name in reader}
    assert "output_layer.weight" in expected
    for name, tensor in expected.items():
        assert reader.shape(name) == tuple(tensor.shape)
        whole = reader.read(name, (0,) * tensor.dim(), tensor.shape)
        assert torch.equal(whole.view(tensor.shape), tensor), name
    name = "decoder.layers.mlp.linear_fc1.weight"
    part = reader.read(name, (1, 20, 3), (1, 30, 5))  # over the border of gate and up
    assert torch.equal(part, expected[name][1:2, 20:50, 3:8])


def test_what_is_not_there_is_named(trained: Path) -> None:
    reader = CheckpointReader(open_run(trained).checkpoint)
    with pytest.raises(UserError, match="has no tensor lm_head"):
        reader.read("lm_head", (0,), (1,))
    with pytest.raises(UserError, match=r"holds \d+ of the \d+ numbers"):
        reader.read("output_layer.weight", (60, 0), (10, 16))


LAYOUTS = {
    "tensor": (2, "execution.parallel.tensor=2"),
    "pipeline": (2, "execution.parallel.pipeline=2"),
    "expert": (2, "execution.parallel.expert=2", *MIXTURE),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_holds_the_same_tensors(words: Path, tmp_path: Path, layout: str) -> None:
    """Initial weights do not depend on the layout, so neither may what is read."""
    ranks, *overrides = LAYOUTS[layout]

    def save(folder: Path, *settings: str) -> None:
        config = tiny(words, *settings)
        with process_groups(config.execution):
            model = build_model(config)
            optimizer = AdamW(with_gradient_buffers(model), config.optimizer)
            folder.mkdir(exist_ok=True)
            Checkpoints(folder, keep=1).save(1, model, optimizer, {})

    split, whole = tmp_path / "split", tmp_path / "whole"
    run_ranks(int(ranks), save, split, *overrides)
    save(whole, *(MIXTURE if layout == "expert" else ()))
    readers = [CheckpointReader(folder / "step-00000001") for folder in (split, whole)]
    names = [name for name in readers[1]._tensors if not name.startswith("optimizer")]
    assert names
    for name in names:
        shape = readers[1].shape(name)
        found, expected = (reader.read(name, (0,) * len(shape), shape) for reader in readers)
        assert torch.equal(found, expected), name


class Hostile:
    """What a pickle can do to whoever loads it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


WHERE = {
    "poison_description": ".metadata: it would run ",
    "poison_common": "Weights only load failed",
    "poison_object": "_extra_state/shard_0_2: is not plain data; it is refused",
    "poison_tensor": "Weights only load failed",
}


def poison_description(place: Path, mark: Path) -> None:
    (place / ".metadata").write_bytes(pickle.dumps(Hostile(mark)))


def poison_common(place: Path, mark: Path) -> None:
    torch.save({"common": Hostile(mark)}, place / "common.pt")


def poison_object(place: Path, mark: Path) -> None:
    """The small objects beside the tensors: `_extra_state` of every layer."""
    poison_item(place, mark, "decoder.layers.mlp.linear_fc1._extra_state/shard_0_2")


def poison_tensor(place: Path, mark: Path) -> None:
    poison_item(place, mark, "output_layer.weight")


def poison_item(place: Path, mark: Path, name: str) -> None:
    """The description is an honest one, what it points to is not."""
    metadata = FileSystemReader(place).read_metadata()
    index = next(index for index in metadata.storage_data if index.fqn == name)
    content = io.BytesIO()
    torch.save([Hostile(mark)], content)
    (place / "poison").write_bytes(content.getvalue())
    changes = {"relative_path": "poison", "offset": 0, "length": len(content.getvalue())}
    metadata.storage_data[index] = dataclasses.replace(metadata.storage_data[index], **changes)
    with open(place / ".metadata", "wb") as file:
        pickle.dump(metadata, file)


POISONS = {
    function.__name__: function
    for function in (poison_description, poison_common, poison_object, poison_tensor)
}


@pytest.mark.parametrize("poison", POISONS)
def test_a_hostile_pickle_is_refused_in_one_line(
    trained: Path, words: Path, tmp_path: Path, poison: str
) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    (folder / "checkpoints" / "step-00000004").rename(tmp_path / "newer")
    mark = tmp_path / "executed"
    POISONS[poison](checkpoint_folders(folder)[-1], mark)
    with pytest.raises(UserError) as raised:  # resuming reads all of a checkpoint
        run(words, folder, "schedule.steps=4", "execution.checkpoint_every=2")
    assert "step-00000002: cannot be read" in str(raised.value)
    assert WHERE[poison] in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not mark.exists()


def test_an_export_refuses_it_as_well(trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="exports need tst-study[export]")
    from tst_study.huggingface.export import export

    for poison in (poison_description, poison_tensor):
        folder = shutil.copytree(trained, tmp_path / poison.__name__)
        opened = open_run(folder)
        poison(opened.checkpoint, tmp_path / "executed")
        with pytest.raises(UserError) as raised:
            export(opened, tmp_path / "exported", None)
        assert "\n" not in str(raised.value)
        assert not (tmp_path / "exported").exists()
    assert not (tmp_path / "executed").exists()


def test_the_hostile_pickle_of_these_tests_is_one(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Hostile(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()
