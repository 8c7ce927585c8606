"""The sequences that each step of a run reads: under one config, a pure function of the number of
the step.

World size, micro-batch, rank and resumption do not appear here: sequences 3 … 5 of step 700 are the
same tokens for every caller. See `corpus_order` for the order in which a corpus is read, and
`blend` for the choice between several corpora.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tst_study.config.phase_plan import PhasePlan
from tst_study.data.blend import Blend
from tst_study.data.corpus_order import CorpusOrder
from tst_study.data.token_file import TokenFile
from tst_study.errors import UserError
from tst_study.superposition.loss_kinds import IGNORE


@dataclass(frozen=True)
class WeightedFile:
    """A token file and its weight in the blend. Each corpus gets a share of the sequences, and so
    of the tokens, in proportion to its weight; weights need not add up to 1."""

    file: TokenFile
    weight: float = 1.0


class TokenStream:
    """Deal the tokens of one or more corpora to the steps of a run.

    Args:
        corpora: the token files that are read.
        plan: says how many sequences a whole step reads, B, over all ranks and micro-batches, how
            many raw tokens each of them has (s·L before the switch with bags as input, else L), and
            which part of a whole step each step reads.
        seed: sets the order in which the pieces of a corpus are read (`corpus_order`). A piece is
            as long as a sequence, so a baseline and a run with bags as input read in different
            orders under the same seed. If several runs branch off a shared prefix run, they read
            the same tokens up to the step at which they branch off.

    Raises:
        UserError: a corpus has fewer tokens than its share of one step.
    """

    def __init__(self, corpora: Sequence[WeightedFile], plan: PhasePlan, seed: int = 0) -> None:
        self.corpora, self.plan = tuple(corpora), plan
        self._blend = Blend([corpus.weight for corpus in corpora])
        for number, corpus in enumerate(corpora):
            self._check_length(number, corpus)
        superposed = plan.superposed_steps * plan.sequences
        self._orders = [
            CorpusOrder(
                corpus.file.token_count,
                self._blend.dealt(superposed, number),
                plan.tokens_per_sequence("superposition"),
                plan.sequence_length,
                seed,
                number,
            )
            for number, corpus in enumerate(corpora)
        ]

    def batch(
        self, step: int, start: int = 0, stop: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Read sequences `start` … `stop - 1` of a step; by default all of them.

        Returns:
            Ids and next-token labels, each int64 (stop - start, n), with n the raw tokens of a
            sequence of this step. The label of a token is the one that follows it in the corpus,
            also at the end of a sequence. The last token of a corpus has the label −100 (ignored);
            it may lie inside a sequence that ends one epoch and begins the next.
        """
        reads = self.plan.reads(step)
        stop = reads.sequences if stop is None else stop
        stride = self.plan.tokens_per_position(self.plan.phase(step))
        skipped, width = reads.first_position * stride, reads.length * stride
        ids = np.empty((stop - start, width), dtype=np.int64)
        labels = np.empty_like(ids)
        first = reads.whole_step * self.plan.sequences + reads.first_sequence
        corpus_of = self._blend.corpus_of(first + start, first + stop)
        for number, (order, corpus) in enumerate(zip(self._orders, self.corpora, strict=True)):
            rows = np.flatnonzero(corpus_of == number).tolist()
            if rows:
                dealt = self._blend.dealt(first + start, number)
                spans = order.spans(dealt, dealt + len(rows))
                for row, (begin, length, _) in zip(rows, spans, strict=True):
                    # The first `before` tokens lie before the end of the corpus, the others at its
                    # beginning.
                    before = min(max(length - skipped, 0), width)
                    _fill(corpus.file, begin + skipped, ids[row, :before], labels[row, :before])
                    if before < width:
                        at = max(skipped - length, 0)
                        _fill(corpus.file, at, ids[row, before:], labels[row, before:])
        return ids, labels

    def epochs(self, step: int) -> float:
        """Return how many epochs had been read before this step, as a fractional number. With
        several corpora, the count is that of the corpus that has been read most often. Small steps
        are taken to read all corpora of a whole step alike."""
        reads = self.plan.reads(step)
        share = reads.first_sequence / self.plan.sequences
        share += reads.first_position / self.plan.sequence_length

        def before(whole_step: int) -> float:
            dealt = whole_step * self.plan.sequences
            return max(
                order.tokens_before(self._blend.dealt(dealt, number)) / order.token_count
                for number, order in enumerate(self._orders)
            )

        read = before(reads.whole_step)
        return read + share * (before(reads.whole_step + 1) - read) if share else read

    def _check_length(self, number: int, corpus: WeightedFile) -> None:
        share = self._blend.shares[number] / self._blend.cycle_length
        longest = self.plan.tokens_per_sequence("superposition")
        needed = max(1, round(share * self.plan.sequences)) * longest
        if corpus.file.token_count < needed:
            raise UserError(
                f"{corpus.file.prefix}: has {corpus.file.token_count} tokens, one step reads"
                f" {needed} of it; prepare more text or lower batch.sequences,"
                " batch.sequence_length or the bag size"
            )


def _fill(file: TokenFile, start: int, ids: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
    """Write the tokens from `start` on, and the token after each, into arrays of equal length."""
    stop = start + ids.size
    ids[:] = file.tokens[start:stop]
    following = file.tokens[start + 1 : stop + 1]
    labels[: following.size] = following
    labels[following.size :] = IGNORE
