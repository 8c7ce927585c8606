"""A checkpoint that is written while training goes on is the one that training would have waited
for: the state of its step, whole or not there, whatever ends the run meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.distributed import run_ranks
from tests.tiny_runs import (
    assert_same_run,
    assert_same_tensors,
    checkpoint_folders,
    kill_this_process,
    launched,
    run,
    stop_this_process,
    tensors_of,
    tiny,
    when_step_begins,
)
from tst_study.checkpoints import writer as checkpoint_writer
from tst_study.checkpoints.places import checkpoint_steps
from tst_study.data.token_stream import TokenStream
from tst_study.errors import UserError
from tst_study.record import reader as run_record
from tst_study.train import train

ALL = "execution.keep_checkpoints=20"
ASYNCHRONOUS = "execution.asynchronous_checkpoints=true"
EVERY_FOUR = (ALL, "execution.checkpoint_every=4")
DISTRIBUTED = ('execution.parallel.optimizer="distributed"',)


def slow_disk(patch: pytest.MonkeyPatch, wait: Callable[[], None]) -> None:
    """A thread that writes a rank's files calls `wait` first."""
    write = checkpoint_writer._write

    def write_late(*arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            wait()
        return write(*arguments)

    patch.setattr(checkpoint_writer, "_write", write_late)


def disk_that_is_two_steps_late(patch: pytest.MonkeyPatch, folder: Path) -> list[list[int]]:
    """Nothing is written before the second step after the save begins; at the beginning of each
    step the checkpoints in `folder` are noted."""
    seen: list[list[int]] = []
    begun: list[int] = []
    late = threading.Event()
    batch = TokenStream.batch

    def wait() -> None:
        begun.append(len(seen))
        assert late.wait(30)
        late.clear()

    def watched_batch(self: TokenStream, now: int, *rest: Any) -> Any:
        if begun and len(seen) == begun[-1] + 2:
            late.set()
        seen.append(checkpoint_steps(folder))
        return batch(self, now, *rest)

    slow_disk(patch, wait)
    patch.setattr(TokenStream, "batch", watched_batch)
    return seen


@pytest.fixture(scope="module")
def waiting(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that waited for each checkpoint."""
    folder = tmp_path_factory.mktemp("runs") / "waiting"
    run(words, folder, *EVERY_FOUR)
    return folder


def assert_same_checkpoints(one: Path, other: Path) -> None:
    assert_same_run(one, other)
    assert checkpoint_steps(one) == checkpoint_steps(other)
    for here, there in zip(checkpoint_folders(one), checkpoint_folders(other), strict=True):
        assert_same_tensors(tensors_of(here), tensors_of(there))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_the_state_of_its_step_and_seen_when_it_is_whole(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    precision = f"numerics.dtype={dtype}"
    run(words, tmp_path / "waiting", *EVERY_FOUR, precision)
    seen = disk_that_is_two_steps_late(monkeypatch, tmp_path / "late")
    run(words, tmp_path / "late", *EVERY_FOUR, precision, ASYNCHRONOUS)
    assert_same_checkpoints(tmp_path / "waiting", tmp_path / "late")
    assert seen[:6] == [[]] * 6
    assert seen[8:10] == [[4]] * 2
    assert seen[12:14] == [[4, 8]] * 2
    assert not list((tmp_path / "late" / "checkpoints").glob("partial-*"))


def test_a_save_waits_for_the_one_before(
    words: Path, waiting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work: list[int] = []
    most: list[int] = []

    def wait() -> None:
        at_work.append(1)
        most.append(len(at_work))
        time.sleep(0.02)
        at_work.pop()

    slow_disk(monkeypatch, wait)
    run(words, tmp_path, ALL, "execution.checkpoint_every=1", ASYNCHRONOUS)
    assert checkpoint_steps(tmp_path) == list(range(1, 21))
    assert most == [1] * 19  # and the last step's, for which the run waits
    assert_same_run(tmp_path, waiting)


@pytest.mark.parametrize(("step", "resumed_from"), [(5, None), (13, 8)])
def test_killed_while_a_thread_writes(
    words: Path, waiting: Path, tmp_path: Path, step: int, resumed_from: int | None
) -> None:
    settings = (*EVERY_FOUR, ASYNCHRONOUS)

    def prepare() -> None:
        disk_that_is_two_steps_late(pytest.MonkeyPatch(), tmp_path)
        when_step_begins(step, kill_this_process)

    assert launched(words, tmp_path, prepare, *settings) == -signal.SIGKILL
    assert len(list((tmp_path / "checkpoints").glob("partial-*"))) == 1
    record = run(words, tmp_path, *settings)
    assert record.segments[-1]["resumed_from"] == resumed_from
    assert_same_checkpoints(tmp_path, waiting)


def test_a_signal_waits_for_both_the_last_checkpoint_and_its_own(
    words: Path, waiting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_disk(monkeypatch, lambda: time.sleep(0.1))
    monkeypatch.setattr(TokenStream, "batch", TokenStream.batch)  # put back at the end
    when_step_begins(8, stop_this_process)
    stopped = run(words, tmp_path, *EVERY_FOUR, ASYNCHRONOUS)
    assert stopped.state == "preempted"
    assert stopped.status is not None
    assert stopped.status["last_checkpoint"] == 9
    assert checkpoint_steps(tmp_path) == [4, 8, 9]
    record = run(words, tmp_path, *EVERY_FOUR, ASYNCHRONOUS)
    assert record.segments[-1]["resumed_from"] == 9
    assert_same_run(tmp_path, waiting)


def test_a_run_that_diverges_keeps_what_was_being_written(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_disk(monkeypatch, lambda: time.sleep(0.1))
    record = run(
        words, tmp_path, ALL, ASYNCHRONOUS, "execution.checkpoint_every=1",
        "optimizer.learning_rate=1e5",
    )  # fmt: skip
    assert record.state == "diverged"
    assert record.status is not None
    assert record.status["last_checkpoint"] == record.status["step"] - 1
    assert checkpoint_steps(tmp_path)[-1] == record.status["step"] - 1


def test_no_thread_outlives_a_run_that_fails(
    words: Path, waiting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise UserError("the data is gone")

    with monkeypatch.context() as patch:
        slow_disk(patch, lambda: time.sleep(0.2))
        patch.setattr(TokenStream, "batch", TokenStream.batch)
        when_step_begins(5, fail)
        with pytest.raises(UserError, match="the data is gone"):
            run(words, tmp_path, *EVERY_FOUR, ASYNCHRONOUS)
        assert not [one for one in threading.enumerate() if one.name.startswith("checkpoint")]
    assert checkpoint_steps(tmp_path) == []
    run(words, tmp_path, *EVERY_FOUR, ASYNCHRONOUS)
    assert_same_checkpoints(tmp_path, waiting)


def test_ranks_agree_when_all_of_them_have_written(words: Path, tmp_path: Path) -> None:
    """Though one of them has the slower disk."""

    def late(folder: Path, *overrides: str) -> str:
        with pytest.MonkeyPatch.context() as patch:
            slow_disk(patch, lambda: time.sleep(0.1 * dist.get_rank()))
            config = tiny(words, *EVERY_FOUR, *DISTRIBUTED, *overrides)
            return train(config, folder, progress=False)

    assert run_ranks(2, late, tmp_path / "waiting") == ["done"] * 2
    assert run_ranks(2, late, tmp_path / "late", ASYNCHRONOUS) == ["done"] * 2
    assert_same_checkpoints(tmp_path / "waiting", tmp_path / "late")


def test_what_the_disk_of_one_rank_refuses_all_of_them_say(words: Path, tmp_path: Path) -> None:
    config = tiny(words, *EVERY_FOUR, *DISTRIBUTED, ASYNCHRONOUS)

    def refused() -> str:
        def refuse(file: int) -> None:
            if "partial-step-00000008/__1_" in os.readlink(f"/proc/self/fd/{file}"):
                raise OSError(28, os.strerror(28))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            with pytest.raises(UserError) as raised:
                train(config, tmp_path, progress=False)
        return str(raised.value)

    first, other = run_ranks(2, refused)
    assert "step-00000008: " in first
    assert "[Errno 28]" in first
    assert "step-00000008: cannot be written" in other
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]
    assert run_record.read(tmp_path).segments[0]["ended"] == first
    assert run_ranks(2, train, config, tmp_path) == ["done"] * 2
