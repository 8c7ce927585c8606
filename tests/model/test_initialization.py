"""Initial weights are those of a seed, whatever else a run does."""

import pytest
import torch

from tests.tiny_runs import built, tiny


def test_initial_weights_depend_on_the_seed_and_spread_as_configured(words):
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
