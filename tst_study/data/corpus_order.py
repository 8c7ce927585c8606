"""The order in which one corpus is read: which tokens its g-th sequence holds, as a function of g.

**Within an epoch.** An epoch reads each of the T tokens of the corpus once. Sequences of n tokens
follow each other without gaps, so an epoch usually ends inside a sequence, which the next epoch
completes. An epoch cuts the corpus into three parts:

    [0, c)             completes the sequence that the previous epoch left unfinished
    [c, T − rest)      whole pieces of n tokens, shuffled by the seed and the number of the epoch
    [T − rest, T)      fewer than n tokens, read last; [0, c) of the next epoch completes them

So every sequence is one contiguous piece of the corpus, except the sequences that span two epochs.
Unless n divides T, c changes from epoch to epoch, and with it the places at which the corpus is
cut.

**At the switch.** The superposition phase reads pieces of n₁ tokens, and the recovery phase reads
pieces of n₂ tokens, where n₂ divides n₁. In the epoch in which the switch lies, recovery reads the
tokens that superposition has not read: the remaining pieces of n₁ tokens and the rest behind them.
They are cut into pieces of n₂ tokens and shuffled anew.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tst_study.data.permutation import permutation_key, permuted

SUPERPOSITION, RECOVERY = 1, 2
"""Numbers of the phases, which are part of the key of a permutation."""


@dataclass(frozen=True)
class EpochSequences:
    """The sequences that one phase reads from one epoch.

    First come `shuffled` pieces of `length` tokens, in the order of a random permutation. After
    them, if `rest` is not 0, comes one sequence that begins with the last `rest` tokens of the
    corpus and is completed by its first tokens.
    """

    first_sequence: int
    """The number of the first of these sequences among all that the run reads from the corpus."""
    length: int
    """Tokens of a sequence."""
    shuffled: int
    """The number of whole pieces."""
    rest: int
    """Tokens behind the last whole piece, fewer than `length`."""
    key: NDArray[np.uint64]
    """Selects the permutation (`permutation.permuted`)."""
    starts_in_file_order: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    """Maps a piece's number in file order to the token at which it begins."""

    def starts(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens at which pieces begin, (n,).

        `order`, (n,): the numbers of the pieces in the order in which they are read, from 0.
        """
        return self.starts_in_file_order(permuted(order, self.shuffled, self.key))


@dataclass(eq=False)
class CorpusOrder:
    """The order in which a run reads one corpus.

    Args:
        token_count: T, the tokens of the corpus; at least as many as a sequence has.
        superposed_sequences: how many sequences the superposition phase takes from the corpus.
        superposed_length, recovery_length: n₁ and n₂, tokens per sequence in the two phases. If
            they are equal, the whole run is read as one recovery phase, so that it reads what the
            baseline reads.
        seed, corpus: the shuffling depends on the seed, the number of the corpus, the epoch and the
            phase.

    The order is independent of the number of steps of the run. During the superposition phase it is
    also independent of when the switch comes. So two runs that differ in nothing else read the
    same text as long as both are in the superposition phase.
    """

    token_count: int
    superposed_sequences: int
    superposed_length: int
    recovery_length: int
    seed: int
    corpus: int

    def __post_init__(self) -> None:
        if self.superposed_length == self.recovery_length:
            self.superposed_sequences = 0
        self._epoch_sequences = lru_cache(maxsize=8)(self._cut)

    def tokens_before(self, sequence: int) -> int:
        """Count the tokens in all sequences before sequence `sequence`."""
        superposed = min(sequence, self.superposed_sequences)
        recovered = sequence - superposed
        return superposed * self.superposed_length + recovered * self.recovery_length

    def spans(self, first: int, stop: int) -> list[tuple[int, int, int]]:
        """Locate sequences `first` … `stop - 1` in the corpus. All must be of the same phase.

        Returns:
            For each sequence (start, length, wrapped): it consists of `length` tokens from `start`
            on and then of `wrapped` tokens from the beginning of the corpus. `wrapped` is 0 except
            in a sequence that spans two epochs.
        """
        spans: list[tuple[int, int, int]] = []
        while first < stop:
            phase = SUPERPOSITION if first < self.superposed_sequences else RECOVERY
            epoch = self._epoch_sequences(self.tokens_before(first) // self.token_count, phase)
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

    def _cut(self, epoch: int, phase: int) -> EpochSequences:
        """Cut into sequences what one phase reads of one epoch."""
        length = self.superposed_length if phase == SUPERPOSITION else self.recovery_length
        total = self.token_count
        key = permutation_key(self.seed, self.corpus, epoch, phase)
        begin = epoch * total  # tokens read before this epoch
        switch = self.tokens_before(self.superposed_sequences)
        if phase == RECOVERY and switch > begin:
            return self._cut_unread(self._cut(epoch, SUPERPOSITION), key)
        # The sequences of both phases begin at multiples of their length, because n₂ divides n₁.
        offset = -begin % length
        whole, rest = divmod(total - offset, length)
        first = (begin + offset) // length
        if phase == RECOVERY:
            first = self.superposed_sequences + (begin + offset - switch) // length
        return EpochSequences(first, length, whole, rest, key, lambda at: offset + at * length)

    def _cut_unread(self, superposition: EpochSequences, key: NDArray[np.uint64]) -> EpochSequences:
        """Return the sequences of recovery in the epoch in which superposition ends. They hold the
        tokens that superposition has left unread.

        `superposition`: the sequences that superposition would read from that epoch if it lasted
        until the epoch's end.
        """
        first, length = self.superposed_sequences, self.recovery_length
        parts = superposition.length // length
        already_read = first - superposition.first_sequence
        unread = (superposition.shuffled - already_read) * parts

        def starts(piece: NDArray[np.int64]) -> NDArray[np.int64]:
            parent = already_read + piece // parts
            # A parent is a whole piece of n₁ tokens, or the shorter rest behind the last of them.
            # Superposition shuffles the whole pieces; the rest stays behind them.
            begin = superposition.starts_in_file_order(parent)
            whole = parent < superposition.shuffled
            begin[whole] = superposition.starts(parent[whole])
            return begin + piece % parts * length

        more, rest = divmod(superposition.rest, length)
        return EpochSequences(first, length, unread + more, rest, key, starts)
