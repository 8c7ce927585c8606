"""The computed order is a shuffle."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tst_study.data.permutation import permutation_key, permuted


@settings(max_examples=60)
@given(size=st.integers(1, 3000), seed=st.integers(0, 2**40))
def test_every_index_comes_once(size, seed):
    order = permuted(np.arange(size), size, permutation_key(seed))
    assert sorted(order.tolist()) == list(range(size))


@settings(max_examples=50)
@given(size=st.integers(1, 2**62), seed=st.integers(0, 99))
def test_huge_sizes_stay_in_range_and_apart(size, seed):
    indices = np.unique(np.linspace(0, size - 1, 50).astype(np.int64).clip(0, size - 1))
    order = permuted(indices, size, permutation_key(seed))
    assert order.min() >= 0
    assert order.max() < size
    assert len(set(order.tolist())) == indices.size


def test_places_look_uniform_and_neighbours_unrelated():
    size, seeds = 60, 4000
    orders = np.array([permuted(np.arange(size), size, permutation_key(s)) for s in range(seeds)])
    counts = np.array([np.bincount(orders[:, k], minlength=size) for k in range(size)])
    expected = seeds / size
    chi_square = ((counts - expected) ** 2 / expected).sum() / (size - 1) ** 2
    assert 0.9 < chi_square < 1.1
    steps = np.bincount(np.diff(orders, axis=1).ravel() % size, minlength=size)[1:]
    assert steps.std() / steps.mean() < 0.03


def test_the_order_is_the_same_on_every_machine():
    order = permuted(np.arange(10), 10, permutation_key(0, 0, 0, 2)).tolist()
    assert order == [2, 7, 8, 5, 0, 9, 1, 4, 6, 3]
