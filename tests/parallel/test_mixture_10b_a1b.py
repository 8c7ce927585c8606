"""The 10B-A1B model in parallel: its shards add up, and its twin trains, stops and moves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace, nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.distributed import run_ranks
from tests.layouts import assert_close_tensors
from tests.parallel.test_parallel_layouts import assert_same_run_closely
from tests.parallel.test_resharding import stopped
from tests.tiny_runs import last_tensors, run, tiny
from tst_study.config.schema import Config
from tst_study.model.model import empty_model
from tst_study.parallel import process_groups as process_groups_module
from tst_study.parallel.process_groups import process_groups
from tst_study.record import reader as run_record
from tst_study.train import train

LAYOUT = (
    "execution.parallel.tensor=2",
    "execution.parallel.sequence_parallel=true",
    "execution.parallel.expert=2",
)
TWIN = (
    "model={preset='moe-10b-a1b-twin', vocabulary_size=64}",
    "superposition={bag_size=16, steps=10}",
    "optimizer.learning_rate=1e-3",  # a larger one lets rounding change choices of experts
)


@contextmanager
def as_rank(
    rank: int, ranks: int, config: Config, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """This process stands for one of many: groups without messages, tensors without memory."""
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    meta = torch.device("meta")
    try:
        with process_groups(config), monkeypatch.context() as patch, meta:
            patch.setattr(torch.cuda, "current_device", lambda: meta)
            yield
    finally:
        dist.destroy_process_group()


def shards(config: Config) -> Iterator[ShardedTensor]:
    state = empty_model(config).sharded_state_dict()
    dict_list_map_inplace(lambda x: x.build() if isinstance(x, ShardedTensorFactory) else x, state)
    return (x for x in nested_values(state) if isinstance(x, ShardedTensor))


def test_shards_of_the_real_model_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor 2, expert 2, pipeline 4, data 4: every number of the model is on some rank."""
    ranks = 16
    pipeline = ("execution.parallel.pipeline=4", "model={preset='moe-10b-a1b'}")
    config = tiny(tmp_path, *pipeline, *LAYOUT, "numerics.dtype=bfloat16")
    pieces: dict[tuple[str, tuple[int, ...]], int] = {}
    whole: dict[str, int] = {}
    for rank in range(ranks):
        with as_rank(rank, ranks, config, monkeypatch):
            for shard in shards(config):
                pieces[shard.key, shard.global_offset] = math.prod(shard.local_shape)
                whole[shard.key] = math.prod(shard.global_shape)
    assert sum(pieces.values()) == 10_489_144_832
    assert sum(whole.values()) == 10_489_144_832


def test_the_twin_moves_to_another_layout_on_four_processes(words: Path, tmp_path: Path) -> None:
    """In its last superposed step."""
    first, folder = tiny(words, *TWIN, *LAYOUT), tmp_path / "moved"
    assert run_ranks(4, stopped, first, folder, 9, timeout=120.0) == ["preempted"] * 4
    then = tiny(words, *TWIN, "execution.parallel.expert=4")
    assert run_ranks(4, train, then, folder, timeout=120.0) == ["done"] * 4
    record, unbroken = run_record.read(folder), run(words, tmp_path / "unbroken", *TWIN)
    assert [segment["resumed_from"] for segment in record.segments] == [None, 10]
    assert_same_run_closely(record, unbroken)
    assert_close_tensors(last_tensors(folder), last_tensors(unbroken.folder), 1e-3)


def test_no_communicator_is_made_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device bound to the world would have NCCL split it at once for each of its groups."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(dist, "init_process_group", lambda **settings: asked.append(settings))
    process_groups_module._join(torch.device("cuda", 0), timedelta(seconds=1))
    (settings,) = asked
    assert settings["backend"] == "nccl"
    assert settings.get("device_id") is None
