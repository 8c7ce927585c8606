from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.superposition.naive import IGNORE, bag_set_loop, multi_hot_loop, targets_of_labels
from tst_study.superposition import BagLoss, Superposition, bag_loss
from tst_study.superposition.bags import count_valid_targets
from tst_study.superposition.loss_kinds import LOSSES, MultiHot, loss_of
from tst_study.superposition.losses import Bags
from tst_study.superposition.weighting import NAMED_WEIGHTINGS, offset_weights


def problem(
    bag_size, *, dtype=torch.float64, batch=2, positions=6, vocabulary=11, seed=0, ignored=0.0,
    stride=None,
):  # fmt: skip
    """Logits and next-token labels; a small vocabulary, so that bags repeat tokens."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(batch, positions, vocabulary, generator=generator)
    length = positions * (bag_size if stride is None else stride)
    labels = torch.randint(vocabulary, (batch, length), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < ignored] = IGNORE
    return logits.to(dtype).requires_grad_(), labels


def value_and_grad(loss, logits, scale=1.0):
    (grad,) = torch.autograd.grad(loss * scale, logits)
    return loss.detach(), grad


def assert_same_value_and_grad(actual, expected, logits, rtol):
    (value, grad), (expected_value, expected_grad) = (
        value_and_grad(loss, logits) for loss in (actual, expected)
    )
    assert abs(value - expected_value) <= rtol * abs(expected_value)
    assert (grad - expected_grad).norm() <= rtol * expected_grad.norm() + 1e-15


# --- a bag of one token -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 7, 3), (2, 300, 1024), (1, 40, 50_000)])
@pytest.mark.parametrize("ignored", [0.0, 0.3])
def test_a_bag_of_one_token_is_the_baseline_bit_for_bit(dtype, shape, ignored):
    batch, positions, vocabulary = shape
    logits, labels = problem(
        1, dtype=dtype, batch=batch, positions=positions, vocabulary=vocabulary, ignored=ignored
    )
    plain = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    expected = value_and_grad(plain, logits, scale=0.37)
    for valid_counts in (None, count_valid_targets(labels, 1)):
        loss = bag_loss(logits, labels, 1, valid_counts=valid_counts)
        assert loss.dtype == dtype
        for ours, theirs in zip(value_and_grad(loss, logits, scale=0.37), expected, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", LOSSES)
def test_how_logits_lie_in_memory_changes_neither_loss_nor_gradient(kind):
    """A head computed as `(weight @ hidden.mT).mT` gives logits column by column."""
    logits, labels = problem(3, batch=1)
    columns = logits.detach().mT.contiguous().mT.requires_grad_()
    results = [value_and_grad(bag_loss(of, labels, 3, kind=kind), of) for of in (logits, columns)]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


# --- the definitions ----------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    bag_size=st.integers(1, 7),
    output_only=st.booleans(),
    batch=st.integers(1, 3),
    positions=st.integers(1, 9),
    vocabulary=st.integers(2, 40),
    ignored=st.sampled_from([0.0, 0.2, 0.6]),
    weighting=st.sampled_from(NAMED_WEIGHTINGS),
    seed=st.integers(0, 2**20),
)
def test_multi_hot_cross_entropy_is_the_weighted_mean_of_one_cross_entropy_per_offset(
    bag_size, output_only, batch, positions, vocabulary, ignored, weighting, seed
):
    stride = 1 if output_only else bag_size
    logits, labels = problem(
        bag_size, batch=batch, positions=positions, vocabulary=vocabulary, ignored=ignored,
        seed=seed, stride=stride,
    )  # fmt: skip
    labels[0, stride - 1] = 0  # offset 0 has a target, so that no weighting is left with none
    expected = multi_hot_loop(logits, labels, offset_weights(weighting, bag_size), stride)
    loss = bag_loss(logits, labels, bag_size, weighting=weighting, stride=stride)
    assert_same_value_and_grad(loss, expected, logits, 1e-11)


@settings(max_examples=40)
@given(
    kind=st.sampled_from([kind for kind in LOSSES if not LOSSES[kind].takes_weights]),
    bag_size=st.integers(1, 6),
    positions=st.integers(1, 7),
    vocabulary=st.integers(2, 30),
    ignored=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 2**20),
)
def test_the_other_losses_see_the_bag_as_a_set(
    kind, bag_size, positions, vocabulary, ignored, seed
):
    logits, labels = problem(
        bag_size, positions=positions, vocabulary=vocabulary, ignored=ignored, seed=seed
    )
    labels[0, bag_size - 1] = 0
    expected = bag_set_loop(logits, labels, bag_size, kind)
    assert_same_value_and_grad(
        bag_loss(logits, labels, bag_size, kind=kind), expected, logits, 1e-11
    )


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_half_precision_loses_only_the_rounding_of_the_logits_and_their_gradient(kind, dtype, rtol):
    logits, labels = problem(4, dtype=dtype, positions=40, vocabulary=301, ignored=0.1)
    exact_logits = logits.detach().double().requires_grad_()
    value, grad = value_and_grad(bag_loss(logits, labels, 4, kind=kind), logits)
    exact, exact_grad = value_and_grad(bag_loss(exact_logits, labels, 4, kind=kind), exact_logits)
    assert value.dtype == torch.float32
    assert grad.dtype == dtype
    assert abs(value - exact) <= 2e-6 * abs(exact)
    assert (grad - exact_grad).norm() <= rtol * exact_grad.norm()


@pytest.mark.parametrize("kind", LOSSES)
def test_a_batch_without_any_target_has_no_loss(kind):
    logits, labels = problem(2, ignored=1.1)
    assert bag_loss(logits, labels, 2, kind=kind).isnan()


def test_an_offset_of_weight_zero_is_not_even_looked_at():
    logits, labels = problem(3, dtype=torch.float32)
    with torch.no_grad():
        logits[0, 0, labels[0, 4]] = -torch.inf  # bag 0 gives its second target no chance
    assert bag_loss(logits, labels, 3, weighting="first_token").isfinite()
    assert bag_loss(logits, labels, 3).isinf()


# --- micro-batches ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("bag_size", [1, 4])
@pytest.mark.parametrize("stride", [None, 1])
def test_micro_batches_add_up_to_the_whole_batch(kind, bag_size, stride):
    logits, labels = problem(bag_size, batch=6, ignored=0.4, stride=stride)
    labels[2] = IGNORE  # one micro-batch has nothing to say
    counts = count_valid_targets(labels, bag_size, stride)
    options = {"kind": kind, "stride": stride}
    parts = [
        bag_loss(logits[rows], labels[rows], bag_size, valid_counts=counts, **options)
        for rows in (slice(0, 2), slice(2, 3), slice(3, 6))
    ]
    with pytest.raises(ValueError, match="valid_counts must have one number per offset"):
        bag_loss(logits, labels, bag_size, valid_counts=counts[:-1], **options)
    whole = bag_loss(logits, labels, bag_size, **options)
    assert_same_value_and_grad(sum(parts), whole, logits, 1e-12)


# --- losses with parameters ---------------------------------------------------------------------


@pytest.mark.parametrize("bag_size", [1, 4])
def test_smoothing_is_that_of_cross_entropy_for_each_target(bag_size):
    logits, labels = problem(bag_size, ignored=0.2)
    targets = targets_of_labels(labels, bag_size, bag_size)
    losses = [
        F.cross_entropy(logits.flatten(0, 1), targets[..., i].flatten(), label_smoothing=0.3)
        for i in range(bag_size)
    ]
    actual = bag_loss(logits, labels, bag_size, kind=MultiHot(label_smoothing=0.3))
    assert_same_value_and_grad(actual, torch.stack(losses).mean(), logits, 1e-12)


def test_smoothing_does_not_round_the_mean_of_half_precision_logits():
    """The mean lies far from zero, where bfloat16 has steps of 0.125."""
    logits, labels = problem(4, dtype=torch.bfloat16, positions=40, vocabulary=301)
    logits = (logits.detach() + 20.0).double()
    value, exact = (
        bag_loss(each, labels, 4, kind=MultiHot(label_smoothing=0.1))
        for each in (logits.bfloat16(), logits)
    )
    assert abs(value - exact) <= 2e-6 * exact


@dataclass(frozen=True)
class Focal(BagLoss):
    """A loss of someone else: multi-hot, with a parameter, and with weights."""

    gamma: float = 2.0
    takes_weights = True

    def __call__(self, bags: Bags) -> torch.Tensor:
        log_probabilities = bags.log_probabilities()
        return bags.mean(-((1 - log_probabilities.exp()) ** self.gamma) * log_probabilities)


def test_a_loss_is_a_class_with_its_parameters_and_takes_weights_and_repeats(monkeypatch):
    logits, labels = problem(3, ignored=0.2)
    targets, weights = targets_of_labels(labels, 3, 3), offset_weights("power_law", 3)
    total = 0.0
    for i, weight in enumerate(weights):
        valid = targets[..., i] != IGNORE
        p = logits.softmax(dim=-1)[valid].gather(1, targets[..., i][valid][:, None])
        total = total + weight * (-((1 - p) ** 0.5) * p.log()).mean() / sum(weights)
    loss = bag_loss(logits, labels, 3, kind=Focal(gamma=0.5), weighting="power_law")
    assert_same_value_and_grad(loss, total, logits, 1e-11)
    with pytest.raises(ValueError, match=r"loss kind 'test_focal' is unknown: use mce, sum"):
        loss_of({"kind": "test_focal", "gamma": 0.5})
    monkeypatch.setitem(LOSSES, "test_focal", Focal)
    assert loss_of({"kind": "test_focal", "gamma": 0.5}) == Focal(0.5)
    with pytest.raises(ValueError, match="weighting must have one number per offset"):
        bag_loss(logits, labels, 3, weighting=torch.ones(1))
    with pytest.raises(ValueError, match="label_smoothing = 1"):
        MultiHot(label_smoothing=1.0)
    tst = Superposition(3, 0.5, 4, loss_kind=Focal(0.5), weighting="power_law")
    assert torch.equal(tst.loss(logits, labels, 0), loss)
    assert tst.objective(0).name == "bag_test_focal"
