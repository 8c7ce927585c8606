"""Head and loss in one pass are the head, then the loss."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from tst_study.superposition import bag_loss, bag_targets, linear_bag_loss, linear_loss
from tst_study.superposition.row_chunks import rows_with_head

POSITIONS, BATCH, WIDTH, VOCABULARY = 13, 3, 8, 300


def _inputs(
    dtype: torch.dtype, bag_size: int, stride: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(bag_size + stride)
    hidden = torch.randn(POSITIONS, BATCH, WIDTH, generator=generator).to(dtype)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator).to(dtype)
    labels = torch.randint(VOCABULARY, (BATCH, POSITIONS * stride), generator=generator)
    labels[0, : stride + 2] = -100
    labels[1, stride : 2 * stride] = 7  # a bag that repeats a token
    return hidden.requires_grad_(), weight.requires_grad_(), labels


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize(("bag_size", "stride"), [(1, 1), (4, 4), (4, 1), (8, 8)])
@pytest.mark.parametrize("weighting", ["uniform", "power_law", "first_token"])
@pytest.mark.parametrize("compiled", [False, True], ids=["", "as it is compiled"])
def test_one_pass_has_the_loss_and_gradients_of_head_then_loss(
    dtype, tolerance, bag_size, stride, weighting, compiled, monkeypatch
):
    monkeypatch.setattr(
        linear_loss, "_in_one_kernel", lambda: linear_loss.log_probabilities_and_softmax
    )
    # Chunks of 5 rows, the last one shorter.
    monkeypatch.setattr(
        "tst_study.superposition.row_chunks.CPU_CHUNK_ELEMENTS_WITH_HEAD", 5 * VOCABULARY
    )
    hidden, weight, labels = _inputs(dtype, bag_size, stride)
    settings = {"weighting": weighting, "stride": stride}
    one = linear_bag_loss(hidden, weight, labels, bag_size, **settings, compiled=compiled)
    (3.0 * one).backward()  # an upstream gradient other than 1
    found = one.detach(), hidden.grad, weight.grad
    hidden.grad = weight.grad = None
    logits = (hidden @ weight.t()).transpose(0, 1)
    two = bag_loss(logits, labels, bag_size, **settings)
    (3.0 * two).backward()
    for got, expected in zip(found, (two.detach(), hidden.grad, weight.grad), strict=True):
        error = (got.double() - expected.double()).norm() / expected.double().norm()
        assert error < tolerance


def test_no_valid_target_is_nan_as_for_cross_entropy():
    hidden, weight, labels = _inputs(torch.float32, 1, 1)
    assert linear_bag_loss(hidden, weight, torch.full_like(labels, -100), 1).isnan()


def test_recorded_runs_of_up_to_2048_words_keep_their_bits():
    """A sum over other chunks has other bits."""
    assert [rows_with_head(2**14, words, on_gpu=False) for words in (1024, 2048)] == [512, 256]


def _fused(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(hidden @ weight.t(), targets, reduction="none")


@pytest.mark.parametrize(("bag_size", "stride"), [(1, 1), (4, 4), (4, 1)])
@pytest.mark.parametrize("weighting", ["uniform", "power_law"])
def test_any_cross_entropy_becomes_the_bag_loss(bag_size, stride, weighting):
    hidden, weight, labels = _inputs(torch.float64, bag_size, stride)
    found = []
    for kernel in (None, _fused):
        loss = linear_bag_loss(
            hidden, weight, labels, bag_size,
            weighting=weighting, stride=stride, cross_entropy=kernel,
        )  # fmt: skip
        found.append([loss, *torch.autograd.grad(2.0 * loss, (hidden, weight))])
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("weighting", ["uniform", "power_law"])
def test_a_kernel_of_others_shifts_no_loss_in_bfloat16(weighting):
    """Coefficients of 5/6 and 1/6 round by different shares."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(2000, 64, generator=generator).mul(0.3).bfloat16()
    labels = torch.randint(2000, (1, 512 * 6), generator=generator)
    own = bag_targets(labels, 6).clamp(min=0)
    hidden = weight[own].float().sum(2).mul(0.8).bfloat16()  # so that targets are likely
    given = {"weighting": weighting, "batch_first": True}

    def kernel(*inputs: torch.Tensor) -> torch.Tensor:
        return _fused(*(x.float() if x.is_floating_point() else x for x in inputs))

    exact = linear_bag_loss(hidden.double(), weight.double(), labels, 6, **given)
    found = linear_bag_loss(hidden, weight, labels, 6, **given, cross_entropy=kernel)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-3)


def test_without_gradients_only_the_logits_are_computed():
    hidden, weight, labels = _inputs(torch.float32, 4, 4)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        linear_bag_loss(hidden, weight, labels, 4)
    assert counter.get_total_flops() == 2 * hidden.numel() * len(weight)


def test_autocast_casts_as_a_linear_layer_does():
    hidden, weight, labels = _inputs(torch.float32, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_bag_loss(hidden, weight, labels, 4)
        expected = bag_loss(F.linear(hidden, weight).transpose(0, 1), labels, 4)
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=0)
    grads = torch.autograd.grad(loss, (hidden, weight))
    assert [one.dtype for one in grads] == [torch.float32, torch.float32]


@pytest.mark.parametrize("kernel", [None, lambda *given: _fused(*given)])
def test_small_probabilities_keep_their_gradient_in_float16(kernel):
    """A gradient of 1e-8 is 0 in float16, and no scaler of the loss can bring it back."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*size, 32, generator=generator) for size in ((1, 8192), (1024,)))
    labels = torch.randint(1024, (1, 8192 * 4), generator=generator)
    gradients = []
    for dtype in (torch.float32, torch.float16):
        inputs = [x.to(dtype).requires_grad_() for x in (hidden / 2, weight / 2)]
        loss = linear_bag_loss(*inputs, labels, 4, batch_first=True, cross_entropy=kernel)
        (65536 * loss).backward(retain_graph=True)
        if kernel is None:
            with pytest.raises(RuntimeError, match="one backward pass"):
                loss.backward()
        gradients.append([x.grad.float() for x in inputs if x.grad is not None])
    for exact, found in zip(*gradients, strict=True):
        assert (found - exact).norm() < 2e-3 * exact.norm()
