"""What differs between versions of Megatron-Core is where `megatron_version.py` says it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.moe.router import TopKRouter

from tests.layouts import assert_close_tensors, gradients_on
from tests.step_gradients import standing_still
from tst_study.config import megatron_version
from tst_study.config.megatron_version import check_megatron_version
from tst_study.errors import UserError
from tst_study.model.experts import Router, RoutingLog

EXPERTS = (
    'model.experts={"count"=4, "per_token"=2, "feed_forward_size"=16, '
    '"balance_loss"=0.5, "router_z_loss"=0.1}'
)
SHARED_POSITIONS = ("execution.parallel.tensor=2", "execution.parallel.sequence_parallel=true")


@pytest.mark.parametrize(
    ("installed", "fits"),
    [
        ("0.15.3", False),
        ("0.16.0", False),
        ("0.16.1", True),
        ("0.18.2", True),
        ("0.19.2", True),
        ("0.19.0rc1", True),
        ("0.20.0", False),
    ],
)
def test_a_version_that_was_never_tried_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, installed: str, fits: bool
) -> None:
    monkeypatch.setattr(megatron_version, "version", lambda name: installed)
    megatron_version.megatron_version.cache_clear()
    try:
        if fits:
            check_megatron_version()
            return
        with pytest.raises(UserError) as raised:
            check_megatron_version()
    finally:
        megatron_version.megatron_version.cache_clear()
    assert str(raised.value) == (
        f"megatron-core {installed}: this package works with >=0.16.1,<0.20; "
        "pip install 'megatron-core>=0.16.1,<0.20'"
    )


def stock_losses(patch: pytest.MonkeyPatch) -> None:
    """Megatron's auxiliary losses in the place of ours: sums over the positions of a micro-batch,
    scaled to means over the step."""
    begin_step = RoutingLog.begin_step

    def scaled(self: RoutingLog, positions: int, device: torch.device, **named: Any) -> None:
        begin_step(self, positions, device, **named)
        MoEAuxLossAutoScaler.set_loss_scale(torch.full((1,), 1.0 / positions, device=device))

    patch.setattr(RoutingLog, "begin_step", scaled)
    for name in ("attach_and_log_load_balancing_loss", "apply_z_loss"):
        patch.setattr(Router, name, getattr(TopKRouter, name))


def test_auxiliary_losses_are_megatrons_own_where_those_are_right(
    words: Path, tmp_path: Path
) -> None:
    config = standing_still(words, EXPERTS, *SHARED_POSITIONS, "model.initial_deviation=0.2")
    ours = gradients_on(2, config, tmp_path / "ours")
    with pytest.MonkeyPatch.context() as patch:
        stock_losses(patch)
        theirs = gradients_on(2, config, tmp_path / "theirs")
    right = megatron_version.megatron_version() >= (0, 19)
    for mine, other in zip(ours, theirs, strict=True):
        if right:
            assert_close_tensors(mine, other, 1e-5)
        else:
            with pytest.raises(AssertionError):
                assert_close_tensors(mine, other, 1e-2)
