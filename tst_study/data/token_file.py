"""Megatron's indexed token files: `<prefix>.bin` holds ids, `<prefix>.idx` where documents lie.

The layout is that of `megatron.core.datasets.indexed_dataset` (version 1), so files prepared here
feed Megatron's own tools, and files made by its `preprocess_data.py` are read here as they are.
With S sequences and D documents:

    .idx  magic (9 bytes), version u64 = 1, dtype code u8, S u64, D + 1 u64,
          sequence lengths int32[S], sequence byte offsets int64[S],
          first sequence of each document int64[D + 1] (the last entry is S)
    .bin  the ids of all sequences, one after the other

Everything is memory-mapped: opening a file costs the same memory whatever its size.
"""

import os
import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tst_study.atomic_files import disk_errors_named, written_atomically
from tst_study.errors import UserError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPE_OF_CODE: dict[int, type[np.integer[Any]]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
}
CODE_OF_DTYPE = {np.dtype(kind): code for code, kind in DTYPE_OF_CODE.items()}


def dtype_for_vocabulary(vocabulary_size: int) -> np.dtype[Any]:
    """Return the id type that Megatron picks: uint16 below 65,500 words, else int32."""
    return np.dtype(np.uint16 if vocabulary_size < 65_500 else np.int32)


def bin_path(prefix: str | Path) -> Path:
    """Return the file of ids of a prefix (`corpus/train` gives `corpus/train.bin`)."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    """Return the index file of a prefix."""
    return Path(f"{prefix}.idx")


class TokenFile:
    """A read-only, memory-mapped token file.

    Attributes:
        prefix: path without `.bin` or `.idx` (either ending is accepted and dropped).
        tokens: all ids of all documents in file order, shape (token_count,); a view of the mapped
            file, never a copy.
        token_count, document_count: how many tokens and documents there are.
        header_bytes: length of what lies before the ids in the `.bin`; Megatron writes no header.

    Raises:
        UserError: a file is missing, empty, cut off, or not a token file. Opening stays cheap: it
            looks only at the header, the sizes and the ends of the index.
    """

    def __init__(self, prefix: str | Path) -> None:
        name = str(prefix)
        self.prefix = Path(name[:-4] if name.endswith((".bin", ".idx")) else name)
        index = _mapped(idx_path(self.prefix), np.dtype(np.uint8))
        magic, version, code, sequences, entries = MAGIC, 0, 0, 0, 0
        if index.size >= HEADER.size:
            magic, version, code, sequences, entries = HEADER.unpack(index[: HEADER.size].tobytes())
        if (magic, version) != (MAGIC, VERSION) or code not in DTYPE_OF_CODE:
            raise self._damaged("is no index of token ids by Megatron (version 1)")
        if sequences == 0 or entries < 2:
            raise self._damaged("holds no documents")
        parts = np.cumsum([HEADER.size, 4 * sequences, 8 * sequences, 8 * entries])
        # Multimodal files append one mode byte per sequence; they are not text but do no harm.
        if index.size - parts[-1] not in (0, sequences):
            raise self._damaged(f"has {index.size} bytes, its header announces {parts[-1]}")
        lengths, offsets, documents = (index[a:b] for a, b in pairwise(parts))
        self._lengths: NDArray[np.int32] = lengths.view(np.int32)
        self._byte_offsets: NDArray[np.int64] = offsets.view(np.int64)
        self._document_sequences: NDArray[np.int64] = documents.view(np.int64)
        ids = _mapped(bin_path(self.prefix), np.dtype(DTYPE_OF_CODE[code]))
        self.header_bytes = int(self._byte_offsets[0])
        if not 0 <= self.header_bytes < ids.nbytes or self.header_bytes % ids.itemsize:
            raise self._damaged(f"says that the ids begin at byte {self.header_bytes:,}")
        self.tokens = ids[self.header_bytes // ids.itemsize :]
        self.token_count = int(self.tokens.size)
        self.document_count = entries - 1
        if self._document_sequences[0] != 0 or self._document_sequences[-1] != sequences:
            raise self._damaged("has documents that do not cover its sequences")
        last = int(self._byte_offsets[-1]) - self.header_bytes
        end = last // self.dtype.itemsize + int(self._lengths[-1])
        if end != self.token_count:
            raise self._damaged(f"announces {end} tokens, its .bin holds {self.token_count}")

    def _damaged(self, what: str) -> UserError:
        return UserError(
            f"{idx_path(self.prefix)}: {what}; the pair was cut off or does not belong together,"
            " prepare it again"
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an id on disk."""
        return self.tokens.dtype

    def document_starts(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the places where documents `first` … `stop - 1` begin, in tokens: (stop - first,).

        `stop` may be `document_count + 1`: the last entry is then `token_count`, so that
        differences of neighbours are document lengths.
        """
        sequences = self._document_sequences[first:stop]
        starts = np.full(sequences.size, self.token_count, dtype=np.int64)
        inside = sequences < self._byte_offsets.size
        in_bytes = self._byte_offsets[sequences[inside]] - self.header_bytes
        starts[inside] = in_bytes // self.dtype.itemsize
        return starts

    def check_index(self) -> None:
        """Raise `UserError` unless all lengths, offsets and documents of the index agree."""
        documents = self._document_sequences
        whole = bool((documents[1:] >= documents[:-1]).all())
        end = self.header_bytes
        for first in range(0, self._lengths.size, 1 << 20):
            lengths = self._lengths[first : first + (1 << 20)].astype(np.int64)
            ends = end + np.cumsum(lengths) * self.dtype.itemsize
            begins = self._byte_offsets[first : first + lengths.size]
            whole &= bool((lengths >= 0).all() and (begins == np.append(end, ends[:-1])).all())
            end = int(ends[-1])
        if not whole or end != self.header_bytes + self.tokens.nbytes:
            raise self._damaged("has lengths and offsets that do not agree")


def _mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        size = path.stat().st_size
        if size == 0 or size % dtype.itemsize:
            raise UserError(
                f"{path}: {size} bytes is not a whole, positive number of {dtype} values;"
                " the file is empty or cut off, prepare it again"
            )
        # The plain view drops memmap's per-slice bookkeeping, which would dominate reading.
        return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); `tst-study data prepare` makes token"
            " files, and the name to give is the path without .bin or .idx"
        ) from error


def write_tokens(
    prefix: str | Path,
    dtype: np.dtype[Any],
    documents: Iterable[tuple[NDArray[Any], Sequence[int] | NDArray[Any]]],
) -> None:
    """Write a token file. Its index appears last, so that a pair with an index is complete.

    Args:
        dtype: the type of the ids on disk, into which all of them must fit.
        documents: some documents at a time: their ids, concatenated, and how many each has.

    Raises `UserError` where the disk is full.
    """
    binary = bin_path(prefix)
    lengths: list[NDArray[np.int32]] = []
    with disk_errors_named(binary):
        binary.parent.mkdir(parents=True, exist_ok=True)
    with written_atomically(binary) as file:
        for ids, of_documents in documents:
            file.write(np.ascontiguousarray(ids, dtype=dtype).data)
            lengths.append(np.asarray(of_documents, dtype=np.int32))
        file.flush()
        os.fsync(file.fileno())
        # If the process dies between the two renames, an old index must not vouch for the new ids.
        idx_path(prefix).unlink(missing_ok=True)
    write_index(prefix, np.concatenate(lengths), dtype)


def write_index(
    prefix: str | Path, lengths: NDArray[np.int32], dtype: np.dtype[Any], header_bytes: int = 0
) -> None:
    """Write `<prefix>.idx` for documents of the given lengths, one sequence per document.

    `header_bytes`: how many bytes lie before the first id in the `.bin`.
    """
    offsets = np.zeros(lengths.size, dtype=np.int64)
    np.cumsum(lengths[:-1], dtype=np.int64, out=offsets[1:])
    documents = np.arange(lengths.size + 1, dtype=np.int64)
    with written_atomically(idx_path(prefix)) as file:
        code = CODE_OF_DTYPE[np.dtype(dtype)]
        file.write(HEADER.pack(MAGIC, VERSION, code, lengths.size, documents.size))
        offsets = header_bytes + offsets * np.dtype(dtype).itemsize
        for part in (lengths.astype(np.int32), offsets, documents):
            file.write(part.data)
