"""Compiling is told, and is no part of a step's time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny_runs import run
from tst_study import train
from tst_study.model.layers import compile_layers
from tst_study.record.log import Progress


def slow_backend(graph: Any, inputs: Any) -> Any:
    time.sleep(1.5)
    return graph.forward


def test_the_first_row_tells_of_it_and_its_steps_are_timed_without_it(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(
        train, "compile_layers", lambda layers: compile_layers(layers, slow_backend)
    )
    monkeypatch.setattr(train._Trainer, "evaluate", lambda *unused: True)
    began = time.perf_counter()
    record = run(words, tmp_path, "execution.compile=true", "schedule.steps=4")
    seconds = time.perf_counter() - began
    first, *others = record.metrics
    assert first["compile_seconds"] > 1.5
    assert not any("compile_seconds" in row for row in others)
    assert first["training_seconds"] == first["step_seconds"]
    assert first["compile_seconds"] + others[-1]["training_seconds"] < seconds


def test_the_live_line_says_how_long_it_took() -> None:
    line = Progress("run", 10, enabled=False)
    row = {"step": 1, "phase": "recovery", "loss_name": "next_token", "loss": 3.0}
    line.show({**row, "tokens_per_second": 10.0, "compile_seconds": 43.2})
    assert line.tasks[0].fields["facts"].endswith("10 tokens/s  compiled in 43 s")
    line.show({**row, "tokens_per_second": 10.0})
    assert line.tasks[0].fields["facts"].endswith("10 tokens/s")
