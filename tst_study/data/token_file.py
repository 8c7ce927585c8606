"""Megatron's indexed token files: `<prefix>.bin` holds ids, `<prefix>.idx` where documents lie.

The layout is that of `megatron.core.datasets.indexed_dataset` (version 1), so files prepared here
feed Megatron's own tools and files made by its `preprocess_data.py` are read here as they are:

    .idx  magic (9 bytes), version u64 = 1, dtype code u8, S u64, D + 1 u64,
          sequence lengths int32[S], sequence byte offsets int64[S],
          first sequence of each document int64[D + 1] (the last entry is S)
    .bin  the ids of all sequences, one after the other

Everything is memory-mapped: opening a file costs the same memory whatever its size.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

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
    """The id type that Megatron picks for a vocabulary: uint16 below 65,500 words, else int32."""
    return np.dtype(np.uint16 if vocabulary_size < 65_500 else np.int32)


def bin_path(prefix: str | Path) -> Path:
    """The file of ids of a prefix (`corpus/train` gives `corpus/train.bin`)."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    """The index file of a prefix."""
    return Path(f"{prefix}.idx")


class TokenFile:
    """A read-only, memory-mapped token file.

    Attributes:
        prefix: path without `.bin` or `.idx` (either ending is accepted and dropped).
        tokens: all ids of all documents in file order, shape (token_count,); a view on the map,
            never a copy.
        token_count, document_count: their numbers.

    Raises:
        UserError: a file is missing, empty, cut off, or not a token file. Only the header, the
            sizes and the ends of the index are looked at, so that opening stays cheap.
    """

    def __init__(self, prefix: str | Path) -> None:
        name = str(prefix)
        self.prefix = Path(name[:-4] if name.endswith((".bin", ".idx")) else name)
        index = self._mapped(idx_path(self.prefix), np.dtype(np.uint8))
        dtype, sequence_count, entries = self._read_header(index)
        lengths_end = HEADER.size + 4 * sequence_count
        offsets_end = lengths_end + 8 * sequence_count
        # Multimodal files append one mode byte per sequence; they are not text but do no harm.
        if index.size not in (
            offsets_end + 8 * entries,
            offsets_end + 8 * entries + sequence_count,
        ):
            raise UserError(
                f"{idx_path(self.prefix)}: {index.size} bytes, but its header announces"
                f" {offsets_end + 8 * entries}; it was cut off, prepare it again"
            )
        self._lengths: NDArray[np.int32] = index[HEADER.size : lengths_end].view(np.int32)
        self._byte_offsets: NDArray[np.int64] = index[lengths_end:offsets_end].view(np.int64)
        self._document_sequences: NDArray[np.int64] = index[
            offsets_end : offsets_end + 8 * entries
        ].view(np.int64)
        self.tokens: NDArray[Any] = self._mapped(bin_path(self.prefix), dtype)
        self.token_count = int(self.tokens.size)
        self.document_count = entries - 1
        self._check_ends(sequence_count)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an id on disk."""
        return self.tokens.dtype

    def document_starts(self, first: int, stop: int) -> NDArray[np.int64]:
        """Where documents `first` … `stop - 1` begin, in tokens: shape (stop - first,), int64.

        `stop` may be `document_count + 1`: the last entry is then `token_count`, so that
        differences of neighbours are document lengths.
        """
        sequences = self._document_sequences[first:stop]
        starts = np.full(sequences.size, self.token_count, dtype=np.int64)
        inside = sequences < self._byte_offsets.size
        starts[inside] = self._byte_offsets[sequences[inside]] // self.dtype.itemsize
        return starts

    def check_index(self) -> None:
        """Raises `UserError` unless every length, offset and document of the index agrees."""
        documents = self._document_sequences
        whole = bool((documents[1:] >= documents[:-1]).all())
        end = 0
        for first in range(0, self._lengths.size, 1 << 20):
            lengths = self._lengths[first : first + (1 << 20)].astype(np.int64)
            ends = end + np.cumsum(lengths) * self.dtype.itemsize
            begins = self._byte_offsets[first : first + lengths.size]
            whole &= bool((lengths >= 0).all() and (begins == np.append(end, ends[:-1])).all())
            end = int(ends[-1])
        if not whole or end != self.tokens.nbytes:
            raise UserError(
                f"{idx_path(self.prefix)}: its lengths and offsets do not agree; the index is "
                "damaged, prepare it again"
            )

    def _mapped(self, path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
        try:
            size = path.stat().st_size
            if size == 0 or size % dtype.itemsize:
                raise UserError(
                    f"{path}: {size} bytes is not a whole, positive number of {dtype} values;"
                    " the file is empty or cut off, prepare it again"
                )
            # The plain view drops memmap's per-slice bookkeeping, which would dominate reading.
            return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)
        except FileNotFoundError as error:
            raise UserError(
                f"{path}: no such file; `tst-study data prepare` makes token files, and the name"
                " to give is the path without .bin or .idx"
            ) from error
        except (PermissionError, IsADirectoryError) as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error

    def _read_header(self, index: NDArray[Any]) -> tuple[np.dtype[Any], int, int]:
        path = idx_path(self.prefix)
        if index.size < HEADER.size or bytes(index[:9]) != MAGIC:
            raise UserError(f"{path}: is not a Megatron token index; give a .bin/.idx pair")
        _, version, code, sequence_count, entries = HEADER.unpack(index[: HEADER.size].tobytes())
        if version != VERSION:
            raise UserError(f"{path}: format version {version} is unknown, only 1 can be read")
        if code not in DTYPE_OF_CODE:
            raise UserError(f"{path}: dtype code {code} holds no integers, so no token ids")
        if sequence_count == 0 or entries < 2:
            raise UserError(f"{path}: holds no documents; prepare it again from a source with text")
        return np.dtype(DTYPE_OF_CODE[code]), sequence_count, entries

    def _check_ends(self, sequence_count: int) -> None:
        documents = self._document_sequences
        if documents[0] != 0 or documents[-1] != sequence_count:
            raise UserError(
                f"{idx_path(self.prefix)}: its documents do not cover its sequences; the index is"
                " damaged, prepare it again"
            )
        itemsize = self.dtype.itemsize
        end = int(self._byte_offsets[-1]) // itemsize + int(self._lengths[-1])
        if self._byte_offsets[0] != 0 or end != self.token_count:
            raise UserError(
                f"{bin_path(self.prefix)}: holds {self.token_count} tokens, its index announces"
                f" {end}; the pair does not belong together or was cut off, prepare it again"
            )


class TokenWriter:
    """Takes documents for a token file; see `writing_tokens`."""

    def __init__(self, file: BinaryIO, dtype: np.dtype[Any]) -> None:
        self.lengths: list[NDArray[np.int32]] = []
        self._dtype = np.dtype(dtype)
        self._file = file

    def add_documents(self, tokens: NDArray[Any], lengths: Sequence[int] | NDArray[Any]) -> None:
        """Append documents: their ids one after the other, and how many ids each one has.

        Raises `ValueError` where the lengths do not add up to the ids, or an id does not fit the
        type.
        """
        counts = np.asarray(lengths, dtype=np.int32)
        if int(counts.sum(dtype=np.int64)) != tokens.size:
            raise ValueError(f"lengths add up to {counts.sum()}, got {tokens.size} ids")
        limits = np.iinfo(self._dtype)
        if tokens.size and not limits.min <= tokens.min() <= tokens.max() <= limits.max:
            raise ValueError(f"an id up to {tokens.max()} does not fit {self._dtype}")
        self._file.write(np.ascontiguousarray(tokens, dtype=self._dtype).data)
        self.lengths.append(counts)


@contextmanager
def writing_tokens(prefix: str | Path, dtype: np.dtype[Any]) -> Iterator[TokenWriter]:
    """Write a token file document by document; both its files appear at the end, or neither.

    The index comes last: a pair whose `.idx` exists is complete.

    Raises `UserError` where the disk is full, or nothing was written.
    """
    binary, index = bin_path(prefix), idx_path(prefix)
    with disk_errors_named(binary):
        binary.parent.mkdir(parents=True, exist_ok=True)
    with written_atomically(binary) as file:
        writer = TokenWriter(file, dtype)
        yield writer
        if file.tell() == 0:
            raise UserError(f"{prefix}: nothing to write; the source is empty")
        file.flush()
        os.fsync(file.fileno())
        # A stale index must not vouch for the new ids if we die between the two renames.
        index.unlink(missing_ok=True)
    write_index(prefix, np.concatenate(writer.lengths), dtype)


def write_index(prefix: str | Path, lengths: NDArray[np.int32], dtype: np.dtype[Any]) -> None:
    """Write `<prefix>.idx` for documents of the given lengths (one sequence per document)."""
    offsets = np.zeros(lengths.size, dtype=np.int64)
    np.cumsum(lengths[:-1], dtype=np.int64, out=offsets[1:])
    documents = np.arange(lengths.size + 1, dtype=np.int64)
    with written_atomically(idx_path(prefix)) as file:
        code = CODE_OF_DTYPE[np.dtype(dtype)]
        file.write(HEADER.pack(MAGIC, VERSION, code, lengths.size, documents.size))
        for part in (lengths.astype(np.int32), offsets * np.dtype(dtype).itemsize, documents):
            file.write(part.data)
