"""Experts' outputs are added in one order; what is logged of routing is what happened."""

from itertools import product

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.tiny_runs import MIXTURE, built, run, tiny
from tst_study.config import megatron_version
from tst_study.config.megatron_version import check_megatron_version
from tst_study.errors import UserError
from tst_study.model.experts import RoutingLog
from tst_study.model.kernels import Combined, Copied, sum_of_copies


def test_copies_of_a_position_are_added_in_the_order_of_their_experts():
    """On processors to the bit what additions one after another give, in both directions."""
    positions, per_token, width = 50, 6, 8
    of_copy = torch.randperm(positions * per_token) % positions
    copies_of = torch.argsort(of_copy, stable=True).view(positions, per_token)
    rows = torch.randn(positions, width, requires_grad=True)
    copies = Copied.apply(rows, of_copy, copies_of)
    assert torch.equal(copies, rows[of_copy])
    scales = torch.randn(len(of_copy), width)
    combined = Combined.apply(copies * scales, of_copy, copies_of, sum_of_copies)
    (combined**2).sum().backward()
    expected = torch.zeros(positions, width)
    for place, row in enumerate(of_copy):
        expected[row] += (copies * scales)[place]
    assert torch.equal(combined, expected)
    gradient = torch.zeros(positions, width)
    for place, row in enumerate(of_copy):
        gradient[row] += 2 * expected[row] * scales[place]
    assert torch.equal(rows.grad, gradient)


def test_nothing_of_a_layer_with_experts_adds_by_index(words):
    """Such additions have no order on a GPU."""

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            if operation._schema.name in ("aten::scatter_add", "aten::scatter_add_"):
                names.append(operation._schema.name)
            if operation._schema.name in ("aten::index_add", "aten::index_add_"):
                names.extend(["aten::index_add"] * (args[0].dim() > 1))  # one index each else
            return operation(*args, **(kwargs or {}))

    names: list[str] = []
    with built(tiny(words, *MIXTURE)) as (model, _):
        layer = model.decoder.layers[0].mlp
        hidden = torch.randn(8, 2, 16, requires_grad=True)
        with Noted():
            layer(hidden).sum().backward()
    assert names == []


def test_loads_entropy_and_losses_are_means_over_positions(words):
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(6, 4, generator=generator) for _ in range(2)]
    choices = [torch.zeros(6, 4).bool() for _ in range(2)]
    choices[0][:, 0] = choices[0][:, 1] = choices[1][:, 0] = True
    log = RoutingLog(layers=2, experts=4)
    log.begin_step(12, torch.device("cpu"), recording=True)
    for layer, (chosen, scores) in product((1, 2), zip(choices, logits, strict=True)):
        log.add(layer, chosen.sum(dim=0), scores)
        log.add_balance(layer, torch.tensor(2.0), len(scores))
    with built(tiny(words)):  # for the sum over ranks
        summary = log.summary()
    both = torch.cat(logits).double()
    probabilities = both.softmax(dim=1)
    assert summary["router_entropy"] == pytest.approx(
        float(-(probabilities * probabilities.log()).sum(dim=1).mean()), rel=1e-5
    )
    assert summary["balance_loss"] == pytest.approx(2.0)
    assert summary["load"]["max"] == pytest.approx([12 / 4.5] * 2, abs=1e-4)
    assert summary["load"]["min"] == [0.0, 0.0]


def test_every_row_of_a_mixture_tells_of_its_routing_and_changes_no_bit(words, tmp_path):
    record = run(words, tmp_path / "often", *MIXTURE, "execution.log_every=3")
    seldom = run(words, tmp_path / "seldom", *MIXTURE, "execution.log_every=20")
    assert record.metrics[-1]["loss"] == seldom.metrics[-1]["loss"]
    assert record.evals[-1]["nats_per_token"] == seldom.evals[-1]["nats_per_token"]
    for row in record.metrics:
        health = row["moe"]
        assert health["balance_loss"] >= 0.99  # its least value is 1, at even loads
        assert 0.0 < health["router_entropy"] <= 1.3863  # log 4
        assert len(health["load"]["max"]) == len(health["load"]["min"]) == 2


def test_a_version_that_was_never_tried_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(megatron_version, "version", lambda name: "0.20.0")
    megatron_version.megatron_version.cache_clear()
    with pytest.raises(
        UserError, match=r"^megatron-core 0\.20\.0: .*'megatron-core>=0.16.1,<0.20'"
    ):
        check_megatron_version()
    megatron_version.megatron_version.cache_clear()
