"""The vocabulary split over two ranks changes no loss and no gradient."""

import pytest
import torch
import torch.distributed as dist

from tests.distributed import run_ranks
from tests.superposition.naive import IGNORE
from tst_study.superposition import bag_loss
from tst_study.superposition.loss_kinds import LOSSES

CASES = [
    (1, {}),
    *((4, {"kind": kind}) for kind in LOSSES),
    (4, {"weighting": "power_law"}),
    (3, {"weighting": "first_token"}),
    (4, {"stride": 1}),
    *((size, {"kind": {"kind": "mce", "label_smoothing": 0.2}}) for size in (1, 4)),
]


def problem(bag_size, options):
    generator = torch.Generator().manual_seed(bag_size)
    logits = 4 * torch.randn(2, 9, 64, generator=generator)
    labels = torch.randint(64, (2, 9 * options.get("stride", bag_size)), generator=generator)
    labels[:, ::5] = IGNORE
    return logits.requires_grad_(), labels


def test_two_ranks_with_half_the_vocabulary_each_equal_one_process():
    def losses_and_grads():
        half = slice(32 * dist.get_rank(), 32 * (dist.get_rank() + 1))
        results = []
        for bag_size, options in CASES:
            logits, labels = problem(bag_size, options)
            shard = logits.detach()[..., half].contiguous().requires_grad_()
            loss = bag_loss(
                shard * 1.0, labels, bag_size,
                vocabulary_start=half.start, group=dist.group.WORLD, **options,
            )  # fmt: skip
            with pytest.raises(RuntimeError, match="split over ranks has no second derivative"):
                torch.autograd.grad(loss, shard, create_graph=True)
            loss.backward(retain_graph=True)
            results.append((loss.detach(), shard.grad))
        return results

    ranks = run_ranks(2, losses_and_grads)
    for (bag_size, options), (loss_0, grad_0), (loss_1, grad_1) in zip(CASES, *ranks, strict=True):
        logits, labels = problem(bag_size, options)
        expected = bag_loss(logits * 1.0, labels, bag_size, **options)
        expected.backward()
        assert torch.equal(loss_0, loss_1), options
        assert abs(loss_0 - expected) <= 1e-6 * abs(expected), options
        grad = torch.cat([grad_0, grad_1], dim=2)
        assert (grad - logits.grad).norm() <= 1e-6 * logits.grad.norm(), options
