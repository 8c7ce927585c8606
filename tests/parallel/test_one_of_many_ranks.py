"""One process stands for any of many ranks: groups without messages, tensors without memory."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.parallel.test_parallel_layouts import EXPERT, SEQUENCE
from tests.tiny_runs import tiny
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config
from tst_study.model.initialization import shards
from tst_study.model.model import empty_model
from tst_study.parallel import process_groups as process_groups_module
from tst_study.parallel.forward_backward import micro_batches
from tst_study.parallel.process_groups import process_groups
from tst_study.superposition import linear_loss
from tst_study.superposition.loss_kinds import LOSSES
from tst_study.superposition.steps import NEXT_TOKEN

META = torch.device("meta")


@contextmanager
def as_rank(rank: int, ranks: int, config: Config) -> Iterator[None]:
    """The model's device is the one without memory."""
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        with process_groups(config), pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "current_device", lambda: META)
            yield
    finally:
        dist.destroy_process_group()


def test_shards_of_the_real_mixture_add_up(tmp_path):
    """Tensor 2, expert 2, data 2: every number of the model is on some rank."""
    ranks = 4
    mixture = "model={preset='moe-10b-a1b'}"
    config = tiny(tmp_path, mixture, *SEQUENCE, *EXPERT, "numerics.dtype=bfloat16")
    pieces: dict[tuple[str, tuple[int, ...]], int] = {}
    whole: dict[str, int] = {}
    for rank in range(ranks):
        with as_rank(rank, ranks, config):
            for shard in shards(empty_model(config)):
                assert shard.data.device == META  # also the router's, which Megatron makes first
                pieces[shard.key, shard.global_offset] = math.prod(shard.local_shape)
                whole[shard.key] = math.prod(shard.global_shape)
    assert sum(pieces.values()) == 10_489_144_832
    assert sum(whole.values()) == 10_489_144_832


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("ranks", "layout", "dtype"), [(1, (), "float32"), (2, SEQUENCE, "bfloat16")]
)
def test_no_tensor_of_a_step_is_left_on_the_host(tmp_path, monkeypatch, ranks, layout, dtype, loss):
    """An operation of two devices raises."""
    monkeypatch.setattr(
        linear_loss, "_in_one_kernel", lambda: linear_loss.log_probabilities_and_softmax
    )
    settings = (*layout, f"superposition.loss={loss}", f"numerics.dtype={dtype}")
    config = tiny(tmp_path, *settings)
    with as_rank(0, ranks, config), FakeTensorMode():
        model = empty_model(config)
        model.compiled_loss = True
        for objective in (plan_phases(config).objective(0), NEXT_TOKEN):
            shape = 2, 2, 8 * objective.stride
            ids, labels = torch.zeros(*shape, dtype=torch.int64, device=META)
            counts = objective.count_targets(labels)
            ((bags, targets),) = micro_batches(ids, labels, objective, counts, 2)
            summand = model(bags, targets)
            summand.backward()
            assert summand.device == META
            assert {p.grad.device for p in model.parameters()} == {META}
        product = model.decoder.layers[1].mlp.linear_fc1
        product.weight = torch.nn.Parameter(torch.zeros_like(product.weight, device="cpu"))
        with pytest.raises(RuntimeError, match="device"):
            model(bags, targets)


def test_no_communicator_is_made_before_it_is_used(monkeypatch):
    """A device bound to the world would have NCCL split it at once for each of its groups."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(dist, "init_process_group", lambda **settings: asked.append(settings))
    monkeypatch.setattr(process_groups_module, "_meet", lambda *unused: {})
    device = torch.device("cuda", 0)
    for ranks in (2, 1):
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        process_groups_module._join(device, timedelta(seconds=1))
    assert [settings["backend"] for settings in asked] == ["nccl"] * 2
    # A rank that is alone has one communicator, and NCCL warns where it has to guess the device.
    assert [settings["device_id"] for settings in asked] == [None, device]
