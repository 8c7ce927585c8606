"""Bags of one token are the baseline, bit for bit (invariant 2)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiny_runs import assert_same_run, last_tensors, run
from tst_study.parallel.optimizer import ModelOptimizer
from tst_study.record import reader as run_record

BASELINE = ("superposition.bag_size=4", "superposition.step_ratio=0.0")
Gradients = list[list[torch.Tensor]]


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> Gradients:
    """What every optimizer step of this test is given, before it is clipped."""
    seen: Gradients = []
    step = ModelOptimizer.step

    def recording_step(self: ModelOptimizer, learning_rate: float) -> torch.Tensor:
        seen.append([p.main_grad.clone() for p in self.parameters])  # type: ignore[attr-defined]
        return step(self, learning_rate)

    monkeypatch.setattr(ModelOptimizer, "step", recording_step)
    return seen


@pytest.mark.parametrize(
    "ones",
    [
        ("superposition.step_ratio=0.3",),
        ("superposition.step_ratio=1.0", "superposition.mode=output_only"),
        ("superposition.step_ratio=0.5", "superposition.align_bags_to_documents=true"),
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
    words: Path, tmp_path: Path, gradients: Gradients, ones: tuple[str, ...]
) -> None:
    baseline = run(words, tmp_path / "baseline", *BASELINE)
    of_the_baseline = gradients.copy()
    gradients.clear()
    record = run(words, tmp_path / "ones", "superposition.bag_size=1", *ones)
    assert_same_run(tmp_path / "baseline", tmp_path / "ones")
    assert len(gradients) == len(of_the_baseline) == 20
    for mine, other in zip(gradients, of_the_baseline, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))
    assert record.header["fingerprint"] == baseline.header["fingerprint"]
    assert {row["loss_name"] for row in record.metrics} == {"next_token"}
    assert {row["bag_size"] for row in record.metrics} == {1}


def test_two_bags_are_another_run(words: Path, tmp_path: Path) -> None:
    """What the equalities above would look like if they compared nothing."""
    one = run(words, tmp_path / "one", "superposition.bag_size=1")
    two = run(words, tmp_path / "two", "superposition.bag_size=2")
    assert one.header["fingerprint"] != two.header["fingerprint"]
    assert one.metrics[-1]["loss"] != two.metrics[-1]["loss"]


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


def test_two_runs_of_one_config_agree_bit_for_bit_and_another_seed_does_not(
    words: Path, tmp_path: Path
) -> None:
    for name in ("one", "again"):
        run(words, tmp_path / name)
    other = run(words, tmp_path / "other", "seed=1")
    assert_same_run(tmp_path / "one", tmp_path / "again")
    one = run_record.read(tmp_path / "one")
    assert one.metrics[0]["loss"] != other.metrics[0]["loss"]
    assert one.header["fingerprint"] != other.header["fingerprint"]


def test_a_baseline_has_no_phases_to_tell_of(words: Path, tmp_path: Path) -> None:
    for name, superposed in (("baseline", BASELINE), ("superposed", ())):
        run(words, tmp_path / name, *superposed)
    said = [run_record.read_status(tmp_path / name) for name in ("baseline", "superposed")]
    assert [status and status["phase"] for status in said] == ["", "recovery"]
