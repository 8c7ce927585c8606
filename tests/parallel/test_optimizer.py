"""One optimizer step is clipping and AdamW as torch does them, with decay by parameter kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.tiny_runs import built, tiny
from tst_study.config.schema import Parallel
from tst_study.model.initialization import EMBEDDINGS
from tst_study.model.model import SuperposedGPT
from tst_study.parallel.gradient_buffers import GradientBuffers
from tst_study.parallel.optimizer import ModelOptimizer


@contextmanager
def optimized(words: Path, *overrides: str) -> Iterator[tuple[SuperposedGPT, ModelOptimizer]]:
    config = tiny(words, *overrides)
    with built(config) as (model, _):
        yield model, ModelOptimizer(GradientBuffers(model, Parallel()), config.optimizer)


def fill_gradients(optimizer: ModelOptimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer.zero_gradients()
    for parameter in optimizer.parameters:
        values = torch.randn(parameter.shape, generator=generator)
        (parameter * values).sum().backward()


@pytest.mark.parametrize(
    ("clip", "decay_embeddings"), [(1.0, "false"), (0.05, "true"), (0.0, "false"), (0.0, "true")]
)
def test_steps_are_those_of_torchs_adamw_and_clipping(
    words: Path, clip: float, decay_embeddings: str
) -> None:
    """Norms never decay, matrices do, and embeddings by setting."""
    rates = [1e-3, 5e-3, 2e-3, 1e-3]
    settings = (f"optimizer.decay_embeddings={decay_embeddings}", "model.qk_norm=true")
    with optimized(words, *settings, f"optimizer.gradient_clip={clip}") as (model, optimizer):
        plain = {name: p.detach().clone() for name, p in model.named_parameters()}
        without = () if decay_embeddings == "true" else EMBEDDINGS
        kept = [p for n, p in plain.items() if p.dim() < 2 or n in without]
        decayed = [p for n, p in plain.items() if p.dim() == 2 and n not in without]
        reference = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": kept, "weight_decay": 0.0}],
            betas=(0.9, 0.95),
            eps=1e-8,
            foreach=False,
        )
        for seed, rate in enumerate(rates):
            fill_gradients(optimizer, seed)
            for name, parameter in model.named_parameters():
                plain[name].grad = parameter.main_grad.clone()
            norm = torch.nn.utils.clip_grad_norm_(plain.values(), clip or torch.inf)
            for group in reference.param_groups:
                group["lr"] = rate
            reference.step()
            assert optimizer.step(rate).item() == pytest.approx(norm.item(), rel=1e-6)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), plain[name], rtol=1e-5, atol=1e-7)


def test_bfloat16_weights_follow_float32_main_parameters(words: Path) -> None:
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
