"""The Megatron model is the Llama that its configuration describes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tiny_runs import VOCABULARY, built, tiny
from tst_study.superposition.method import NEXT_TOKEN


def test_a_position_sees_nothing_behind_itself(words: Path) -> None:
    with built(tiny(words)) as (model, _), torch.no_grad():
        ids = torch.randint(VOCABULARY, (1, 8), generator=torch.Generator().manual_seed(0))
        changed = ids.clone()
        changed[0, 5] = (ids[0, 5] + 1) % VOCABULARY
        before, after = model(NEXT_TOKEN.fold(ids)), model(NEXT_TOKEN.fold(changed))
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5], after[:, 5])


def test_initial_weights_depend_on_the_seed_and_spread_as_configured(words: Path) -> None:
    def weights(*overrides: str) -> dict[str, torch.Tensor]:
        with built(tiny(words, "model.hidden_size=64", *overrides)) as (model, _):
            return {name: p.detach().clone() for name, p in model.named_parameters()}

    one, again, other = weights(), weights(), weights("seed=1")
    assert all(torch.equal(one[name], again[name]) for name in one)
    matrices = [name for name in one if one[name].dim() == 2]
    assert not any(torch.equal(one[name], other[name]) for name in matrices)
    for name in matrices:
        into_the_residual = name.endswith(("linear_proj.weight", "linear_fc2.weight"))
        expected = 0.02 / 2.0 if into_the_residual else 0.02  # sqrt(2 · 2 layers)
        assert one[name].std().item() == pytest.approx(expected, rel=0.1)
    assert all((one[name] == 1.0).all() for name in one if "norm" in name)
