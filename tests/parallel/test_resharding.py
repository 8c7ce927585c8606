"""A run continues under another layout than the one it stopped under, optimizer state and all."""

from functools import cache
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.damage import flip
from tests.distributed import run_ranks
from tests.layouts import assert_close_tensors
from tests.parallel.test_parallel_layouts import (
    DISTRIBUTED,
    EXPERT,
    SEQUENCE,
    TENSOR,
    assert_same_run_closely,
)
from tests.tiny_runs import (
    MIXTURE,
    checkpoint_folders,
    last_tensors,
    run,
    stop_this_process,
    tiny,
    when_step_begins,
)
from tst_study.config.schema import Config
from tst_study.record import reader as run_record
from tst_study.train import train

Layout = tuple[int, tuple[str, ...]]

MOVES: dict[str, tuple[tuple[str, ...], Layout, Layout]] = {
    "TP2 to TP1": ((), (2, TENSOR), (1, ())),
    "DP2 to TP2 DP2": ((), (2, ()), (4, TENSOR)),
    "DP2 distributed to DP4 replicated": ((), (2, DISTRIBUTED), (4, ())),
    "DP1 to DP2 distributed": ((), (1, ()), (2, DISTRIBUTED)),
    "DP2 tied to TP2 SP": (("model.tied_embeddings=true",), (2, ()), (2, SEQUENCE)),
    "EP2 distributed to EP1": (MIXTURE, (2, (*EXPERT, *DISTRIBUTED)), (1, ())),
    "TP2 SP EP2 on 4 to EP4": (
        MIXTURE,
        (4, (*SEQUENCE, *EXPERT)),
        (4, ("execution.parallel.expert=4",)),
    ),
}


@pytest.fixture(scope="module")
def unbroken(words: Path, tmp_path_factory: pytest.TempPathFactory):
    @cache
    def trained(model: tuple[str, ...]) -> Path:
        folder = tmp_path_factory.mktemp("unbroken")
        run(words, folder, *model)
        return folder

    return trained


# Every other move before the switch, the rest behind it.
@pytest.mark.parametrize(
    ("stopped_at", "model", "first", "then"),
    [((6, 14)[number % 2], *move) for number, move in enumerate(MOVES.values())],
    ids=MOVES.keys(),
)
def test_a_run_goes_on_under_another_layout(
    words, tmp_path, unbroken, stopped_at, model, first, then
):
    (ranks, layout), (other_ranks, other_layout) = first, then
    states = run_ranks(ranks, stopped, tiny(words, *model, *layout), tmp_path, stopped_at)
    assert states == ["preempted"] * ranks
    config = tiny(words, *model, *other_layout)
    assert run_ranks(other_ranks, train, config, tmp_path) == ["done"] * other_ranks
    record, reference = run_record.read(tmp_path), unbroken(model)
    assert [segment["resumed_from"] for segment in record.segments] == [None, stopped_at + 1]
    assert_same_run_closely(record, run_record.read(reference))
    assert_close_tensors(last_tensors(tmp_path), last_tensors(reference), 1e-4)


def test_damage_that_one_rank_sees_sends_all_of_them_to_the_checkpoint_before(words, tmp_path):
    config = tiny(words, *TENSOR, "execution.checkpoint_every=5")
    run_ranks(2, train, config, tmp_path)
    newest = checkpoint_folders(tmp_path)[-1]
    flip(newest / "__1_0.distcp")
    assert run_ranks(2, train, config, tmp_path) == ["done"] * 2
    assert run_record.read(tmp_path).segments[-1]["resumed_from"] == 15


def test_ranks_that_share_an_optimizer_write_equal_parts_of_a_checkpoint(words, tmp_path):
    config = tiny(words, "model.hidden_size=64", "numerics.dtype=bfloat16", *DISTRIBUTED)
    run_ranks(2, train, config, tmp_path)
    (place,) = checkpoint_folders(tmp_path)
    sizes = [sum(file.stat().st_size for file in place.glob(f"__{rank}_*")) for rank in (0, 1)]
    assert max(sizes) < 1.1 * min(sizes)


def stopped(config: Config, folder: Path, step: int) -> str:
    """Train up to a signal, to the last rank alone, that comes while step `step` is read."""
    if dist.get_rank() == dist.get_world_size() - 1:
        when_step_begins(step, stop_this_process)
    return train(config, folder, progress=False)
