"""Sizes of the chunks in which logits are computed, so that scratch memory stays small.

Imports without torch: the memory model counts these chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CPU_CHUNK_ELEMENTS = 2**20
"""4 MiB of float32: scratch stays in the cache, and each chunk is long enough that threads which
wait for each other at its end do not show (flat optimum between 2**18 and 2**21)."""

GPU_CHUNK_ELEMENTS = 2**26
"""256 MiB of float32: few enough launches, a small share of the logits of a large model."""

CPU_CHUNK_ELEMENTS_WITH_HEAD = 2**19
"""A smaller chunk for head and loss in one pass (`linear_loss.py`), which has other scratch too."""
CPU_FEWEST_ROWS_WITH_HEAD = 256
"""Each chunk reads the whole head three times: fewer rows would not pay for that."""
LARGE_VOCABULARY, CPU_ROWS_OF_LARGE = 16_384, 1024
"""The gradient of a head that no cache holds is read and written once a chunk, and logits are out
of the cache anyway (measured from 128 to 1,024 rows, at 32,768 words: benchmarks/records)."""

GPU_CHUNK_ELEMENTS_WITH_HEAD = 2**29
"""Each chunk also reads and writes the head's whole gradient in float32: 4,186 rows of 128,256
words, in 3.2 GB of scratch (2.1 GB where it is compiled), do so an eighth as often as the 523 rows
of the chunk above."""


def rows_with_head(rows: int, vocabulary: int, *, on_gpu: bool) -> int:
    """Return the rows per chunk of head and loss in one pass: at least one, at most all."""
    if on_gpu:
        return max(1, min(rows, GPU_CHUNK_ELEMENTS_WITH_HEAD // vocabulary))
    if vocabulary >= LARGE_VOCABULARY:
        return max(1, min(rows, CPU_ROWS_OF_LARGE))
    most = max(CPU_FEWEST_ROWS_WITH_HEAD, CPU_CHUNK_ELEMENTS_WITH_HEAD // vocabulary)
    return max(1, min(rows, most))


def row_chunks(rows: Tensor, size: int | None = None) -> Iterator[slice]:
    """Slices of `size` consecutive rows, `chunk_rows(rows)` by default, that cover all in order."""
    count, size = rows.shape[0], size or chunk_rows(rows)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def chunk_rows(logits: Tensor) -> int:
    """Return the rows of `logits` (N, V) per chunk: at least one, at most N."""
    elements = GPU_CHUNK_ELEMENTS if logits.is_cuda else CPU_CHUNK_ELEMENTS
    return max(1, min(logits.shape[0], elements // logits.shape[1]))
