"""The 10B-A1B pair is the paper's to the digit, and fits the GPUs that it is planned for."""

import pytest

from tests.experiments.test_studies import published
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config
from tst_study.experiments.plan.layouts import Allocation, memory_by_part
from tst_study.experiments.studies.catalogue import load


@pytest.fixture(scope="module")
def pair() -> list[Config]:
    return load("mixture-10b-a1b", "paper").runs(None)  # type: ignore[arg-type]


def test_steps_and_tokens_are_the_tables(pair):
    rows = published("headline_runs.csv")
    of_method = {row["method"]: row for row in rows if row["architecture"] == "moe"}
    for config, method in zip(pair, ("baseline", "tst"), strict=True):
        plan, row = plan_phases(config), of_method[method]
        assert plan.steps == int(row["total_steps"])
        assert plan.superposed_steps == int(row["tst_steps"])
        assert plan.bag_size == int(row["bag_size"])
        assert config.batch.positions == 2**23
        assert plan.raw_tokens(plan.steps) == pytest.approx(float(row["total_tokens"]), rel=0.01)


def test_both_runs_are_one_model_with_two_corpora_in_equal_parts(pair):
    baseline, superposed = pair
    assert baseline.model == superposed.model
    assert len(baseline.data.corpora) == 2
    assert {corpus.weight for corpus in baseline.data.corpora} == {1.0}
    assert baseline.optimizer == superposed.optimizer


@pytest.mark.parametrize("gpus", [64, 512])
@pytest.mark.parametrize(("device", "micro_batch"), [("H100", 1), ("H200", 2), ("B200", 2)])
def test_it_fits_every_device_with_its_largest_micro_batch_and_without_recomputing(
    pair, gpus, device, micro_batch
):
    given = Allocation(gpus, on_gpu=True, device=device)
    text = "\n".join(memory_by_part(pair, given))
    assert "10,489,144,832 parameters, 1,429,448,192 of them active" in text
    layout = f"expert 8, data {gpus}, distributed optimizer, micro-batch {micro_batch}"
    assert layout in text
    assert "does not fit" not in text
    assert f"at the data sheets' rates of {device}, 8 a node" in text
    assert not memory_by_part(pair, Allocation(7, on_gpu=True))  # no layout has seven ranks


def test_twins_keep_the_structure():
    for scale in ("smoke", "quick", "laptop", "desktop", "one-gpu"):
        twin = load("mixture-10b-a1b", scale).runs(None)[0].model  # type: ignore[arg-type]
        assert (twin.experts.count, twin.experts.per_token) == (128, 8)
        assert (twin.attention_heads, twin.key_value_heads) == (24, 4)
        assert twin.qk_norm
        assert not twin.tied_embeddings
