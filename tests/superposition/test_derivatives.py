"""Second derivatives (sharpness, influence, gradient penalties) are those of the plain losses, or
they are refused; they are never silently others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.utils.checkpoint import checkpoint

from tests.superposition.naive import bag_set_loop, multi_hot_loop
from tst_study.superposition import Superposition, bag_embedding, bag_loss
from tst_study.superposition.loss_kinds import LOSSES, MultiHot

BATCH, POSITIONS, WIDTH, WORDS, BAG = 2, 4, 5, 11, 3


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WORDS)).double()


def hessian_vector_product(loss: Tensor, weights: list[Tensor]) -> list[Tensor]:
    first = torch.autograd.grad(loss, weights, create_graph=True)
    along = [torch.linspace(0.5, 1.5, w.numel(), dtype=w.dtype).view_as(w) for w in weights]
    product = sum((g * v).sum() for g, v in zip(first, along, strict=True))
    return list(torch.autograd.grad(product, weights, materialize_grads=True))


def naive(kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    if kind == "mce":
        return lambda logits, labels: multi_hot_loop(logits, labels, (1.0,) * BAG)
    return lambda logits, labels: bag_set_loop(logits, labels, BAG, kind)


@pytest.mark.parametrize("kind", LOSSES)
def test_every_loss_of_bags_has_the_second_derivatives_of_its_definition(kind):
    net, hidden = model(), torch.randn(BATCH, POSITIONS, WIDTH, dtype=torch.float64)
    labels = torch.randint(WORDS, (BATCH, POSITIONS * BAG))
    labels[0, 4] = -100
    ours = bag_loss(net(hidden), labels, BAG, kind=kind)
    weights = list(net.parameters())
    found = hessian_vector_product(ours, weights)
    expected = hessian_vector_product(naive(kind)(net(hidden), labels), weights)
    assert any(each.abs().max() > 1e-3 for each in expected)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_bags_of_one_token_have_the_second_derivatives_of_cross_entropy(smoothing):
    net, hidden = model(), torch.randn(BATCH, POSITIONS, WIDTH, dtype=torch.float64)
    labels, weights = torch.randint(WORDS, (BATCH, POSITIONS)), list(net.parameters())
    ours = bag_loss(net(hidden), labels, 1, kind=MultiHot(smoothing))
    plain = F.cross_entropy(net(hidden).flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    first, also = (torch.autograd.grad(x, weights, create_graph=True) for x in (ours, plain))
    assert smoothing or all(map(torch.equal, first, also))
    found, expected = (hessian_vector_product(loss, weights) for loss in (ours, plain))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_superposed_step_has_second_derivatives_of_its_embedding(dtype):
    """Torch's own fused sum has none."""
    table = torch.randn(WORDS, WIDTH, dtype=dtype).requires_grad_()
    bags = torch.randint(WORDS, (BATCH, POSITIONS, BAG))
    wide = torch.promote_types(dtype, torch.float32)
    products = [
        hessian_vector_product((latent.tanh() ** 2).sum(), [table])
        for latent in (bag_embedding(table, bags), table[bags].mean(2, dtype=wide).to(dtype))
    ]
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(*products, **tolerance)


def test_a_bag_s_gradient_is_the_same_under_checkpointing_and_twice():
    table = torch.randn(WORDS, WIDTH).requires_grad_()
    bags = torch.randint(WORDS, (BATCH, POSITIONS, BAG))
    latent = bag_embedding(table, bags).tanh()
    again = checkpoint(lambda: bag_embedding(table, bags).tanh(), use_reentrant=False)
    first, second, third = (
        torch.autograd.grad(out.sum(), table, retain_graph=True)[0]
        for out in (latent, latent, again)
    )
    assert torch.equal(first, second)
    assert torch.equal(first, third)


def test_one_pass_over_head_and_loss_refuses_a_second_derivative():
    tst, head = Superposition(BAG, 1.0, 2), nn.Linear(WIDTH, WORDS, bias=False)
    hidden = torch.randn(BATCH, POSITIONS, WIDTH, requires_grad=True)
    labels = torch.randint(WORDS, (BATCH, POSITIONS * BAG))
    with pytest.raises(RuntimeError, match="linear_loss has no second derivative: use loss"):
        torch.autograd.grad(tst.linear_loss(hidden, head, labels), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="linear_loss cannot be used within"):
        grad(lambda h: tst.linear_loss(h, head, labels))(hidden)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("bag_size", [1, BAG])
def test_the_transforms_of_torch_func_compute_what_autograd_does(kind, bag_size):
    tst = Superposition(bag_size, 1.0, 2, loss_kind=kind, positions="any")
    table, head = nn.Embedding(WORDS, WIDTH).double(), model()
    tokens = torch.randint(WORDS, (BATCH, POSITIONS * bag_size + 1))

    def loss(weights: dict[str, Tensor], tokens: Tensor = tokens) -> Tensor:
        hidden = functional_call(Embedding(tst, table), weights, (tokens[:, :-1],))
        return tst.loss(head(hidden), tokens[:, 1:], 0)

    weights = {"table.weight": table.weight.detach()}
    by_func = grad(loss)(weights)["table.weight"]
    (plain,) = torch.autograd.grad(loss({"table.weight": table.weight}), table.weight)
    torch.testing.assert_close(by_func, plain)
    along = torch.ones_like(plain)
    _, slope = jvp(lambda w: loss({"table.weight": w}), (table.weight.detach(),), (along,))
    torch.testing.assert_close(slope, (plain * along).sum())
    each = vmap(lambda row: loss(weights, row[None]))(tokens)
    alone = torch.stack([loss(weights, row[None]) for row in tokens])
    torch.testing.assert_close(each, alone)
    of_each = vmap(grad(loss), in_dims=(None, 0))(weights, tokens[:, None])["table.weight"]
    torch.testing.assert_close(of_each[0], grad(loss)(weights, tokens[:1])["table.weight"])
    assert hessian(lambda w: loss({"table.weight": w}))(table.weight.detach()).isfinite().all()


class Embedding(nn.Module):
    def __init__(self, tst: Superposition, table: nn.Embedding) -> None:
        super().__init__()
        self.tst, self.table = tst, table

    def forward(self, tokens: Tensor) -> Any:
        return self.tst.embed(self.table, tokens, 0)
