"""What the backward pass computes again is what it would have kept, and nothing of it stays."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from benchmarks.steps import PackageSteps, step_config
from tests.allocated import AllocatedTensors
from tests.tiny_runs import MIXTURE, assert_same_run, run
from tst_study.configuration.presets import PRESETS
from tst_study.megatron.process_groups import process_groups


@pytest.mark.parametrize("recompute", ["feed_forward", "layer"])
@pytest.mark.parametrize("model", [(), MIXTURE], ids=["dense", "mixture"])
def test_a_run_with_recomputation_is_the_same_run(
    words: Path, tmp_path: Path, recompute: str, model: tuple[str, ...]
) -> None:
    run(words, tmp_path / "kept", *model)
    run(words, tmp_path / "again", *model, f"execution.recompute={recompute}")
    assert_same_run(tmp_path / "kept", tmp_path / "again")


def test_experts_hold_on_to_nothing_that_was_computed_again() -> None:
    """Megatron's dispatchers keep tensors of their last pass, and with them its whole graph."""
    held = {}
    for recompute in ("none", "layer"):
        config = step_config(PRESETS["laptop-moe"], 4, 128)
        execution = config.execution.model_copy(update={"recompute": recompute})
        config = config.model_copy(update={"execution": execution})
        allocated = AllocatedTensors()
        with process_groups(config) as ranks, allocated:
            package = PackageSteps(config, ranks.device)
            package.step()()
            gc.collect()
            held[recompute] = allocated.now
    assert held["layer"] == pytest.approx(held["none"], rel=0.05)
