"""Trackers show every logged row, and none of them can stop a run."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.tiny_runs import run
from tst_study.record import trackers
from tst_study.record.trackers import Show

EVERY = "execution.evaluate_every=10"
BEHIND_THE_SWITCH = 11


def test_tensorboard_shows_each_loss_by_its_name(words, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = run(words, tmp_path / "run", "execution.track=['tensorboard']", EVERY)
    shown = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    shown.Reload()
    for name, superposed in (("bag_mce", True), ("next_token", False)):
        curve = [(one.step, one.value) for one in shown.Scalars(f"training/{name}_loss")]
        rows = [row for row in record.metrics if (row["step"] < BEHIND_THE_SWITCH) == superposed]
        assert curve == [(row["step"], pytest.approx(row["loss"])) for row in rows]
    held_out = [(one.step, one.value) for one in shown.Scalars("held_out/nats_per_token")]
    assert held_out == [(r["step"], pytest.approx(r["nats_per_token"])) for r in record.evals]


def test_weights_and_biases_takes_every_row_offline(words, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    record = run(words, tmp_path / "run", "execution.track=['wandb']", EVERY)
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    content = file.read_bytes()
    # Every block of 32 KiB begins with 7 bytes of its own.
    blocks = (content[at + 7 : at + 2**15] for at in range(0, len(content), 2**15))
    stored = b"".join(blocks)
    for row in record.metrics:
        assert json.dumps(row["loss"]).encode() in stored
    assert b"held_out/nats_per_token" in stored


@pytest.mark.parametrize("dies", ["opening", "showing", "finishing"])
def test_a_tracker_that_fails_costs_a_line(words, tmp_path, monkeypatch, capsys, dies):
    def fail(moment: str) -> None:
        if moment == dies:
            raise ConnectionError("no route")

    @contextmanager
    def tracker(*_: object) -> Iterator[Show]:
        fail("opening")
        yield lambda *_: fail("showing")
        fail("finishing")

    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", tracker)
    record = run(words, tmp_path / "run", "execution.track=['tensorboard']")
    assert (record.state, len(record.metrics)) == ("done", 20)
    assert capsys.readouterr().err.count(": ConnectionError: no route; the run goes on") == 1
