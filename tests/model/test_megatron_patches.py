"""Each place where Megatron-Core is patched still needs it: without the patch, what it prevents."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

from tests.distributed import run_ranks
from tests.tiny_runs import MIXTURE, built, tiny
from tst_study.config.megatron_version import megatron_version
from tst_study.config.schema import Config
from tst_study.model import megatron_patches, model
from tst_study.parallel import process_groups
from tst_study.train import train

EXPERTS = (*MIXTURE, "execution.parallel.expert=2")
DISPATCHER = MoEAlltoAllTokenDispatcher
NEEDED: dict[tuple[Any, str], tuple[int, tuple[str, ...], tuple[int, ...]]] = {
    (torch.cuda, "current_device"): (1, (), (0, 16)),
    (torch.cuda, "current_stream"): (2, (), (0, 19)),
    (DISPATCHER, "cuda_dtoh_stream"): (2, EXPERTS, (0, 16)),
    (DISPATCHER, "_maybe_dtoh_and_synchronize"): (2, EXPERTS, (0, 16)),
}
"""For each patch: ranks and settings of a run that needs it, and the first version that does."""


def no_device(*unused: Any, **also_unused: Any) -> Any:
    raise AssertionError("asked for a device that a run on processors has no business with")


def trained_without(patch: tuple[Any, str] | None, config: Config, folder: Path) -> str:
    if patch is not None:
        del megatron_patches.ON_PROCESSORS[patch]
    return train(config, folder, progress=False)


@pytest.mark.parametrize("patch", NEEDED, ids=lambda patch: patch[1])
def test_a_run_on_processors_fails_without_each_patch(words, tmp_path, patch):
    ranks, settings, first_version = NEEDED[patch]
    if megatron_version() < first_version:
        pytest.skip(f"needed from {first_version} on")
    config = tiny(words, *settings)
    assert run_ranks(ranks, trained_without, None, config, tmp_path / "with") == ["done"] * ranks
    with pytest.raises(torch.multiprocessing.ProcessRaisedException):
        run_ranks(ranks, trained_without, patch, config, tmp_path / "without")


def test_torchs_optimizers_still_ask_for_an_accelerator(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", no_device)
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    with pytest.raises(AssertionError, match="no business"):
        torch.optim.AdamW([weight], fused=True).step()


def test_all_patches_for_processors_are_among_them():
    accelerator = {(torch.accelerator, "current_accelerator")}
    assert megatron_patches.ON_PROCESSORS.keys() == NEEDED.keys() | accelerator


def test_megatron_still_makes_many_groups_of_the_same_ranks(words):
    def groups(one_group: Any) -> int:
        process_groups.one_group_for_the_same_ranks = one_group
        with process_groups.process_groups(tiny(words)):
            return len(dist.distributed_c10d._world.pg_map)

    assert run_ranks(2, groups, megatron_patches.one_group_for_the_same_ranks)[0] < 5
    assert run_ranks(2, groups, nullcontext)[0] > 10


def test_megatron_still_holds_on_to_groups(words):
    with process_groups.process_groups(tiny(words)):
        parallel_state.destroy_model_parallel()
        assert parallel_state._INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP is not None


@pytest.mark.skipif(megatron_version() >= (0, 19), reason="0.19 marks them in any case")
def test_megatron_still_marks_no_weight_that_it_did_not_draw(words, monkeypatch):
    monkeypatch.setattr(model, "mark_split_weights", lambda model: None)
    with built(tiny(words)) as (made, _):
        assert not any(getattr(p, "tensor_model_parallel", False) for p in made.parameters())


@pytest.mark.skipif(megatron_version() >= (0, 19), reason="0.19 imports the name in any case")
def test_the_router_still_names_a_function_that_is_not_there(words, monkeypatch):
    monkeypatch.delattr(moe_utils, "te_general_gemm")
    with built(tiny(words, *MIXTURE)) as (made, _), pytest.raises(NameError, match="general_gemm"):
        made.decoder.layers[0].mlp(torch.ones(8, 2, 16))
