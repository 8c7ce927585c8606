"""The addresses that a token stream deals out: a corpus's tokens, or its tokens and pads.

In both classes `count` is the number of addresses, and `fill` writes ids and next-token labels of
the addresses from `start` on into arrays of equal length.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tst_study.data.token_file import TokenFile
from tst_study.superposition.loss_kinds import IGNORE

DOCUMENTS_PER_MARK = 1024


class PackedDocuments:
    """Documents end to end, so that an address is a token. The last token has no next one."""

    def __init__(self, file: TokenFile) -> None:
        self.count = file.token_count
        self._tokens: NDArray[Any] = file.tokens

    def fill(self, start: int, ids: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
        stop = start + ids.size
        ids[:] = self._tokens[start:stop]
        if stop < self.count:
            labels[:] = self._tokens[start + 1 : stop + 1]
        else:
            labels[:-1] = self._tokens[start + 1 : stop]
            labels[-1] = IGNORE


class AlignedDocuments:
    """Every document padded to a whole number of bags, so that no bag holds two documents.

    A pad reads as the end-of-document id. A label that would be a pad is `IGNORE`, any other is
    the id at the next address: so each token of the corpus is the label of exactly one address
    (but for the very first token), the first of a document that of the address before it.

    Padding is virtual. Only the padded start of every 1,024th document is kept in memory (8 MB
    for a thousand million documents); finding them reads the index file once, at opening.
    """

    def __init__(self, file: TokenFile, bag_size: int, pad_id: int) -> None:
        self._file = file
        self._bag_size = bag_size
        self._pad_id = pad_id
        marks = [0]
        for first in range(0, file.document_count, DOCUMENTS_PER_MARK):
            stop = min(first + DOCUMENTS_PER_MARK, file.document_count)
            padded = self._padded(np.diff(file.document_starts(first, stop + 1)))
            marks.append(marks[-1] + int(padded.sum()))
        self._marks = np.array(marks, dtype=np.int64)
        self.count = marks[-1]

    def fill(self, start: int, ids: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
        stop = min(start + ids.size + 1, self.count)
        values, is_token = self._read(start, stop)
        ids[:] = values[: ids.size]
        known = stop - start - 1
        labels[:known] = np.where(is_token[1:], values[1:], IGNORE)
        labels[known:] = IGNORE

    def _padded(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        return -(-lengths // self._bag_size) * self._bag_size

    def _read(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the ids of addresses `start` … `stop - 1`, and a mask that is False for pads."""
        first_mark = int(np.searchsorted(self._marks, start, side="right")) - 1
        last_mark = int(np.searchsorted(self._marks, stop, side="left"))
        first = first_mark * DOCUMENTS_PER_MARK
        last = min(last_mark * DOCUMENTS_PER_MARK, self._file.document_count)
        starts = self._file.document_starts(first, last + 1)
        lengths = np.diff(starts)
        padded_ends = self._marks[first_mark] + np.cumsum(self._padded(lengths))
        addresses = np.arange(start, stop)
        document = np.searchsorted(padded_ends, addresses, side="right")
        within = addresses - (padded_ends - self._padded(lengths))[document]
        is_token = within < lengths[document]
        values = np.full(stop - start, self._pad_id, dtype=np.int64)
        token = (starts[:-1][document] + within)[is_token]
        if token.size:
            # Pads lie between documents, so the tokens of a stretch are contiguous in the file.
            values[is_token] = self._file.tokens[token[0] : token[-1] + 1]
        return values, is_token
