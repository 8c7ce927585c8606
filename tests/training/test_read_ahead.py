"""A thread that reads batches ahead changes nothing but when they are read."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_runs import assert_same_run, run, tiny
from tst_study import train
from tst_study.data.token_stream import TokenStream
from tst_study.errors import UserError
from tst_study.process.read_ahead import ReadAhead
from tst_study.record.reader import read


@pytest.fixture
def _ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """On processors, too, though without pinned memory."""
    monkeypatch.setattr(train, "_reads_ahead", lambda device: True)


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_each_step_is_read_once_in_order_and_one_ahead() -> None:
    asked: list[int] = []
    one_ahead = threading.Semaphore(0)

    def reading(step: int) -> int:
        asked.append(step)
        one_ahead.release()
        return step * step

    ahead = ReadAhead(reading, end=9)
    for step in range(3, 9):
        assert ahead(step) == step * step
        for _ in range(1 if step > 3 else 2):
            assert step == 8 or one_ahead.acquire(timeout=60)
        assert asked == list(range(3, min(step + 2, 9)))
    ahead.close()
    assert not readers()


@pytest.mark.usefixtures("_ahead")
def test_a_run_that_reads_ahead_is_the_same_run(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    batch = TokenStream.batch

    def noting(self: TokenStream, step: int, *rest: Any) -> Any:
        asked.append((threading.current_thread().name, step))
        return batch(self, step, *rest)

    monkeypatch.setattr(TokenStream, "batch", noting)
    run(words, tmp_path / "ahead")
    assert [step for _, step in asked] == list(range(20))
    assert all(name.startswith("batches") for name, _ in asked)
    assert not readers()
    monkeypatch.setattr(train, "_reads_ahead", lambda device: False)
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
