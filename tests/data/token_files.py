"""Token files from lists of ids, and back."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tst_study.data.preparation.adopt import adopt
from tst_study.data.token_file import TokenFile, write_tokens


def write_token_file(
    prefix: str | Path, documents: Iterable[NDArray[Any]], dtype: np.dtype[Any]
) -> None:
    """One document at a time."""
    write_tokens(prefix, dtype, ((np.asarray(one), [len(one)]) for one in documents))


def describe(prefix: str | Path, vocabulary_size: int = 2**31 - 1) -> None:
    """Write the manifest that any reader of a token file asks for."""
    adopt([prefix], vocabulary_size)


def documents_of(file: TokenFile) -> list[NDArray[Any]]:
    """The ids of each document."""
    return np.split(file.tokens, file.document_starts(1, file.document_count))
