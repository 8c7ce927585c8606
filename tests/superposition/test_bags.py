import pytest
import torch

from tests.superposition.naive import targets_of_labels
from tst_study.superposition import bag_inputs, bag_targets
from tst_study.superposition.bags import shuffle_bags


def test_bags_are_contiguous_and_do_not_overlap():
    tokens = torch.arange(12).view(1, 12)
    assert bag_inputs(tokens, 3).tolist() == [[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]]
    assert bag_inputs(tokens, 3).data_ptr() == tokens.data_ptr()


@pytest.mark.parametrize("bag_size", [1, 2, 5])
@pytest.mark.parametrize("output_only", [False, True])
@pytest.mark.parametrize("positions", [1, 4])
def test_targets_are_raw_tokens_by_position(bag_size, output_only, positions):
    stride = 1 if output_only else bag_size
    labels = torch.randint(1000, (3, positions * stride))
    targets = bag_targets(labels, bag_size, stride)
    assert torch.equal(targets, targets_of_labels(labels, bag_size, stride))


@pytest.mark.parametrize("shape", [(2, 7), (2, 4, 3), (12,), (2, 0)])
def test_labels_are_never_truncated_to_fit(shape):
    with pytest.raises(ValueError, match=r"labels must be \(batch, latent positions · 3\)"):
        bag_targets(torch.zeros(shape, dtype=torch.long), bag_size=3)
    with pytest.raises(ValueError, match="token_ids must be"):
        bag_inputs(torch.zeros(shape, dtype=torch.long), bag_size=3)


def test_a_stride_between_the_two_schemes_is_refused():
    with pytest.raises(ValueError, match="stride must be 1 or bag_size = 4, got 2"):
        bag_targets(torch.zeros(1, 8, dtype=torch.long), bag_size=4, stride=2)


def test_shuffled_bags_all_change_places_and_stay_whole():
    labels = torch.arange(1, 25).view(2, 12)  # of 2 sequences, 4 bags of 3, 3 of them whole
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    shuffled = shuffle_bags(labels, 3, order)
    before, after = (bag_targets(rows, 3)[:, :-1].flatten(0, 1) for rows in (labels, shuffled))
    assert (before != after).all()
    assert sorted(before.tolist()) == sorted(after.tolist())
    last = bag_targets(labels, 3)[:, -1]
    assert torch.equal(bag_targets(shuffled, 3)[:, -1], last)
