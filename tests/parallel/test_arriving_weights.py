"""Weights that arrive during the forward pass have arrived where they are read, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.distributed_c10d import _CoalescingManager

from tests.distributed import run_ranks
from tests.tiny_runs import last_tensors, tiny
from tst_study.config.schema import Config
from tst_study.model.layers import Layer
from tst_study.model.model import SuperposedGPT
from tst_study.parallel import gradient_buffers
from tst_study.parallel.gradient_buffers import GradientBuffers
from tst_study.train import train

OVERLAPPED = (
    'execution.parallel.optimizer="distributed"',
    "execution.parallel.overlap_gradients=true",
    "execution.micro_batch=1",
)
WEIGHTS = "execution.parallel.overlap_weights=true"
REINITIALIZED = ("superposition.reinitialize_at_switch=true", "execution.checkpoint_every=5")


def trained_in_small_buckets(config: Config, folder: Path) -> dict[str, int]:
    """Train; how many buckets were still on their way, at most, when each part began.

    Fails where a part reads weights that have not arrived.
    """
    buffers: list[GradientBuffers] = []
    on_their_way: dict[str, int] = {}

    def looked_at(read: Any, name: str, parameters: Any) -> Any:
        def wrapped(self: torch.nn.Module, *inputs: Any, **named: Any) -> Any:
            groups = buffers[0].bucket_groups
            late = [group for group in groups if group.param_gather_handle is not None]
            part = f"{name} {getattr(self, 'layer_number', '')}".strip()
            on_their_way[part] = max(on_their_way.get(part, 0), len(late))
            missing = {one for group in late for one in group.params}
            assert not missing & set(parameters(self)), part
            # Gloo's coalesced gathers, several at a time, end about one run in twenty.
            assert not any(isinstance(one.param_gather_handle, _CoalescingManager) for one in late)
            return read(self, *inputs, **named)

        return wrapped

    def head(model: SuperposedGPT) -> list[torch.Tensor]:
        return [*model.output_layer.parameters(), *model.decoder.final_layernorm.parameters()]

    make = GradientBuffers.__init__

    def kept(self: GradientBuffers, *inputs: Any) -> None:
        make(self, *inputs)
        buffers.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient_buffers, "bucket_weights", lambda *unused: 2_000)
        patch.setattr(GradientBuffers, "__init__", kept)
        for owner, method, name, parameters in (
            (SuperposedGPT, "embed", "embedding", lambda model: model.embedding.parameters()),
            (Layer, "forward", "layer", lambda layer: layer.parameters()),
            (SuperposedGPT, "predict", "head", head),
        ):
            patch.setattr(owner, method, looked_at(getattr(owner, method), name, parameters))
        assert train(config, folder, progress=False) == "done"
    return on_their_way


def test_each_part_waits_for_its_own_weights_alone(words: Path, tmp_path: Path) -> None:
    runs = {
        name: run_ranks(
            2,
            trained_in_small_buckets,
            tiny(words, *OVERLAPPED, *REINITIALIZED, *more),
            tmp_path / name,
            timeout=60.0,
        )
        for name, more in (("beside", (WEIGHTS,)), ("before", ()))
    }
    for rank in runs["beside"]:
        assert rank["embedding"] > rank["layer 1"] > rank["layer 2"] == rank["head"] == 0
    assert not any(number for rank in runs["before"] for number in rank.values())
    beside, before = (last_tensors(tmp_path / name) for name in runs)
    assert beside.keys() == before.keys()
    assert all(torch.equal(beside[name], before[name]) for name in beside)
