"""No layout changes a loss, a gradient or a run: real processes, over gloo."""

from functools import cache
from pathlib import Path

import pytest
import torch

from tests.distributed import run_ranks
from tests.layouts import Shards, assembled, assert_close_tensors, gradients_of_run, standing_still
from tests.tiny_runs import MIXTURE, MUON, last_tensors, tiny
from tst_study.record import reader as run_record
from tst_study.record.reader import RunRecord
from tst_study.train import train

TENSOR = ("execution.parallel.tensor=2",)
SEQUENCE = (*TENSOR, "execution.parallel.sequence_parallel=true")
EXPERT = ("execution.parallel.expert=2",)
DISTRIBUTED = ('execution.parallel.optimizer="distributed"',)
OVERLAP = ("execution.parallel.overlap_gradients=true", "execution.micro_batch=1")

BYTES = "model.vocabulary_size=257"
DOCUMENTS = {
    "shuffled bags": (BYTES, "superposition.shuffle_targets=true"),
    "input only": (BYTES, "superposition.mode=input_only"),
    "output only": (BYTES, "superposition.mode=output_only"),
    "power law, mixture": (BYTES, "superposition.weighting=power_law", *MIXTURE),
    "hinge, tied": (BYTES, "superposition.loss=hinge", "model.tied_embeddings=true"),
    "smoothed labels": (
        BYTES,
        "superposition={}",
        "label_smoothing={epsilon = 0.2, last_step = 1}",
    ),
    "batch warm-up": (BYTES, "superposition={}", "batch_warmup={parts = 2, step_ratio = 1.0}"),
}
# Each stands also for its parts: what is wrong with TP2 is wrong with TP2 DP2.
CASES = {
    "dense DP2 distributed, overlapped": ((), 2, (*DISTRIBUTED, *OVERLAP)),
    "dense TP2 DP2": ((), 4, TENSOR),
    "tied TP2 SP DP2 distributed": (("model.tied_embeddings=true",), 4, (*SEQUENCE, *DISTRIBUTED)),
    "mixture TP2 SP": (MIXTURE, 2, SEQUENCE),
    "mixture TP2 SP EP2 on 4": (MIXTURE, 4, (*SEQUENCE, *EXPERT)),
    "mixture EP2 DP2 distributed, overlapped": (MIXTURE, 4, (*EXPERT, *DISTRIBUTED, *OVERLAP)),
    "muon DP2 overlapped": (MUON, 2, OVERLAP),
    "muon EP2": ((*MUON, *MIXTURE), 2, EXPERT),
    **{
        f"{name} DP2": (settings, 2, ("execution.micro_batch=1",))
        for name, settings in DOCUMENTS.items()
    },
}


def gradients_and_run(corpus: Path, folder: Path, *overrides: str) -> list[Shards]:
    """On every rank: gradients of a step of each phase at the same weights; then the whole run."""
    gradients = gradients_of_run(standing_still(corpus, *overrides), folder / "standing still")
    assert len(gradients) == 2
    assert train(tiny(corpus, *overrides), folder / "run", progress=False) == "done"
    return gradients


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory):
    """The same on one process, each made once."""

    @cache
    def computed(corpus: Path, overrides: tuple[str, ...]) -> tuple[list[list[Shards]], Path]:
        folder = tmp_path_factory.mktemp("alone")
        return run_ranks(1, gradients_and_run, corpus, folder, *overrides), folder / "run"

    return computed


@pytest.mark.parametrize(("model", "ranks", "layout"), CASES.values(), ids=CASES.keys())
def test_gradients_and_twenty_steps_across_the_switch_are_those_of_one_process(
    words, documents, tmp_path, alone, model, ranks, layout
):
    corpus = documents if model in DOCUMENTS.values() else words
    work = (gradients_and_run, corpus, tmp_path, *model, *layout)
    of_ranks = run_ranks(ranks, *work)
    gradients, reference = alone(corpus, model)
    for phase in (0, 1):
        mine, theirs = (assembled([rank[phase] for rank in one]) for one in (of_ranks, gradients))
        assert_close_tensors(mine, theirs, 1e-5)
    assert_same_run_closely(run_record.read(tmp_path / "run"), run_record.read(reference))
    assert_close_tensors(last_tensors(tmp_path / "run"), last_tensors(reference), 1e-4)


def assert_same_run_closely(one: RunRecord, other: RunRecord) -> None:
    assert one.header["fingerprint"] == other.header["fingerprint"]
    assert len(one.metrics) == len(other.metrics) == 20
    for mine, theirs in zip(one.metrics, other.metrics, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        for counter in ("step", "phase", "raw_tokens", "latent_tokens", "epochs", "flops"):
            assert mine[counter] == theirs[counter]
        assert mine["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-4)
        assert mine.get("moe", {}).keys() == theirs.get("moe", {}).keys()
        for name in ("balance_loss", "router_entropy"):
            if "moe" in theirs:
                assert mine["moe"][name] == pytest.approx(theirs["moe"][name], rel=1e-4), name
        if "moe" in theirs:
            loads = [torch.tensor(row["moe"]["load"]["max"]) for row in (mine, theirs)]
            torch.testing.assert_close(*loads, rtol=0.05, atol=0.05)
    ours, others = one.evals[-1], other.evals[-1]
    assert ours["nats_per_token"] == pytest.approx(others["nats_per_token"], rel=1e-5)
    assert ours["standard_error"] == pytest.approx(others["standard_error"], rel=1e-4)
    assert ours["tokens"] == others["tokens"]
