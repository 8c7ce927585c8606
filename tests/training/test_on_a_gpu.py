"""A run that `pytest -m gpu` trains on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiny_runs import run, stop_this_process, when_step_begins

pytestmark = pytest.mark.gpu


def losses(corpus: Path, folder: Path, device: str) -> list[float]:
    record = run(corpus, folder, f"execution.device={device}", "numerics.dtype=float32")
    return [row["loss"] for row in record.metrics]


def test_a_run_on_a_gpu_has_the_losses_of_one_on_a_processor_also_across_a_stop(
    words: Path, tmp_path: Path
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    expected = losses(words, tmp_path / "processor", "cpu")
    when_step_begins(8, stop_this_process)
    assert len(losses(words, tmp_path / "gpu", "cuda")) < 20
    assert losses(words, tmp_path / "gpu", "cuda") == pytest.approx(expected, rel=1e-3)
