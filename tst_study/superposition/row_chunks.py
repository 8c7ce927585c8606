"""Sizes of the chunks of rows in which logits are processed, so that scratch memory stays small.

Imports without torch: the memory model counts these chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CPU_CHUNK_ELEMENTS = 2**20
"""Logits per chunk on a CPU, 4 MiB in float32: small enough for the cache, and large enough that
the wait of threads for each other at its end does not count. Speed hardly differs between 2**18 and
2**21."""

GPU_CHUNK_ELEMENTS = 2**26
"""Logits per chunk on a GPU, 256 MiB in float32: few kernel launches, and a small share of the
logits of a large model's batch."""

CPU_CHUNK_ELEMENTS_WITH_HEAD = 2**19
"""Logits per chunk on a CPU for head and loss in one pass (`linear_loss.py`): fewer, as it needs
other scratch too."""
CPU_FEWEST_ROWS_WITH_HEAD = 256
"""The least number of rows of such a chunk, even if it then holds more logits: each chunk passes
over the head twice and over its gradient once, and fewer rows would not pay for that."""
LARGE_VOCABULARY, CPU_ROWS_OF_LARGE = 16_384, 1024
"""From a vocabulary of the first size on, such a chunk has the second number of rows. No cache
holds the gradient of so large a head, which each chunk reads and writes, and the logits of few rows
would not fit either (measured from 128 to 1,024 rows, at 32,768 words: benchmarks/records)."""

GPU_CHUNK_ELEMENTS_WITH_HEAD = 2**29
"""Logits per chunk on a GPU for head and loss in one pass. Each chunk also reads and writes the
head's whole gradient in float32, so chunks are larger than `GPU_CHUNK_ELEMENTS`: with a vocabulary
of 128,256 they have 4,185 rows instead of 523, an eighth as many reads and writes, and take 3.2 GB
of scratch (2.1 GB where the kernel is compiled)."""


def rows_with_head(rows: int, vocabulary: int, *, on_gpu: bool) -> int:
    """Return the rows per chunk of head and loss in one pass: at least one, at most all."""
    if on_gpu:
        return max(1, min(rows, GPU_CHUNK_ELEMENTS_WITH_HEAD // vocabulary))
    if vocabulary >= LARGE_VOCABULARY:
        return max(1, min(rows, CPU_ROWS_OF_LARGE))
    most = max(CPU_FEWEST_ROWS_WITH_HEAD, CPU_CHUNK_ELEMENTS_WITH_HEAD // vocabulary)
    return max(1, min(rows, most))


def row_chunks(rows: Tensor, size: int | None = None) -> Iterator[slice]:
    """Yield slices of `size` consecutive rows (by default `chunk_rows(rows)`) that cover all rows
    in order."""
    count, size = rows.shape[0], size or chunk_rows(rows)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def chunk_rows(logits: Tensor) -> int:
    """Return the rows of `logits` (N, V) per chunk: at least one, at most N."""
    elements = GPU_CHUNK_ELEMENTS if logits.is_cuda else CPU_CHUNK_ELEMENTS
    return max(1, min(logits.shape[0], elements // logits.shape[1]))
