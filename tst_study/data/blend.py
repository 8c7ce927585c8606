"""Decides from which corpus each sequence of a run comes. Sequences are dealt to the corpora in a
fixed cycle, so the decision depends only on the number of the sequence and on the weights of the
corpora."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tst_study.errors import UserError

FINEST_SHARE = 10_000
"""The longest possible cycle. The weights of several corpora are rounded to multiples of
1/`FINEST_SHARE` of their sum."""


class Blend:
    """Deals sequences to corpora by weight, as evenly as possible.

    Weights are rounded to multiples of 1/10,000 of their sum. The sequences are dealt in a cycle,
    in which every slot goes to the corpus that is furthest behind its share. So in any stretch of
    sequences, such as a step or a rank's part of a step, the number that comes from each corpus
    differs by only one or two from its rounded share.

    Raises `UserError` for a weight so small that its corpus would never be read.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.shares = _shares(weights)
        self.cycle_length = sum(self.shares)
        self._cycle, self._dealt_before = _cycle(self.shares)

    def corpus_of(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the index of the corpus of each sequence `first` … `stop - 1`, shape
        (stop - first,)."""
        return self._cycle[np.arange(first, stop) % self.cycle_length]

    def dealt(self, sequences: int, corpus: int) -> int:
        """Count how many of the first `sequences` sequences come from `corpus`."""
        cycles, rest = divmod(sequences, self.cycle_length)
        return cycles * self.shares[corpus] + int(self._dealt_before[rest, corpus])


def _shares(weights: Sequence[float]) -> list[int]:
    if len(weights) == 1:
        return [1]
    exact = [FINEST_SHARE * weight / math.fsum(weights) for weight in weights]
    shares = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda k: (shares[k] - exact[k], k))
    for corpus in by_remainder[: FINEST_SHARE - sum(shares)]:
        shares[corpus] += 1
    if 0 in shares:
        raise UserError(
            f"data.corpora: weight {weights[shares.index(0)]} is less than 1/{FINEST_SHARE} of the "
            "blend, so that its corpus would never be read; drop it or give it more weight"
        )
    divisor = math.gcd(*shares)
    return [share // divisor for share in shares]


def _cycle(shares: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the corpus of each slot of the cycle, (length,), and how many earlier slots went to
    each corpus, (length + 1, corpora). The last row of the counts is for the whole cycle."""
    length = sum(shares)
    share = np.array(shares, dtype=np.int64)
    dealt_before = np.zeros((length + 1, len(shares)), dtype=np.int64)
    cycle = np.zeros(length, dtype=np.int64)
    for slot in range(length):
        behind = share * (slot + 1) - dealt_before[slot] * length
        cycle[slot] = np.argmax(behind)
        dealt_before[slot + 1] = dealt_before[slot]
        dealt_before[slot + 1, cycle[slot]] += 1
    return cycle, dealt_before
