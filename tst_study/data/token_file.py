"""Reads and writes Megatron's indexed token files: `<prefix>.bin` holds the token ids, and
`<prefix>.idx` tells where each document lies among them.

The layout is that of `megatron.core.datasets.indexed_dataset` (version 1). So Megatron's own tools
can read the files that are prepared here, and this package can read those that Megatron's
`preprocess_data.py` makes. With S sequences and D documents:

    .idx  magic (9 bytes), version 1 (u64), code of the ids' type (u8), S (u64), D + 1 (u64),
          length of each sequence in tokens int32[S], its first byte in the .bin int64[S],
          first sequence of each document int64[D + 1], where the last entry is S
    .bin  the ids of all sequences, one after the other

Files are memory-mapped, so that opening one takes the same memory whatever its size.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tst_study.atomic_files import written_atomically
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
"""The types of ids by Megatron's codes. Codes 6 and 7 stand for floating-point numbers, which
cannot be ids."""
CODE_OF_DTYPE = {np.dtype(kind): code for code, kind in DTYPE_OF_CODE.items()}


def dtype_for_vocabulary(vocabulary_size: int) -> np.dtype[Any]:
    """Return the type of ids that Megatron picks: uint16 for a vocabulary of fewer than 65,500
    entries, else int32."""
    return np.dtype(np.uint16 if vocabulary_size < 65_500 else np.int32)


def bin_path(prefix: str | Path) -> Path:
    """Return the path of a prefix's file of ids (`corpus/train` gives `corpus/train.bin`)."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    """Return the path of a prefix's index (`corpus/train` gives `corpus/train.idx`)."""
    return Path(f"{prefix}.idx")


class TokenFile:
    """A read-only, memory-mapped token file.

    Attributes:
        prefix: the path without `.bin` or `.idx`. The constructor also takes a path with either
            ending, and drops it.
        tokens: the ids of all documents in file order, shape (token_count,); a view of the mapped
            file, not a copy.
        token_count, document_count: how many tokens and documents there are.
        header_bytes: how many bytes lie before the first id in the `.bin`. Megatron writes no
            header; other tools' files, which `tst-study data adopt` describes, may have one.

    Raises:
        UserError: a file is missing, empty, cut off, or not a token file. To keep opening cheap,
            only the index's header, the sizes of both files, and the first and last entries of the
            index are looked at; `check_index` looks at the rest.
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
        # The index of a multimodal file ends with one more byte per sequence, its mode. These bytes
        # are ignored.
        if index.size - parts[-1] not in (0, sequences):
            raise self._damaged(f"has {index.size} bytes, but its header announces {parts[-1]}")
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
        """Return where documents `first` … `stop - 1` begin, (stop - first,): the number of each
        one's first token, counted from the beginning of the file.

        `stop` may be `document_count + 1`. The last entry is then `token_count`, so that the
        differences of neighbouring entries are the lengths of the documents.
        """
        sequences = self._document_sequences[first:stop]
        starts = np.full(sequences.size, self.token_count, dtype=np.int64)
        inside = sequences < self._byte_offsets.size
        in_bytes = self._byte_offsets[sequences[inside]] - self.header_bytes
        starts[inside] = in_bytes // self.dtype.itemsize
        return starts

    def check_index(self) -> None:
        """Raise `UserError` unless all lengths and offsets of sequences and all first sequences of
        documents in the index agree with each other and with the size of the `.bin`."""
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
        # As a plain array: np.memmap does bookkeeping for every slice, which would take most of the
        # time of reading.
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
        documents: the documents in batches. Each batch is a pair: the ids of its documents,
            concatenated, and the number of ids in each document.

    Raises `UserError` if the disk is full or the files cannot be written.
    """
    binary = bin_path(prefix)
    lengths: list[NDArray[np.int32]] = []
    with written_atomically(binary) as file:
        for ids, of_documents in documents:
            file.write(np.ascontiguousarray(ids, dtype=dtype).data)
            lengths.append(np.asarray(of_documents, dtype=np.int32))
        # Both files are written beside their place and then renamed. If the process dies between
        # the two renames, an old index must not vouch for the new ids.
        idx_path(prefix).unlink(missing_ok=True)
    write_index(prefix, np.concatenate(lengths), dtype)


def write_index(
    prefix: str | Path, lengths: NDArray[np.int32], dtype: np.dtype[Any], header_bytes: int = 0
) -> None:
    """Write `<prefix>.idx` for documents of the given lengths in tokens. Each document is one
    sequence.

    `dtype`: the type of the ids in the `.bin`. `header_bytes`: how many bytes lie before the first
    of them. Raises `UserError` if the file cannot be written.
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
