"""No layout changes a loss, a gradient or a run (invariant 6): real processes, over gloo."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from tests.distributed import run_ranks
from tests.layouts import (
    Shards,
    assembled,
    assert_close_tensors,
    gradients_of_run,
    standing_still,
)
from tests.tiny_runs import MIXTURE, MUON, last_tensors, tiny
from tst_study.data.run_data import open_stream
from tst_study.record import reader as run_record
from tst_study.record.reader import RunRecord
from tst_study.train import train

TENSOR = ("execution.parallel.tensor=2",)
SEQUENCE = (*TENSOR, "execution.parallel.sequence_parallel=true")
EXPERT = ("execution.parallel.expert=2",)
PIPELINE = ("execution.parallel.pipeline=2",)
DISTRIBUTED = ('execution.parallel.optimizer="distributed"',)
OVERLAP = ("execution.parallel.overlap_gradients=true", "execution.micro_batch=1")
WEIGHTS = (*DISTRIBUTED, *OVERLAP, "execution.parallel.overlap_weights=true")

DENSE_LAYOUTS = {
    "TP2": (2, TENSOR),
    "TP2 SP": (2, SEQUENCE),
    "PP2": (2, PIPELINE),
    "PP2 in micro-batches": (2, (*PIPELINE, "execution.micro_batch=1")),
    "PP2 tied": (2, (*PIPELINE, "model.tied_embeddings=true")),
    "DP2": (2, ()),
    "DP2 overlapped": (2, OVERLAP),
    "DP2 distributed": (2, DISTRIBUTED),
    "DP2 distributed overlapped": (2, (*DISTRIBUTED, *OVERLAP)),
    "DP2 distributed weights overlapped": (2, WEIGHTS),
    "TP2 DP2": (4, TENSOR),
    "TP2 SP DP2 distributed": (4, (*SEQUENCE, *DISTRIBUTED)),
    "TP2 PP2": (4, (*TENSOR, *PIPELINE)),
    "PP2 DP2 tied distributed": (
        4,
        (*PIPELINE, *DISTRIBUTED, "model.tied_embeddings=true", "execution.micro_batch=1"),
    ),
}
MIXTURE_LAYOUTS = {
    "EP2": (2, EXPERT),
    "DP2": (2, ()),
    "DP2 distributed": (2, DISTRIBUTED),
    "PP2": (2, PIPELINE),
    "TP2 SP": (2, SEQUENCE),
    "TP2 SP EP2": (2, (*SEQUENCE, *EXPERT)),
    "TP2 SP EP2 on 4": (4, (*SEQUENCE, *EXPERT)),
    "EP2 DP2 distributed": (4, (*EXPERT, *DISTRIBUTED)),
    "EP2 DP2 distributed weights overlapped": (4, (*EXPERT, *WEIGHTS)),
    "PP2 EP2": (4, (*PIPELINE, *EXPERT)),
}
MUON_LAYOUTS = {
    "DP2 overlapped": (2, OVERLAP),
    "PP2": (2, PIPELINE),
    "EP2": (2, (*EXPERT, *MIXTURE)),
    "PP2 EP2": (4, (*PIPELINE, *EXPERT, *MIXTURE)),
}
# Bags end with their documents: padded labels are ignored, unevenly over ranks and micro-batches.
ALIGNED = ("model.vocabulary_size=257", "superposition.align_bags_to_documents=true")
DOCUMENTS = {
    "aligned bags": ALIGNED,
    "shuffled bags": (*ALIGNED, "superposition.shuffle_targets=true"),
    "input only": (*ALIGNED, "superposition.mode=input_only"),
    "output only": (ALIGNED[0], "superposition.mode=output_only"),
    "power law, mixture": (*ALIGNED, "superposition.weighting=power_law", *MIXTURE),
    "sum to one": (*ALIGNED, "superposition.loss=sum_to_one"),
    "hinge, tied": (*ALIGNED, "superposition.loss=hinge", "model.tied_embeddings=true"),
    "smoothed labels": (
        ALIGNED[0],
        "superposition={}",
        "label_smoothing={epsilon = 0.2, last_step = 1}",
    ),
}
Z_LOSS = ("model.experts.router_z_loss=0.01",)
CASES = [
    *(pytest.param((), *layout, id=f"dense {name}") for name, layout in DENSE_LAYOUTS.items()),
    *(
        pytest.param((*MIXTURE, *Z_LOSS), *layout, id=f"mixture {name}")
        for name, layout in MIXTURE_LAYOUTS.items()
    ),
    *(pytest.param(MUON, *layout, id=f"muon {name}") for name, layout in MUON_LAYOUTS.items()),
    *(
        pytest.param(settings, 2, ("execution.micro_batch=1",), id=f"{name} DP2")
        for name, settings in DOCUMENTS.items()
    ),
]


def of_the_result(overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Without what only says how it is computed."""
    return tuple(x for x in overrides if not x.startswith("execution."))


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


def test_aligned_bags_leave_uneven_numbers_of_labels(documents: Path) -> None:
    _, labels = open_stream(tiny(documents, *ALIGNED)).batch(0)
    assert len({int((row >= 0).sum()) for row in labels}) > 1


@pytest.mark.parametrize(("model", "ranks", "layout"), CASES)
def test_gradients_and_twenty_steps_across_the_switch_are_those_of_one_process(
    words: Path,
    documents: Path,
    tmp_path: Path,
    alone,
    model: tuple[str, ...],
    ranks: int,
    layout: tuple[str, ...],
) -> None:
    settings = (*model, *layout)
    corpus = documents if model in DOCUMENTS.values() else words
    of_ranks = run_ranks(ranks, gradients_and_run, corpus, tmp_path, *settings, timeout=120.0)
    gradients, reference = alone(corpus, of_the_result(settings))
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
        for name in ("balance_loss", "z_loss", "router_entropy", "dropped"):
            if "moe" in theirs:
                assert mine["moe"][name] == pytest.approx(theirs["moe"][name], rel=1e-4), name
        if "expert_load" in theirs.get("moe", {}):
            loads = [torch.tensor(row["moe"]["expert_load"]) for row in (mine, theirs)]
            torch.testing.assert_close(*loads, rtol=0.05, atol=0.05)
    ours, others = one.evals[-1], other.evals[-1]
    assert ours["nats_per_token"] == pytest.approx(others["nats_per_token"], rel=1e-5)
    assert ours["standard_error"] == pytest.approx(others["standard_error"], rel=1e-4)
    assert ours["tokens"] == others["tokens"]
