"""However a batch is cut into micro-batches, a step's loss is one exact mean over all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.step_gradients import assert_same_steps, standing_still, step_gradients
from tests.tiny_runs import MIXTURE, run, tiny
from tst_study.data.run_data import open_stream

# Bags end with their documents: padded labels are ignored, unevenly over sequences and offsets.
ALIGNED = ("model.vocabulary_size=257", "superposition.align_bags_to_documents=true")


def test_aligned_bags_leave_uneven_numbers_of_labels(documents: Path) -> None:
    _, labels = open_stream(tiny(documents, *ALIGNED)).batch(0)
    assert len({int((row >= 0).sum()) for row in labels}) > 1


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("superposition.mode=output_only", "superposition.align_bags_to_documents=false"),
        ("superposition.mode=input_only",),
        ("superposition.loss=sum_to_one",),
        ("superposition.loss=hinge", "model.tied_embeddings=true"),
        ("superposition.weighting=power_law", *MIXTURE),
    ],
    ids=str,
)
def test_one_two_or_all_sequences_at_a_time_give_one_gradient(
    documents: Path, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    settings = (*ALIGNED, *overrides)
    whole = step_gradients(standing_still(documents, *settings), tmp_path / "whole")
    for size in (1, 2):
        config = standing_still(documents, *settings, f"execution.micro_batch={size}")
        cut = step_gradients(config, tmp_path / str(size))
        assert_same_steps(cut, tmp_path / str(size), whole, tmp_path / "whole")


def test_runs_agree_through_the_switch(documents: Path, tmp_path: Path) -> None:
    whole = run(documents, tmp_path / "whole", *ALIGNED)
    ones = run(documents, tmp_path / "ones", *ALIGNED, "execution.micro_batch=1")
    assert ones.header["fingerprint"] == whole.header["fingerprint"]
    for mine, other in zip(ones.metrics, whole.metrics, strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert mine["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-4)
