"""The tokens that every method is judged on: the same ones, in the same order, each once."""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tst_study.data.integrity import recorded_fingerprint
from tst_study.data.manifest import manifest_of
from tst_study.data.token_file import TokenFile
from tst_study.errors import UserError
from tst_study.superposition.loss_kinds import IGNORE


@dataclass(frozen=True)
class HeldOut:
    """A fixed evaluation set: the beginning of a token file, cut into sequences of L.

    Every token but the first is predicted once, from what precedes it in its own sequence.
    """

    name: str
    ids: NDArray[np.int64]
    """(N, L); the last sequence is filled up with its own last id."""
    labels: NDArray[np.int64]
    """(N, L) next tokens; −100 where filled up, and after the last token."""
    fingerprint: str
    """Of tokens and cut: two results compare only if it is the same."""
    bytes_per_token: float | None
    """UTF-8 bytes per token of the whole file, from its manifest; None without one."""

    @property
    def predicted_tokens(self) -> int:
        """Labels that count."""
        return int((self.labels != IGNORE).sum())

    def check_vocabulary(self, size: int) -> None:
        """Raises `UserError` where an id lies outside a model's vocabulary."""
        highest = int(max(self.ids.max(), self.labels.max()))
        if highest >= size:
            raise UserError(
                f"{self.name}: has token ids up to {highest}, but the model's vocabulary has "
                f"{size}; prepare the text with the model's tokenizer"
            )

    def bits_per_byte(self, nats_per_token: float) -> float | None:
        """Nats per token / ln 2 / bytes per token; None where the text's bytes are unknown."""
        if self.bytes_per_token is None:
            return None
        return nats_per_token / math.log(2) / self.bytes_per_token


def held_out(
    file: TokenFile, sequence_length: int, tokens: int | None = None, name: str = "validation"
) -> HeldOut:
    """Cut the first `tokens` tokens (all by default) of a token file into sequences.

    Raises `UserError` for a file that is too short for one prediction or is not what its manifest
    describes, and for a damaged manifest.
    """
    line = file.tokens[: None if tokens is None else tokens + 1].astype(np.int64)
    # One token more is read than asked for: it is the last one's label.
    count = line.size if tokens is None else min(tokens, line.size)
    if count < 2:
        raise UserError(f"{file.prefix}: {count} tokens are too few to evaluate on")
    sequences = -(-count // sequence_length)
    ids = np.full(sequences * sequence_length, line[count - 1], dtype=np.int64)
    labels = np.full_like(ids, IGNORE)
    ids[:count] = line[:count]
    labels[: line[1 : count + 1].size] = line[1 : count + 1]
    manifest = manifest_of(file.prefix)
    split = None if manifest is None else manifest.splits.get(file.prefix.name)
    about = f"{recorded_fingerprint(file.prefix, split)},{count},{sequence_length}"
    return HeldOut(
        name=name,
        ids=ids.reshape(sequences, sequence_length),
        labels=labels.reshape(sequences, sequence_length),
        fingerprint=hashlib.sha256(about.encode()).hexdigest(),
        bytes_per_token=None if split is None else split.bytes_per_token,
    )
