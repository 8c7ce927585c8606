"""A thread that reads batches ahead changes nothing but when they are read."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_runs import assert_same_run, run, tiny
from tst_study import batches, train
from tst_study.data.token_stream import TokenStream
from tst_study.errors import UserError
from tst_study.parallel.optimizer import ModelOptimizer
from tst_study.record.reader import read


@pytest.fixture
def _ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """On processors, too, though without pinned memory."""
    monkeypatch.setattr(batches, "_reads_ahead", lambda device: True)


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]


@pytest.mark.usefixtures("_ahead")
def test_a_run_that_reads_ahead_is_the_same_run(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    updates: list[float] = []
    batch, update = TokenStream.batch, ModelOptimizer.step

    def after_the_next_batch(self: ModelOptimizer, learning_rate: float) -> Any:
        updates.append(learning_rate)
        deadline = time.monotonic() + 60
        while len(asked) < min(len(updates) + 1, 20):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return update(self, learning_rate)

    def noting(self: TokenStream, step: int, *rest: Any) -> Any:
        asked.append((threading.current_thread().name, step))
        return batch(self, step, *rest)

    monkeypatch.setattr(TokenStream, "batch", noting)
    monkeypatch.setattr(ModelOptimizer, "step", after_the_next_batch)
    run(words, tmp_path / "ahead")
    assert [step for _, step in asked] == list(range(20))
    assert all(name.startswith("batches") for name, _ in asked)
    assert not readers()
    monkeypatch.undo()
    run(words, tmp_path / "in line")
    assert_same_run(tmp_path / "ahead", tmp_path / "in line")


@pytest.mark.usefixtures("_ahead")
def test_an_error_of_the_thread_ends_the_run_in_its_words(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = TokenStream.batch

    def broken(self: TokenStream, step: int, *rest: Any) -> Any:
        if step == 5:
            raise UserError("step 5 cannot be read")
        return batch(self, step, *rest)

    monkeypatch.setattr(TokenStream, "batch", broken)
    with pytest.raises(UserError, match="step 5 cannot be read"):
        train.train(tiny(words), tmp_path, progress=False)
    assert len(read(tmp_path).metrics) == 5  # the step it belongs to ends the run, none before it
    assert not readers()
