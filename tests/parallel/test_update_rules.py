"""A step is torch's clipping and AdamW, with decay by parameter kind, or its Muon on every
projection by itself and AdamW on all else."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from tests.tiny_runs import MIXTURE, MUON, built, tiny
from tst_study.config.optimizer_kinds import OPTIMIZER_KINDS, OptimizerName
from tst_study.config.schema import Model, Parallel
from tst_study.model.initialization import EMBEDDINGS
from tst_study.model.model import SuperposedGPT
from tst_study.parallel.forward_backward import gradient_buffers
from tst_study.parallel.optimizer import ModelOptimizer
from tst_study.parallel.update_rules import RULES, STATES


@contextmanager
def optimized(words: Path, *overrides: str) -> Iterator[tuple[SuperposedGPT, ModelOptimizer]]:
    config = tiny(words, *overrides)
    with built(config) as (model, _):
        yield model, ModelOptimizer(gradient_buffers(model, Parallel()), config.optimizer)


def fill_gradients(optimizer: ModelOptimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer.zero_gradients()
    for parameter in optimizer.parameters:
        values = torch.randn(parameter.shape, generator=generator)
        (parameter * values).sum().backward()


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


@pytest.mark.parametrize(
    "settings",
    [
        ("optimizer.gradient_clip=1.0", "model.qk_norm=true"),
        ("optimizer.gradient_clip=0.05", "optimizer.decay_embeddings=true", *MIXTURE),
        (*MUON, "optimizer.momentum=0.9", "optimizer.gradient_clip=0.0"),
        (*MUON, "optimizer.decay_embeddings=true", "optimizer.gradient_clip=0.05", *MIXTURE),
    ],
    ids=str,
)
def test_steps_are_those_of_torch(words, monkeypatch, settings):
    """Norms never decay, matrices do, and embeddings by setting."""
    # Torch's Muon computes in bfloat16 everywhere, whose rounding differs between processors and
    # between one matrix and several side by side; here both compute as we do on processors.
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.float)
    config = tiny(words, *settings)
    model, asked, is_muon = config.model, config.optimizer, MUON[0] in settings
    kept = () if asked.decay_embeddings else EMBEDDINGS
    with optimized(words, *settings) as (live, optimizer):
        plain = {name: p.detach().clone() for name, p in live.named_parameters()}
        parts = {name: projections(name, p, model) if is_muon else [] for name, p in plain.items()}
        matrices = [part.contiguous() for name in parts for part in parts[name]]
        experts = 4 if model.experts else 1
        assert len(matrices) == (2 * (4 + 3 * experts) if is_muon else 0)
        groups: dict[bool, list[Tensor]] = {True: [], False: []}
        for name, p in plain.items():
            if not parts[name]:
                groups[p.dim() > 1 and name not in kept].append(p)
        decayed, rest = ({"params": groups[x], "weight_decay": 0.1 * x} for x in (True, False))
        pair = [group for group in (decayed, rest) if group["params"]]
        references: list[torch.optim.Optimizer] = [torch.optim.AdamW(pair, betas=(0.9, 0.95))]
        if is_muon:
            more = {"momentum": asked.momentum, "weight_decay": 0.1}
            references.append(torch.optim.Muon(matrices, **more, adjust_lr_fn="match_rms_adamw"))
        for seed, rate in enumerate((1e-3, 5e-3, 2e-3)):
            fill_gradients(optimizer, seed)
            for name, parameter in live.named_parameters():
                plain[name].grad = parameter.main_grad.clone()
            clip = asked.gradient_clip or torch.inf
            norm = torch.nn.utils.clip_grad_norm_(plain.values(), clip)
            gradients = (g for name, p in plain.items() if parts[name]
                         for g in projections(name, p.grad, model))  # fmt: skip
            for matrix, gradient in zip(matrices, gradients, strict=True):
                matrix.grad = gradient.contiguous()
            for reference in references:
                for group in reference.param_groups:
                    group["lr"] = rate
                reference.step()
            assert optimizer.step(rate).item() == pytest.approx(norm.item(), rel=1e-6)
        expected = iter(matrices)
        for name, parameter in live.named_parameters():
            for mine in projections(name, parameter, model) if parts[name] else [parameter]:
                theirs = next(expected) if parts[name] else plain[name]
                torch.testing.assert_close(mine.detach(), theirs, rtol=1e-5, atol=1e-7, msg=name)


def test_bfloat16_weights_follow_float32_main_parameters(words):
    with optimized(words, "numerics.dtype=bfloat16") as (model, optimizer):
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        assert {main.dtype for main in optimizer.main} == {torch.float32}
        assert {p.main_grad.dtype for p in optimizer.parameters} == {torch.float32}
        start = [main.clone() for main in optimizer.main]
        for _ in range(50):  # steps too small for bfloat16 add up in float32
            fill_gradients(optimizer, seed=0)
            optimizer.step(1e-5)
        moved = [
            (main - first).abs().mean() for main, first in zip(optimizer.main, start, strict=True)
        ]
        assert min(moved) > 3e-4
        for parameter, main in zip(optimizer.parameters, optimizer.main, strict=True):
            assert torch.equal(parameter.flatten(), main.bfloat16())


def test_every_optimizer_has_a_rule_and_every_rule_says_what_it_keeps(words):
    assert RULES.keys() == OPTIMIZER_KINDS.keys() == set(get_args(OptimizerName))
    used: set[type] = set()
    for kind in get_args(OptimizerName):
        with optimized(words, f"optimizer.kind={kind}") as (_, optimizer):
            used |= {type(optimizer._optimizer_of[main]) for main in optimizer.main}
    assert used == STATES.keys()
