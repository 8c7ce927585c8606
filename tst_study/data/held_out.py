"""The held-out tokens that every method is judged on, each predicted once."""

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
"""The most documents whose losses a row of `evals.jsonl` lists."""


@dataclass(frozen=True)
class HeldOut:
    """A fixed evaluation set: sequences of L tokens of a token file.

    Each sequence predicts the token after each of its own tokens, from those up to it; no token is
    a target twice.
    """

    name: str
    ids: NDArray[np.int64]
    """(N, L); short sequences are padded with their own last id."""
    labels: NDArray[np.int64]
    """(N, L) next tokens; −100 at padding and where there is no next token."""
    documents: NDArray[np.int64] | None
    """(N,) the document of each sequence, from 0 on without gaps; where there are more than
    `MOST_DOCUMENTS`, neighbours count as one. None where sequences straddle documents."""
    fingerprint: str
    """Hash of the tokens and of how they are cut; only results with the same one compare."""
    bytes_per_token: float | None
    """UTF-8 bytes per token of the whole file, from its manifest; None where it has no text."""

    @property
    def predicted_tokens(self) -> int:
        """Number of labels that are not −100."""
        return int((self.labels != IGNORE).sum())

    def bits_per_byte(self, nats_per_token: float) -> float | None:
        """Convert a loss: nats per token / ln 2 / bytes per token; None without known bytes."""
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
    """Cut `tokens` tokens (all by default) of a token file into sequences of L.

    `spread`: every document is cut from its beginning, and pieces are taken evenly, until about
    `tokens` tokens are predicted. `beginning`: the first tokens, cut as if they were one text.

    Raises `UserError` for a file that is not what its manifest describes and, with `spread`, for
    one without a document of two tokens.
    """
    file = split.file
    count = file.token_count if tokens is None else min(tokens, file.token_count)
    about = f"{recorded_fingerprint(split)},{count},{sequence_length}"
    documents = None
    if taken == "beginning":
        starts = np.arange(0, count, sequence_length)
        ends, last_labels = np.full_like(starts, count), np.full_like(starts, count + 1)
    else:
        about += ",spread"
        starts, ends, documents = _spread(file, sequence_length, count)
        last_labels = ends
    ids, labels = _cut(file, sequence_length, starts, ends, last_labels)
    return HeldOut(
        name=name,
        ids=ids,
        labels=labels,
        documents=documents,
        fingerprint=hashlib.sha256(about.encode()).hexdigest(),
        bytes_per_token=split.record.bytes_per_token,
    )


def _spread(
    file: TokenFile, length: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return each piece's start, the end of its document, and the document's number: (N,) each."""
    bounds = file.document_starts(0, file.document_count + 1)
    predicted = np.maximum(np.diff(bounds) - 1, 0)
    pieces = -(-predicted // length)
    before = np.concatenate([[0], np.cumsum(pieces)])
    total = int(before[-1])
    if total == 0:
        raise UserError(f"{file.prefix}: no document has two tokens to evaluate on")
    wanted = min(total, -(-count * total // int(predicted.sum())))  # short pieces predict less
    taken = (np.arange(wanted) * total + total // 2) // wanted
    document = np.searchsorted(before, taken, side="right") - 1
    starts = bounds[document] + (taken - before[document]) * length
    numbers = np.unique(document, return_inverse=True)[1]
    groups = min(int(numbers[-1]) + 1, MOST_DOCUMENTS)
    return starts, bounds[document + 1], numbers * groups // (int(numbers[-1]) + 1)


def _cut(
    file: TokenFile,
    length: int,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    last_labels: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read ids and labels, (N, L) each, of the pieces at `starts`: ids before `ends`, and labels
    before `last_labels` and the end of the file."""
    places = starts[:, None] + np.arange(length)
    ids = file.tokens[np.minimum(places, ends[:, None] - 1)].astype(np.int64)
    limit = np.minimum(last_labels, file.token_count)[:, None]
    after = file.tokens[np.minimum(places + 1, limit - 1)].astype(np.int64)
    known = (places < ends[:, None]) & (places + 1 < limit)
    return ids, np.where(known, after, IGNORE)
