"""Bags of one token are the baseline, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.layouts import gradients_of_run
from tests.tiny_runs import assert_same_run, last_tensors, run, tiny
from tst_study.record import reader as run_record

BASELINE = ("superposition.bag_size=4", "superposition.step_ratio=0.0")


@pytest.mark.parametrize(
    "ones",
    [
        ("superposition.step_ratio=0.3",),
        ("superposition.step_ratio=1.0", "superposition.mode=output_only"),
        (
            "superposition.step_ratio=0.0",
            "superposition.steps=7",
            "superposition.loss=sum_to_one",
            "superposition.reinitialize_at_switch=true",
            "superposition.optimizer_at_switch=reset",
        ),
    ],
    ids=str,
)
def test_bags_of_one_token_are_the_baseline_bit_for_bit(
    words: Path, tmp_path: Path, ones: tuple[str, ...]
) -> None:
    places = {
        tmp_path / "baseline": BASELINE,
        tmp_path / "ones": (*ones, "superposition.bag_size=1"),
    }
    gradients = [gradients_of_run(tiny(words, *more), to) for to, more in places.items()]
    baseline, record = (run_record.read(folder) for folder in places)
    assert_same_run(*places)
    assert len(gradients[0]) == 20
    for mine, other in zip(*gradients, strict=True):
        assert all(torch.equal(a[-1], b[-1]) for a, b in zip(mine, other, strict=True))
    assert record.header["fingerprint"] == baseline.header["fingerprint"]
    assert {row["loss_name"] for row in record.metrics} == {"next_token"}
    assert {row["bag_size"] for row in record.metrics} == {1}


def test_nothing_of_superposition_is_left_in_the_final_checkpoint(
    words: Path, tmp_path: Path
) -> None:
    run(words, tmp_path / "baseline", *BASELINE)
    run(words, tmp_path / "superposed")
    baseline = last_tensors(tmp_path / "baseline")
    superposed = last_tensors(tmp_path / "superposed")
    assert {name: (x.shape, x.dtype) for name, x in baseline.items()} == {
        name: (x.shape, x.dtype) for name, x in superposed.items()
    }
