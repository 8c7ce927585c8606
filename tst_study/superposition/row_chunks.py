"""Walk over the rows of a logits matrix so that scratch memory stays small."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CPU_CHUNK_ELEMENTS = 2**20
"""4 MiB of float32: scratch stays in the cache, and each chunk is long enough that threads which
wait for each other at its end do not show (flat optimum between 2**18 and 2**21)."""

ACCELERATOR_CHUNK_ELEMENTS = 2**26
"""256 MiB of float32: few enough launches, a small share of the logits of a large model."""


def row_chunks(logits: Tensor) -> Iterator[slice]:
    """Slices of consecutive rows that cover the rows of `logits` (N, V), in order."""
    rows = chunk_rows(logits)
    for start in range(0, logits.shape[0], rows):
        yield slice(start, min(start + rows, logits.shape[0]))


def chunk_rows(logits: Tensor) -> int:
    """Rows of `logits` (N, V) per chunk: at least one, at most N."""
    elements = CPU_CHUNK_ELEMENTS if logits.device.type == "cpu" else ACCELERATOR_CHUNK_ELEMENTS
    return max(1, min(logits.shape[0], elements // logits.shape[1]))


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 for float64: the precision of every reduction over a vocabulary."""
    return torch.float64 if dtype == torch.float64 else torch.float32
