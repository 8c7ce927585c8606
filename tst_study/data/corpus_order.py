"""The order in which one corpus is read: the tokens of its g-th sequence, a pure function of g.

Reading order. Sequence g begins after all tokens of the sequences before it, so an epoch of T
tokens ends after exactly T tokens, usually inside a sequence. In epoch e the corpus is cut so:

    [0, c)             completes the sequence that the epoch before left unfinished
    [c, T − rest)      whole pieces of n tokens, read in an order shuffled by (seed, epoch)
    [T − rest, T)      fewer than n tokens, read last; the next epoch's [0, c) completes them

Every token is read once per epoch, and every sequence but the one that spans two epochs is one
contiguous piece. c moves from epoch to epoch, so each epoch is cut at other places.

The switch. The superposition phase reads pieces of n₁ tokens, the recovery phase pieces of n₂,
which divides n₁. In the epoch of the switch, recovery reads the tokens that superposition has not
read: the remaining pieces of n₁ tokens and the rest, cut into pieces of n₂ and shuffled anew.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tst_study.data.permutation import permutation_key, permuted

SUPERPOSITION, RECOVERY = 1, 2


@dataclass(frozen=True)
class EpochSequences:
    """The sequences that one phase reads of one epoch.

    First come `shuffled` pieces of `length` tokens; the k-th of them is the q-th in file order,
    where q is the k-th entry of a permutation. After them, if `rest` is not 0, comes one sequence
    that begins with the corpus's last `rest` tokens and is completed by its first ones.
    """

    first_sequence: int
    """The number of the first of them among all sequences that the run reads from the corpus."""
    length: int
    shuffled: int
    rest: int
    key: NDArray[np.uint64]
    starts_in_file_order: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    """Maps a piece's number in file order to the token at which it begins."""

    def starts(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens at which pieces begin, (n,); `order`, (n,), numbers the pieces in the
        order in which they are read."""
        return self.starts_in_file_order(permuted(order, self.shuffled, self.key))


class CorpusOrder:
    """The order in which a run reads one corpus.

    Args:
        token_count: T, the tokens of the corpus; at least as many as a sequence has.
        superposed_sequences: how many sequences the superposition phase takes from it.
        superposed_length, recovery_length: n₁ and n₂, tokens per sequence in the two phases.
            Where they are equal the whole run is read as one recovery phase, so that bags of one
            token read what the baseline reads.
        seed, corpus: the shuffling depends on these, the epoch and the phase.

    The order does not depend on the number of steps, and that of the superposition phase does not
    depend on when the switch comes: runs that differ only in these read the same data as long as
    both superpose.
    """

    def __init__(
        self,
        token_count: int,
        superposed_sequences: int,
        superposed_length: int,
        recovery_length: int,
        seed: int,
        corpus: int = 0,
    ) -> None:
        if superposed_length == recovery_length:
            superposed_sequences = 0
        self.token_count = token_count
        self.superposed_sequences = superposed_sequences
        self.superposed_length = superposed_length
        self.recovery_length = recovery_length
        self._seed = seed
        self._corpus = corpus
        self._epoch_sequences = lru_cache(maxsize=8)(self._cut)

    def tokens_before(self, sequence: int) -> int:
        """Count the tokens in all sequences before this one."""
        superposed = min(sequence, self.superposed_sequences)
        recovered = sequence - superposed
        return superposed * self.superposed_length + recovered * self.recovery_length

    def spans(self, first: int, stop: int) -> list[tuple[int, int, int]]:
        """Locate sequences `first` … `stop - 1`, all of one phase, in the corpus.

        Returns:
            Per sequence (start, length, wrapped): `length` tokens from `start`, then `wrapped`
            tokens from the corpus's beginning. `wrapped` is 0 except in the sequence that spans
            the end of an epoch.
        """
        spans: list[tuple[int, int, int]] = []
        while first < stop:
            epoch = self._epoch_sequences(*self._epoch_and_phase(first))
            order = first - epoch.first_sequence
            several = min(stop - first, epoch.shuffled - order)
            if several > 0:
                starts = epoch.starts(np.arange(order, order + several, dtype=np.int64))
                spans += [(start, epoch.length, 0) for start in starts.tolist()]
                first += several
            else:
                start = self.token_count - epoch.rest
                spans.append((start, epoch.rest, epoch.length - epoch.rest))
                first += 1
        return spans

    def _epoch_and_phase(self, sequence: int) -> tuple[int, int]:
        phase = SUPERPOSITION if sequence < self.superposed_sequences else RECOVERY
        return self.tokens_before(sequence) // self.token_count, phase

    def _cut(self, epoch: int, phase: int) -> EpochSequences:
        length = self.superposed_length if phase == SUPERPOSITION else self.recovery_length
        total = self.token_count
        key = permutation_key(self._seed, self._corpus, epoch, phase)
        begin = epoch * total  # tokens read before this epoch
        switch = self.tokens_before(self.superposed_sequences)
        if phase == RECOVERY and switch > begin:
            return self._cut_unread(self._cut(epoch, SUPERPOSITION), key)
        # Both phases' sequences begin at multiples of their length (n₂ divides n₁).
        offset = -begin % length
        whole, rest = divmod(total - offset, length)
        first = (begin + offset) // length
        if phase == RECOVERY:
            first = self.superposed_sequences + (begin + offset - switch) // length
        return EpochSequences(
            first, length, whole, rest, key, lambda piece: offset + piece * length
        )

    def _cut_unread(self, superposition: EpochSequences, key: NDArray[np.uint64]) -> EpochSequences:
        """Cut what superposition has not read of its last epoch into sequences of recovery."""
        first, length = self.superposed_sequences, self.recovery_length
        parts = superposition.length // length
        already_read = first - superposition.first_sequence
        unread = (superposition.shuffled - already_read) * parts

        def starts(piece: NDArray[np.int64]) -> NDArray[np.int64]:
            parent = already_read + piece // parts
            # Superposition shuffles whole pieces of n₁ tokens; those behind them are in file order.
            begin = superposition.starts_in_file_order(parent)
            whole = parent < superposition.shuffled
            begin[whole] = superposition.starts(parent[whole])
            return begin + piece % parts * length

        more, rest = divmod(superposition.rest, length)
        return EpochSequences(first, length, unread + more, rest, key, starts)
