"""Muon is torch's on every projection by itself, and AdamW on all else; its runs are as exact."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from tests.tiny_runs import (
    MIXTURE,
    MUON,
    built,
    tiny,
)
from tst_study.config.optimizer_kinds import OPTIMIZER_KINDS, OptimizerName
from tst_study.config.schema import Model, Parallel
from tst_study.parallel.gradient_buffers import GradientBuffers
from tst_study.parallel.optimizer import ModelOptimizer
from tst_study.parallel.update_rules import RULES, STATES


def projections(name: str, tensor: Tensor, model: Model) -> list[Tensor]:
    """The matrices of a hidden tensor, head by head and half by half; none of any other."""
    if "linear_qkv" in name:
        size, groups = model.head_size, model.key_value_heads
        heads = list(tensor.split(size))
        per_group = model.attention_heads // groups
        group = [heads[i : i + per_group + 2] for i in range(0, len(heads), per_group + 2)]
        queries = torch.cat([head for heads in group for head in heads[:-2]])
        return [queries, *(torch.cat([heads[at] for heads in group]) for at in (-2, -1))]
    if "linear_fc1" in name:
        experts = tensor.unbind() if tensor.dim() == 3 else [tensor]
        return [half for expert in experts for half in expert.chunk(2)]
    if "linear_fc2" in name or "linear_proj" in name:
        return list(tensor.unbind()) if tensor.dim() == 3 else [tensor]
    return []


@pytest.mark.parametrize("model", [(), MIXTURE], ids=["dense", "mixture"])
def test_steps_are_torchs_on_each_projection_and_adamws_on_all_else(
    words: Path, monkeypatch: pytest.MonkeyPatch, model: tuple[str, ...]
) -> None:
    # Torch computes in bfloat16 everywhere, whose rounding differs between processors and between
    # one matrix and several side by side; here both compute as we do on processors.
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.float)
    settings = (*MUON, *model, "optimizer.momentum=0.9", "optimizer.gradient_clip=0.0")
    config = tiny(words, *settings)
    with built(config) as (live, _):
        optimizer = ModelOptimizer(GradientBuffers(live, Parallel()), config.optimizer)
        start = {name: p.detach().clone() for name, p in live.named_parameters()}
        matrices = {name: projections(name, p, config.model) for name, p in start.items()}
        assert sum(map(len, matrices.values())) == 2 * (4 + (12 if model else 3))
        hidden = torch.optim.Muon(
            [matrix for several in matrices.values() for matrix in several],
            momentum=0.9,
            weight_decay=0.1,
            adjust_lr_fn="match_rms_adamw",
        )
        others = {name: p for name, p in start.items() if not matrices[name]}
        assert {name for name in others if "norm" not in name and "router" not in name} == {
            "embedding.word_embeddings.weight",
            "output_layer.weight",
        }
        decays = [p for name, p in others.items() if "router" in name]
        rest = [p for name, p in others.items() if "router" not in name]
        groups = [{"params": decays, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        adamw = torch.optim.AdamW([g for g in groups if g["params"]], betas=(0.9, 0.95))
        generator = torch.Generator().manual_seed(0)
        for rate in (1e-2, 3e-2, 1e-2):
            optimizer.zero_gradients()
            for name, parameter in live.named_parameters():
                gradient = torch.randn(parameter.shape, generator=generator)
                (parameter * gradient).sum().backward()
                start[name].grad = gradient
                for matrix, its in zip(
                    matrices[name], projections(name, gradient, config.model), strict=True
                ):
                    matrix.grad = its.contiguous()
            for reference in (hidden, adamw):
                for group in reference.param_groups:
                    group["lr"] = rate
                reference.step()
            optimizer.step(rate)
        for name, parameter in live.named_parameters():
            expected = matrices[name] or [start[name]]
            found = projections(name, parameter, config.model) or [parameter]
            for mine, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(mine.detach(), theirs, rtol=1e-5, atol=1e-7, msg=name)


def test_every_optimizer_has_a_rule_and_every_rule_says_what_it_keeps(words: Path) -> None:
    assert RULES.keys() == OPTIMIZER_KINDS.keys() == set(get_args(OptimizerName))
    used: set[type] = set()
    for kind in get_args(OptimizerName):
        config = tiny(words, f"optimizer.kind={kind}")
        with built(config) as (model, _):
            optimizer = ModelOptimizer(GradientBuffers(model, Parallel()), config.optimizer)
            used |= {type(optimizer._optimizer_of[main]) for main in optimizer.main}
    assert used == STATES.keys()
