"""Checkpoints of any layout are read alike, and nothing in one can run anything."""

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.damage import flip
from tests.tiny_runs import checkpoint_folders, run
from tst_study.checkpoints.places import DIGESTS, digests_of, write_digests
from tst_study.checkpoints.reader import COMMON, CheckpointReader, Piece
from tst_study.checkpoints.trained_run import open_run
from tst_study.errors import UserError
from tst_study.evaluation.run import trained_model
from tst_study.model.initialization import shards


@pytest.fixture(scope="module")
def trained(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "trained"
    run(words, folder, "schedule.steps=4", "execution.checkpoint_every=2")
    return folder


def test_it_reads_what_megatron_reads(trained):
    opened = open_run(trained)
    reader = CheckpointReader(opened.checkpoint)
    with trained_model(opened) as (model, _):
        for shard in shards(model):
            sizes = (*(1,) * shard.prepend_axis_num, *shard.data.shape)
            pairs = zip(shard.global_offset, sizes, strict=True)
            inside = tuple(slice(start, start + size) for start, size in pairs)
            found = reader.read(shard.key)[inside].view(shard.data.shape)
            assert torch.equal(found, shard.data), shard.key
    name = "decoder.layers.mlp.linear_fc1.weight"
    assert torch.equal(reader.read(name, (1,)), reader.read(name)[1])


def test_a_flipped_bit_keeps_a_model_from_being_used(trained, tmp_path):
    """`export` and `evaluate` both begin here; torch itself would not notice."""
    folder = shutil.copytree(trained, tmp_path / "run")
    (folder / "checkpoints" / "step-²").mkdir()  # a digit to `isdigit`, and no number to `int`
    place = checkpoint_folders(folder)[-1]
    flip(place / "__0_0.distcp")
    with pytest.raises(UserError) as raised:
        open_run(folder)
    said = str(raised.value)
    assert said.startswith(f"{place}: ")
    assert all(part in said for part in ("__0_0.distcp", "--step of [2, 4]"))
    assert open_run(folder, 2).step == 2


def test_what_is_not_there_is_named(trained):
    reader = CheckpointReader(open_run(trained).checkpoint)
    with pytest.raises(UserError, match="lm_head"):
        reader.read("lm_head")
    with pytest.raises(UserError, match=r"holds 0 of the \d+ numbers"):
        reader.read("decoder.layers.mlp.linear_fc1.weight", (2,))


class Hostile:
    """An object whose pickle runs code when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def poison_common(place: Path, mark: Path) -> None:
    torch.save({"common": Hostile(mark)}, place / COMMON)


def poison_tensor(place: Path, mark: Path) -> None:
    """The list of pieces is an honest one, what it points to is not."""
    torch.save([Hostile(mark)], place / "poison")
    length = (place / "poison").stat().st_size
    change_pieces(place, file="poison", start=0, length=length)


def lead_out_of_the_folder(place: Path, mark: Path) -> None:
    change_pieces(place, file=f"../../checkpoints/{place.name}/__0_0.distcp")


def change_pieces(place: Path, **changes: Any) -> None:
    common = torch.load(place / COMMON)
    pieces = [Piece(*values)._replace(**changes) for values in common["pieces"]]
    torch.save({**common, "pieces": [tuple(piece) for piece in pieces]}, place / COMMON)


POISONS = {
    poison_common: "damaged, or not to be trusted",
    poison_tensor: "damaged, or not to be trusted",
    lead_out_of_the_folder: "which is not in this folder",
}


@pytest.mark.parametrize("poison", POISONS, ids=lambda poison: poison.__name__)
def test_a_hostile_checkpoint_is_refused_in_one_line(trained, words, tmp_path, poison):
    folder = shutil.copytree(trained, tmp_path / "run")
    mark = tmp_path / "executed"
    place = checkpoint_folders(folder)[-1]
    poison(place, mark)
    names = {path.name for path in place.iterdir()} - {DIGESTS}
    write_digests(place, digests_of(place, names))
    with pytest.raises(UserError) as raised:  # resuming reads all of a checkpoint
        run(words, folder, "schedule.steps=4", "execution.checkpoint_every=2")
    assert str(raised.value).startswith(str(place))
    assert POISONS[poison] in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError):
        CheckpointReader(place).read("output_layer.weight")
    assert not mark.exists()


def test_the_hostile_pickle_of_these_tests_is_one(tmp_path):
    pickle.loads(pickle.dumps(Hostile(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()
