"""A trainer without torch for the launcher's tests: what a run does is told by its name."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments import run_process
from tests.examples import example
from tests.record.test_record import DATA, evaluation
from tst_study.config.schema import Config
from tst_study.errors import UserError
from tst_study.record.writer import RunWriter, header_of


def config(name: str, *overrides: str) -> Config:
    return example(f"name={name}", "data.corpora=[{path='none'}]", *overrides)


def run(config: Config, folder: Path, rank: run_process.Rank) -> None:
    """The launcher's target: the real child process around the fake trainer."""
    fake: Any = ModuleType("tst_study.train")
    fake.train = _train
    sys.modules["tst_study.train"] = fake
    run_process.run(config, folder, rank)


def _train(config: Config, folder: Path, *, progress: bool) -> str:
    writer = RunWriter(folder, header_of(config, DATA))
    segment = writer.start_segment(None, {})
    with open(folder / "launches", "a") as file:
        file.write("x")
    writer.status("running", 1, loss=5.0)
    behaviour, _, argument = config.name.partition("_")
    if behaviour == "fail" and not (folder.parent / "healed").exists():
        raise UserError("corpus: too short; give more text")
    if behaviour == "bug" and not (folder.parent / "healed").exists():
        raise ZeroDivisionError("division\nby zero")
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "hops":
        # Killed in every second launch after a new checkpoint, in the others without one.
        launches = len((folder / "launches").read_text())
        if launches <= int(argument):
            writer.status("running", launches, last_checkpoint=launches // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        argument = ""
    if behaviour == "diverge":
        writer.status("diverged", 2, "loss nan")
        return "diverged"
    if behaviour == "sleep":
        return _sleep(writer, float(argument))
    if behaviour == "preempt":
        launches = len((folder / "launches").read_text())
        if launches < 3 or argument == "always":
            # A machine that is taken away: after two steps each time, or always before the first.
            done = 0 if argument == "always" else 2 * launches
            writer.status("preempted", done, "SIGTERM", last_checkpoint=done)
            return "preempted"
        argument = ""
    loss = float(argument or 3.0)
    writer.evaluation(evaluation(segment, config.schedule.steps, loss))
    writer.status("done", config.schedule.steps, loss=loss)
    return "done"


def _sleep(writer: RunWriter, seconds: float) -> str:
    asked = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)
        if asked:
            writer.status("preempted", 1, "SIGTERM at step 1")
            return "preempted"
    writer.evaluation(evaluation(writer.segment, 100, 3.0))
    writer.status("done", 100)
    return "done"
