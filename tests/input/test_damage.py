"""Flipped bits and missing ends in every kind of file: said, or without effect, bit for bit.

A run resumes from its last checkpoint after one file of the run or of its corpus was damaged at
random. It ends in the weights of an undamaged one, from that checkpoint or from the one before, or
the file is named in one line. There is no third outcome.
"""

import random
import shutil
from pathlib import Path

import pytest
import torch

from tests.tiny_runs import last_tensors, run
from tst_study.checkpoints.places import checkpoint_place
from tst_study.errors import UserError

SETTINGS = ("schedule.steps=6", "execution.checkpoint_every=2", "execution.keep_checkpoints=3")
TRIALS = 48


@pytest.fixture(scope="module")
def stopped(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has two checkpoints and two more steps before it; `whole` beside it had them."""
    folder = tmp_path_factory.mktemp("damage")
    shutil.copytree(words, folder / "words")
    run(folder / "words", folder / "whole", *SETTINGS)
    shutil.copytree(folder / "whole", folder / "run")
    shutil.rmtree(checkpoint_place(folder / "run", 6))
    return folder


def files(folder: Path) -> list[Path]:
    """Each kind alike, however many bytes it has."""
    inside = [folder / "run", checkpoint_place(folder / "run", 4), folder / "words"]
    found = (path for place in inside for path in place.iterdir() if path.is_file())
    return sorted(path for path in found if path.stat().st_size)


def damage(path: Path, chance: random.Random) -> str:
    content = bytearray(path.read_bytes())
    at = chance.randrange(len(content))
    if chance.random() < 0.3:
        path.write_bytes(content[:at])
        return f"{path.name}: cut at {at} of {len(content)}"
    content[at] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    return f"{path.name}: bit of byte {at} of {len(content)}"


@pytest.mark.parametrize("seed", range(TRIALS))
def test_a_damaged_file_is_named_or_changes_nothing(
    stopped: Path, tmp_path: Path, seed: int
) -> None:
    folder = shutil.copytree(stopped, tmp_path / "all", ignore=shutil.ignore_patterns("whole"))
    there = files(folder)
    damaged = there[seed % len(there)]
    what = damage(damaged, random.Random(seed)) if seed else "nothing"
    try:
        run(folder / "words", folder / "run", *SETTINGS)
    except UserError as error:
        said = str(error)
        assert seed, said
        assert len(said.splitlines()) == 1, what
        assert str(damaged.parent) in said, (what, said)
        return
    expected, found = last_tensors(stopped / "whole"), last_tensors(folder / "run")
    assert expected.keys() == found.keys(), what
    assert all(torch.equal(expected[name], found[name]) for name in expected), what
