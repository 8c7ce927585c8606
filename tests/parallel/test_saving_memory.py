"""Saving and resuming hold hardly more memory than training, and gather nothing."""

import gc
from pathlib import Path

import pytest

from benchmarks.steps import PackageSteps, step_config
from tests.allocated import AllocatedTensors
from tests.distributed import run_ranks
from tests.tiny_runs import assert_same_tensors, tensors_of
from tst_study.checkpoints.checkpoint import Checkpoints
from tst_study.checkpoints.places import checkpoint_place
from tst_study.config.presets import dense
from tst_study.config.schema import Config, Parallel
from tst_study.parallel.process_groups import process_groups

MODEL = dense(4, 128, 4, 2, 384, vocabulary_size=2048)
EXPERTS = {"experts": {"count": 4, "per_token": 2, "feed_forward_size": 128}, "qk_norm": True}


def peaks(config: Config, folder: Path) -> list[int]:
    """Bytes of tensors alive on this rank at most: in a step, a save, a load; the last two with
    what training holds between steps."""
    allocated, found = AllocatedTensors(), []
    with process_groups(config) as ranks, allocated:
        steps = PackageSteps(config, ranks.device)
        step = steps.step()
        step()  # the optimizer's state is made here
        checkpoints = Checkpoints(folder, keep=2)
        state = steps.model, steps.optimizer
        for number, work in enumerate(
            (step, lambda: checkpoints.save(1, *state, {}), lambda: checkpoints.load(1, *state))
        ):
            gc.collect()
            allocated.peak = allocated.now
            work()
            found.append(allocated.peak)
            assert number == 0 or allocated.now <= found[0]
        checkpoints.save(2, *state, {})
    return found


@pytest.mark.parametrize(
    ("model", "optimizer", "dtype"),  # each pair of two of them
    [
        ({}, "distributed", "float32"),
        ({}, "replicated", "bfloat16"),
        (EXPERTS, "distributed", "bfloat16"),
        (EXPERTS, "replicated", "float32"),
    ],
)
def test_saving_and_loading_take_hardly_more_than_training(tmp_path, model, dtype, optimizer):
    config = step_config(MODEL | model, 8, 64, dtype=dtype)
    config = config.executed(parallel=Parallel(optimizer=optimizer))
    for trained, saved, loaded in run_ranks(4, peaks, config, tmp_path):
        assert max(saved, loaded) <= 1.15 * trained
    # What was loaded is what was saved.
    assert_same_tensors(*(tensors_of(checkpoint_place(tmp_path, step)) for step in (1, 2)))
