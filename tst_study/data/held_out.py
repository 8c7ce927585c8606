"""The held-out tokens on which next-token losses are measured, each predicted at most once."""

import hashlib
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tst_study.data.integrity import recorded_fingerprint
from tst_study.data.manifest import Split
from tst_study.data.token_file import TokenFile
from tst_study.errors import UserError
from tst_study.superposition.loss_kinds import IGNORE

MOST_DOCUMENTS = 256
"""The largest number of documents, or groups of documents, whose losses a row of `evals.jsonl`
lists."""


@dataclass(frozen=True)
class HeldOut:
    """A fixed evaluation set: N sequences of L tokens from a token file.

    At each of its positions a sequence predicts the next token from the tokens up to there. No
    token is a target twice.
    """

    name: str
    ids: NDArray[np.int64]
    """(N, L) token ids. Short sequences are padded with their own last id."""
    labels: NDArray[np.int64]
    """(N, L) the token after each of `ids`; −100, which no loss counts, at padding and where the
    document (or, with `taken="beginning"`, the file) has no next token."""
    documents: NDArray[np.int64] | None
    """(N,) the number of each sequence's document, from 0 on without gaps. If there are more than
    `MOST_DOCUMENTS`, neighbouring documents share a number. None with `taken="beginning"`, which
    cuts the file without regard to documents."""
    fingerprint: str
    """Hash of the file's fingerprint and of how it is cut. Only losses on held-out tokens with the
    same fingerprint are comparable."""
    bytes_per_token: float | None
    """UTF-8 bytes of text per token, as an average over the whole file; None if the file's manifest
    does not know the size of the text."""
    in_groups: bool = False
    """Whether neighbouring documents share a number."""

    @property
    def predicted_tokens(self) -> int:
        """The number of labels that are not −100."""
        return int((self.labels != IGNORE).sum())

    def bits_per_byte(self, nats_per_token: float) -> float | None:
        """Convert a loss from nats per token to bits per byte: divide by ln 2 and by the bytes per
        token. None if these are not known."""
        if self.bytes_per_token is None:
            return None
        return nats_per_token / math.log(2) / self.bytes_per_token


def held_out(
    split: Split,
    sequence_length: int,
    tokens: int | None = None,
    name: str = "validation",
    *,
    taken: Literal["spread", "beginning"] = "spread",
) -> HeldOut:
    """Cut about `tokens` tokens (by default all) of a token file into sequences of L tokens.

    Args:
        split: the token file with its manifest.
        sequence_length: L.
        name: what the evaluation set is called in the logs.
        taken: with "spread", every document is cut into pieces from its beginning on. Of these
            pieces enough are taken, evenly from the whole file, to predict about `tokens` tokens.
            With "beginning", the first `tokens` tokens are cut as if they were one text.

    Raises:
        UserError: the file is not the one that its manifest describes, or, with "spread", no
            document has two tokens.
    """
    file = split.file
    count = file.token_count if tokens is None else min(tokens, file.token_count)
    about = f"{recorded_fingerprint(split)},{count},{sequence_length}"
    documents, in_groups = None, False
    if taken == "beginning":
        starts = np.arange(0, count, sequence_length)
        ends, last_labels = np.full_like(starts, count), np.full_like(starts, count + 1)
    else:
        about += ",spread"
        starts, ends, documents = _spread(file, sequence_length, count)
        last_labels, many = ends, int(documents[-1]) + 1
        if in_groups := many > MOST_DOCUMENTS:
            documents = documents * MOST_DOCUMENTS // many
    ids, labels = _cut(file, sequence_length, starts, ends, last_labels)
    digest = hashlib.sha256(about.encode()).hexdigest()
    per_token = split.record.bytes_per_token
    return HeldOut(name, ids, labels, documents, digest, per_token, in_groups)


def _spread(
    file: TokenFile, length: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each piece that is taken, its start, the end of its document, and the number of
    the document among those that are taken, each (N,)."""
    bounds = file.document_starts(0, file.document_count + 1)
    predicted = np.maximum(np.diff(bounds) - 1, 0)
    pieces = -(-predicted // length)
    before = np.concatenate([[0], np.cumsum(pieces)])
    total = int(before[-1])
    if total == 0:
        raise UserError(f"{file.prefix}: no document has two tokens to evaluate on")
    # Enough pieces to predict `count` tokens if each predicts as many as the average piece.
    wanted = min(total, -(-count * total // int(predicted.sum())))
    taken = (np.arange(wanted) * total + total // 2) // wanted
    document = np.searchsorted(before, taken, side="right") - 1
    starts = bounds[document] + (taken - before[document]) * length
    return starts, bounds[document + 1], np.unique(document, return_inverse=True)[1]


def _cut(
    file: TokenFile,
    length: int,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    last_labels: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read the ids and labels, each (N, L), of the pieces that begin at `starts`. Ids are read up
    to `ends`, and labels up to `last_labels` or the end of the file (all three exclusive)."""
    places = starts[:, None] + np.arange(length)
    ids = file.tokens[np.minimum(places, ends[:, None] - 1)].astype(np.int64)
    limit = np.minimum(last_labels, file.token_count)[:, None]
    after = file.tokens[np.minimum(places + 1, limit - 1)].astype(np.int64)
    known = (places < ends[:, None]) & (places + 1 < limit)
    return ids, np.where(known, after, IGNORE)
