"""Every file that the package writes, damaged in every way: named in one line, healed, or without
effect. The files are found by running the commands that write them, not listed."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pandas as pd
import pytest
import torch

from tests.damage import flip
from tests.examples import example
from tests.input.answers import Answer, answer
from tests.tiny_runs import last_tensors, run
from tst_study.analysis.tables.source import read_tables
from tst_study.checkpoints.places import checkpoint_place
from tst_study.data.manifest import SPLITS
from tst_study.errors import UserError
from tst_study.experiments.run_process import write_config
from tst_study.experiments.slurm import submission

SETTINGS = ("schedule.steps=6", "execution.checkpoint_every=2", "execution.keep_checkpoints=3")
SETTINGS += ("model.vocabulary_size=300",)
RUN_TOML = """
study = "x"
data.corpora = [{{path = "{corpus}"}}]
batch = {{sequences = 4, sequence_length = 8}}
optimizer.learning_rate = 1e-2
schedule = {{steps = 6, warmup_steps = 2}}
"""
T = TypeVar("T")
RUN, STUDY = "study/a-01230123", "study"


def prepare(place: Path, to: str, *more: str) -> Answer:
    source = ["--source", "texts", "--validation-share", "0.2", "--tokenizer", "bpe:300"]
    return answer(["data", "prepare", *source, "--to", to, *more], place)


def train(place: Path, seed: int, to: str = RUN) -> dict[str, torch.Tensor]:
    run(place / "corpus", place / to, *SETTINGS, f"seed={seed}")
    return last_tensors(place / to)


def everything(place: Path, seed: int) -> Path:
    """A folder with all that the commands write, from a text and a seed of its own."""
    letters = random.Random(seed)
    (place / "texts").mkdir(parents=True)
    for name in ("a", "b"):
        rows = [{"text": "".join(letters.choices("abcdefgh ", k=60))} for _ in range(60)]
        (place / "texts" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for shard in ("1/2", "2/2"):
        assert prepare(place, "begun", "--shard", shard).status == 0
    assert prepare(place, "corpus").status == 0
    train(place, seed)
    assert answer(["export", RUN, "--to", "exported"], place).status == 0
    shutil.copytree(place / RUN, place / "whole")
    shutil.rmtree(checkpoint_place(place / RUN, 6))
    (place / "run.toml").write_text(RUN_TOML.format(corpus=place / "corpus"))
    log = "step,loss,val_loss\n1,3.5,\n2,3.4,3.3\n"
    (place / "logs").mkdir()
    (place / "logs" / "base-seed1.csv").write_text(log)
    facts = ["parameters=1e6", f"tokens_per_step={8 + seed}", "steps=2", "annealed=true"]
    told = [word for fact in facts for word in ("--set", fact)]
    made = answer(["import", "logs", "--to", "archive", *told], place)
    assert made.status == 0, made
    write_config(example(), place / RUN)
    one = submission.Submission(place / STUDY / "slurm" / f"2026-{seed}", (Path(RUN).name,))
    one.folder.mkdir(parents=True)
    (one.folder / submission.RUNS).write_text(f"{Path(RUN).name}\n")
    (place / "bin").mkdir()
    for program in ("squeue", "scancel", "scontrol"):
        (place / "bin" / program).write_text("#!/bin/sh\nexit 0\n")
        (place / "bin" / program).chmod(0o755)
    submission.write_json(one.folder / "job.json", {"job": str(seed)})
    return place


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two such folders."""
    root = tmp_path_factory.mktemp("every")
    return everything(root / "one", 1), everything(root / "other", 2)


def somewhere(path: Path) -> int:
    """A place in a file, by chance, but the same in every session."""
    return random.Random(f"{path.name} {path.stat().st_size}").randrange(path.stat().st_size)


def truncated(path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes()[: somewhere(path)])


def in_its_place(path: Path, _: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "empty": lambda path, _: path.write_bytes(b""),
    "truncated": truncated,
    "flipped": lambda path, _: flip(path, somewhere(path), 1 << path.stat().st_size % 8),
    "another's": lambda path, other: shutil.copy(other, path),
    "a folder in its place": in_its_place,
    "lost": lambda path, _: path.unlink(),
}


def told(given: Answer, *named: Path | str) -> bool:
    """Whether a command succeeded; if not, it named a file in one line, as no bug."""
    lines = [line for line in given.err.splitlines() if not line.endswith(" …")]
    assert "Traceback" not in given.err, given.err
    assert "--debug" not in given.err, given.err
    if given.status:
        errors = [line for line in lines if line.startswith("error: ")]
        assert len(errors) == 1, given.err
        assert any(str(name) in errors[0] for name in named), given.err
    return given.status == 0


def tokens(folder: Path) -> list[bytes]:
    return [(folder / f"{split}.{end}").read_bytes() for split in SPLITS for end in ("bin", "idx")]


def begun(place: Path, whole: Path, damaged: Path) -> None:
    """A merge says what is wrong, and the commands that it names heal it."""
    merged = told(answer(["data", "merge", "begun"], place), "begun")
    if not merged:
        for shard in ("1/2", "2/2"):
            if not told(prepare(place, "begun", "--shard", shard), "begun"):
                if damaged.is_dir():
                    return
                shutil.rmtree(place / "begun" / ".unfinished")  # as the message says
                assert told(prepare(place, "begun", "--shard", "1/2"))
                assert told(prepare(place, "begun", "--shard", "2/2"))
                break
        assert told(answer(["data", "merge", "begun"], place)), damaged
    assert tokens(place / "begun") == tokens(whole / "corpus"), damaged


def corpus(place: Path, whole: Path, damaged: Path) -> None:
    """A run that trains from it equals one from a whole corpus."""
    told(answer(["data", "verify", "corpus"], place), "corpus")
    told(prepare(place, "corpus"), "corpus")
    found = unless_named(lambda: train(place, 1, "fresh/run"), place / "corpus")
    assert found is None or damaged.name != "tokenizer.json" or not damaged.exists()
    assert_same(found, whole, damaged)


def study(place: Path, whole: Path, damaged: Path) -> None:
    """All others are shown and stopped; the run resumes and ends in the same weights."""
    for verb in ("status", "logs", "cancel"):
        told(answer([verb, STUDY], place, {"PATH": f"{place}/bin:/usr/bin:/bin"}), STUDY)
    told(answer(["export", RUN, "--to", "again"], place), "study", "corpus")
    (place / RUN / "job" / "cancelled").unlink(missing_ok=True)
    assert_same(unless_named(lambda: train(place, 1), place / RUN), whole, damaged)


def archive(place: Path, whole: Path, damaged: Path) -> None:
    found = unless_named(lambda: read_tables(place / "archive"), place / "archive")
    if found is None or found.problems:  # such as that there is no run
        return
    for name in ("runs", "curves", "evaluations"):
        tables = (found, read_tables(whole / "archive"))
        one, other = (getattr(of, name).drop(columns="folder") for of in tables)
        pd.testing.assert_frame_equal(one, other)


def exported(place: Path, whole: Path, damaged: Path) -> None:
    """Other numbers are other weights, under another identity; what is no model is named."""
    settings = ["--set", f"fork_from=hf:{place}/exported", "--set", "study=x", "--dry-run"]
    told(answer(["train", place / "run.toml", *settings], place), "exported")


def unless_named(work: Callable[[], T], place: Path) -> T | None:
    """The result, or None if the place is named as the reason why there is none."""
    try:
        return work()
    except UserError as error:
        said = str(error)
    assert str(place) in said
    assert len(said.splitlines()) == 1
    return None


def assert_same(found: dict[str, torch.Tensor] | None, whole: Path, damaged: Path) -> None:
    if found is None:
        return
    expected = last_tensors(whole / "whole")
    assert expected.keys() == found.keys(), damaged
    assert all(torch.equal(expected[name], found[name]) for name in expected), damaged


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("read", [begun, corpus, study, archive, exported])
def test_a_damaged_file_is_named_or_healed_or_changes_nothing(made, tmp_path, read, damage):
    whole, other = made
    folder = whole / read.__name__
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    theirs = sorted(path for path in (other / read.__name__).rglob("*") if path.is_file())
    assert len(files) == len(theirs) > 2
    for path, counterpart in zip(files, theirs, strict=True):
        if damage in ("truncated", "flipped") and not path.stat().st_size:
            continue
        place = shutil.copytree(whole, tmp_path / "place")
        damaged = place / path.relative_to(whole)
        DAMAGES[damage](damaged, counterpart)
        read(place, whole, damaged)
        shutil.rmtree(place)
