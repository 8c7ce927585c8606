"""The 10B-A1B pair is the paper's to the digit, and fits the GPUs that it is planned for."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tst_study.config.phase_plan import plan_phases
from tst_study.cost.compute import count_parameters
from tst_study.experiments.plan.layouts import Allocation, memory_by_part
from tst_study.experiments.studies.catalogue import load
from tst_study.experiments.study import Study

HEADLINE = Path(__file__).parents[2] / "analysis" / "published" / "headline_runs.csv"


@pytest.fixture(scope="module")
def paper() -> Study:
    return load("mixture-10b-a1b", "paper")


def published() -> dict[str, dict[str, str]]:
    rows = csv.DictReader(HEADLINE.read_text().splitlines())
    return {row["method"]: row for row in rows if row["architecture"] == "moe"}


@pytest.mark.parametrize(("index", "method"), [(0, "baseline"), (1, "tst")])
def test_steps_tokens_and_hours_are_the_tables(paper: Study, index: int, method: str) -> None:
    config, row = paper.runs(None)[index], published()[method]  # type: ignore[arg-type]
    plan = plan_phases(config)
    assert plan.steps == int(row["total_steps"])
    assert plan.superposed_steps == int(row["tst_steps"])
    assert plan.bag_size == int(row["bag_size"])
    assert config.batch.positions == 2**23
    assert plan.raw_tokens(plan.steps) == pytest.approx(float(row["total_tokens"]), rel=0.01)


def test_both_runs_are_one_model_with_two_corpora_in_equal_parts(paper: Study) -> None:
    baseline, superposed = paper.runs(None)  # type: ignore[arg-type]
    assert baseline.model == superposed.model
    assert count_parameters(baseline.model).total == 10_489_144_832
    assert len(baseline.data.corpora) == 2
    assert {corpus.weight for corpus in baseline.data.corpora} == {1.0}
    assert baseline.optimizer == superposed.optimizer


@pytest.mark.parametrize("gpus", [64, 512])
@pytest.mark.parametrize(("device", "micro_batch"), [("H100", 1), ("H200", 2), ("B200", 2)])
def test_it_fits_every_device_with_its_largest_micro_batch_and_without_recomputing(
    paper: Study, gpus: int, device: str, micro_batch: int
) -> None:
    given = Allocation(gpus, on_gpu=True, device=device)
    text = "\n".join(memory_by_part(paper.runs(None), given))  # type: ignore[arg-type]
    assert "10,489,144,832 parameters, 1,429,448,192 of them active" in text
    layout = f"expert 8, data {gpus}, distributed optimizer, micro-batch {micro_batch}"
    assert layout in text
    assert "does not fit" not in text
    assert f"at the data sheets' rates of {device}, 8 a node" in text


def test_twins_keep_the_structure() -> None:
    for scale in ("smoke", "quick", "laptop", "desktop", "one-gpu"):
        twin = load("mixture-10b-a1b", scale).runs(None)[0].model  # type: ignore[arg-type]
        assert twin.experts is not None
        assert (twin.experts.count, twin.experts.per_token) == (128, 8)
        assert (twin.attention_heads, twin.key_value_heads) == (24, 4)
        assert twin.qk_norm
        assert not twin.tied_embeddings
