"""Two ranks compute what one does, and the number of ranks may change at any launch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.distributed import run_ranks
from tests.layouts import assert_close_tensors
from tests.tiny_runs import (
    checkpoint_folders,
    last_tensors,
    run,
    tiny,
)
from tst_study.errors import UserError
from tst_study.parallel.process_groups import process_groups
from tst_study.record import reader as run_record
from tst_study.record.reader import RunRecord
from tst_study.train import train

# Ranks take turns on busy cores: what takes a second alone may take a minute beside other work.
run_two = partial(run_ranks, 2, timeout=300.0)

ALIGNED = ("model.vocabulary_size=257", "superposition.align_bags_to_documents=true")


def train_on_two(corpus: Path, folder: Path, *overrides: str) -> RunRecord:
    config = tiny(corpus, *overrides)
    states = run_two(lambda: train(config, folder, progress=False))
    assert states == ["done", "done"]
    return run_record.read(folder)


def assert_same_losses(one: RunRecord, other: RunRecord) -> None:
    for mine, theirs in zip(one.metrics, other.metrics, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        for counter in ("step", "phase", "raw_tokens", "latent_tokens", "epochs", "flops"):
            assert mine[counter] == theirs[counter]
    for ours, others in zip(one.evals, other.evals, strict=True):
        assert ours["nats_per_token"] == pytest.approx(others["nats_per_token"], rel=1e-5)
        assert ours["standard_error"] == pytest.approx(others["standard_error"], rel=1e-4)
        assert ours["tokens"] == others["tokens"]


SMOOTHED = (
    "model.vocabulary_size=257",
    "superposition={}",
    "label_smoothing={epsilon = 0.2, last_step = 10}",
)
SHUFFLED = (*ALIGNED, "superposition.shuffle_targets=true")


@pytest.mark.parametrize("settings", [ALIGNED, SHUFFLED, SMOOTHED])
def test_a_run_on_two_ranks_is_the_run_on_one(
    documents: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    settings = (*settings, "execution.evaluate_every=8")
    two = train_on_two(documents, tmp_path / "two", *settings)
    one = run(documents, tmp_path / "one", *settings)
    assert two.header["fingerprint"] == one.header["fingerprint"]
    assert len(two.metrics) == 20
    assert_same_losses(two, one)


def test_data_ranks_write_a_checkpoint_in_equal_parts(words: Path, tmp_path: Path) -> None:
    assert run_two(train, tiny(words, "model.hidden_size=64"), tmp_path) == ["done", "done"]
    (place,) = checkpoint_folders(tmp_path)
    sizes = [sum(file.stat().st_size for file in place.glob(f"__{rank}_*")) for rank in (0, 1)]
    assert max(sizes) < 1.5 * min(sizes)
    alone = run(words, tmp_path / "alone", "model.hidden_size=64")
    assert_close_tensors(last_tensors(tmp_path), last_tensors(alone.folder), 1e-3)


def test_files_are_read_by_the_first_rank_alone_and_its_error_is_everyones(words: Path) -> None:
    def work() -> tuple[list[str], int]:
        read: list[str] = []

        def reading(name: str) -> str:
            read.append(name)
            if name == "missing":
                raise UserError(f"{name}: not there")
            return name

        with process_groups(tiny(words)) as ranks:
            assert ranks.from_first(lambda: reading("text")) == "text"
            with pytest.raises(UserError, match="missing: not there"):
                ranks.from_first(lambda: reading("missing"))
        return read, ranks.rank

    assert run_ranks(2, work) == [(["text", "missing"], 0), ([], 1)]
