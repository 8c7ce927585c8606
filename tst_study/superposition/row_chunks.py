"""Sizes of the chunks of rows in which the losses process logits, so that scratch memory stays
small.

Imports without torch, because the memory model (`cost/memory.py`) counts these chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CPU_CHUNK_ELEMENTS = 2**20
"""Number of logits in a chunk on a CPU, 4 MiB in float32. They are few enough for the cache, and so
many that the time for which threads wait for each other at the end of a chunk is negligible. Speed
hardly differs between 2**18 and 2**21."""

GPU_CHUNK_ELEMENTS = 2**26
"""Number of logits in a chunk on a GPU, 256 MiB in float32: enough to need few kernel launches, and
yet a small share of the logits of a large model's batch."""

CPU_CHUNK_ELEMENTS_WITH_HEAD = 2**19
"""Number of logits in a chunk on a CPU if head and loss are computed in one pass
(`linear_loss.py`). They are fewer, because this pass needs further scratch memory."""
CPU_FEWEST_ROWS_WITH_HEAD = 256
"""The least number of rows in a chunk of that pass, even if the chunk then holds more logits. For
each chunk, the head is read twice, and its gradient is read and written once. This would take too
large a share of the time if chunks had fewer rows."""
LARGE_VOCABULARY, CPU_ROWS_OF_LARGE = 16_384, 1024
"""If the vocabulary has at least `LARGE_VOCABULARY` tokens, a chunk of that pass has
`CPU_ROWS_OF_LARGE` rows instead. The gradient of such a large head, which each chunk reads and
writes, fits in no cache, and the logits of a smaller chunk would not fit either (measured with 128
to 1,024 rows and a vocabulary of 32,768: benchmarks/records)."""

GPU_CHUNK_ELEMENTS_WITH_HEAD = 2**29
"""Number of logits in a chunk on a GPU if head and loss are computed in one pass. Each chunk also
reads and writes the head's whole gradient in float32, so chunks are larger than with
`GPU_CHUNK_ELEMENTS`. With a vocabulary of 128,256 they have 4,185 rows instead of 523, which takes
an eighth of these reads and writes. In bfloat16 they take 3.2 GB of scratch memory (2.1 GB if the
kernel is compiled)."""


def rows_with_head(rows: int, vocabulary: int, *, on_gpu: bool) -> int:
    """Return the number of rows in a chunk if head and loss are computed in one pass: at least one,
    at most `rows`, the number of all rows."""
    if on_gpu:
        return max(1, min(rows, GPU_CHUNK_ELEMENTS_WITH_HEAD // vocabulary))
    if vocabulary >= LARGE_VOCABULARY:
        return max(1, min(rows, CPU_ROWS_OF_LARGE))
    most = max(CPU_FEWEST_ROWS_WITH_HEAD, CPU_CHUNK_ELEMENTS_WITH_HEAD // vocabulary)
    return max(1, min(rows, most))


def row_chunks(rows: Tensor, size: int | None = None) -> Iterator[slice]:
    """Yield slices that cover all rows in order, of `size` rows each (by default
    `chunk_rows(rows)`); the last one may be shorter."""
    count, size = rows.shape[0], size or chunk_rows(rows)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def chunk_rows(logits: Tensor) -> int:
    """Return the number of rows in a chunk of `logits` (N, V): at least one, at most N."""
    elements = GPU_CHUNK_ELEMENTS if logits.is_cuda else CPU_CHUNK_ELEMENTS
    return max(1, min(logits.shape[0], elements // logits.shape[1]))
