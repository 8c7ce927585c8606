"""Makes token files of other tools usable where they are (`tst-study data adopt`): those of
Megatron, nanoGPT, llm.c, modded-nanogpt and datatrove, and NumPy's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tst_study.data.integrity import record_of
from tst_study.data.manifest import MANIFEST, TOKENIZER, Manifest, TokenizerRecord, folder_manifest
from tst_study.data.preparation.text_tokenizers import read_tokenizer
from tst_study.data.token_file import CODE_OF_DTYPE, TokenFile, bin_path, idx_path, write_index
from tst_study.errors import UserError, one_of

IDS_AT_ONCE = 1 << 24
"""Number of ids that are searched at a time for the ends of documents."""
DTYPES = {**{str(dtype): dtype for dtype in CODE_OF_DTYPE}, "uint32": np.dtype(np.int32)}
"""Types of ids by name. Megatron has no uint32, but ids below 2³¹ have the same bytes in int32."""
HEADER_BYTES = 1024
"""Length of the header of llm.c and modded-nanogpt: 256 int32, of which the third is the number of
tokens."""
DTYPE_OF_MAGIC = {20240520: "uint16", 20240801: "uint32"}
"""The type of the ids in a file of llm.c or modded-nanogpt, by the first number of its header."""


def adopt(
    files: Sequence[str | Path],
    vocabulary_size: int | None = None,
    tokenizer: str | Path | None = None,
    end_of_document: int | None = None,
    dtype: str | None = None,
    header_bytes: int | None = None,
) -> Manifest:
    """Describe token files of one folder, as they are now, in the folder's manifest.

    Files that an earlier call described stay in the manifest. A later call for the same folder need
    not name the tokenizer or the size of the vocabulary again.

    A file without Megatron's index (`.idx`) gets one. In it, documents end where datatrove's own
    `.index` says, or else after each end-of-document id. If neither is known, the file is one
    document.

    Args:
        files: token files of one folder, each as a `.bin` or its path without `.bin`. A `.ds` of
            datatrove and a `.npy` get a link that ends in `.bin`.
        vocabulary_size: the number of ids of the tokenizer that made the file.
        tokenizer: the `tokenizer.json` of that tokenizer, or a folder with one. It tells the size
            of the vocabulary and the end-of-document id, and is copied beside the files.
        end_of_document: the id that ends a document. It goes with `vocabulary_size`, without
            `tokenizer`.
        dtype: the type of the ids in a file without an index, such as one of nanoGPT's. Files of
            llm.c, modded-nanogpt, datatrove and NumPy tell it themselves.
        header_bytes: how many bytes lie before the ids in a file without an index; by default 0,
            or as many as a header of llm.c, modded-nanogpt or NumPy has.

    Raises:
        UserError: a file is missing, damaged or in another folder; ids lie outside the vocabulary;
            the size of the vocabulary or the type of the ids is not known; a document is too long
            for Megatron's index; or the folder has a manifest of a preparation or of another
            tokenizer.
    """
    if end_of_document is not None and (tokenizer is not None or vocabulary_size is None):
        raise UserError("--end-of-document: goes with --vocabulary-size and without --tokenizer")
    if end_of_document is not None and not 0 <= end_of_document < (vocabulary_size or 0):
        raise UserError(
            f"--end-of-document: {end_of_document} is no id of a vocabulary of {vocabulary_size}"
        )
    named = [Path(file) for file in files]
    paths = [path if path.suffix in (".bin", ".ds", ".npy") else bin_path(path) for path in named]
    folder = paths[0].parent
    for path in paths:
        if path.parent != folder or not path.is_file():
            raise UserError(f"{path}: is no file in {folder}; name the .bin files of one folder")
    before = folder_manifest(folder)
    if before is not None and not before.request.get("adopted"):
        raise UserError(f"{folder / MANIFEST}: describes a prepared folder: nothing to adopt")
    known = None if tokenizer is None else read_tokenizer(tokenizer)
    if known is not None:
        there = folder / TOKENIZER
        if there.exists() and there.read_bytes() != known.json:
            raise UserError(f"{there}: is not the --tokenizer that was named; move it away")
        record = known.as_recorded()
    elif vocabulary_size is not None:
        record = TokenizerRecord(
            kind="unnamed", vocabulary_size=vocabulary_size, end_of_document=end_of_document
        )
    elif before is not None:
        record = before.tokenizer
    else:
        raise UserError("--vocabulary-size: missing; give it, or the --tokenizer that made the ids")
    if before is not None and before.tokenizer != record:
        raise UserError(
            f"{folder / MANIFEST}: describes {', '.join(before.splits)} with another tokenizer "
            f"({before.tokenizer_name}); name the same one, or delete the manifest and the "
            "indices (.idx) that adopt made, and adopt all"
        )
    splits, made = dict(before.splits) if before else {}, []
    try:
        for path in paths:
            prefix = path.with_suffix("")
            if not bin_path(prefix).exists():
                made.append(bin_path(prefix))
                bin_path(prefix).symlink_to(path.name)
            if not idx_path(prefix).exists():
                made.append(idx_path(prefix))
                _write_index(path, dtype, header_bytes, record.end_of_document)
            _check_index(prefix, dtype, header_bytes)
            splits[prefix.name] = record_of(prefix, record.vocabulary_size)
    except BaseException:  # a later call with other options must not find a wrong index
        for file in made:
            file.unlink(missing_ok=True)
        raise
    manifest = Manifest(request={"adopted": list(splits)}, tokenizer=record, splits=splits)
    return manifest.write(folder, known.json if known else None)


def _write_index(path: Path, dtype: str | None, header_bytes: int | None, end: int | None) -> None:
    """Write Megatron's index for a file that has none.

    `end`: the id that ends a document. The other arguments are those of `adopt`.
    """
    with open(path, "rb") as file:
        head = file.read(12).ljust(12, b"\0")
    magic, _, count = np.frombuffer(head, "<i4").tolist()
    announced, ends = None, None
    if magic in DTYPE_OF_MAGIC and header_bytes in (None, HEADER_BYTES):
        dtype, header_bytes, announced = dtype or DTYPE_OF_MAGIC[magic], HEADER_BYTES, count
    elif (theirs := path.with_name(f"{path.name}.index")).is_file():
        ends = np.fromfile(theirs, "<u8").astype(np.int64)
        announced = int(ends.max(initial=0))
        dtype = dtype or ("uint16" if path.stat().st_size == 2 * announced else "uint32")
    try:
        if head.startswith(b"\x93NUMPY") and header_bytes is None:
            array = np.load(path, mmap_mode="r")
            dtype, header_bytes = dtype or array.dtype.name, array.offset
        if dtype is None:
            index = idx_path(path.with_suffix(""))
            raise UserError(f"{index}: is missing; name the type of the ids in {path} with --dtype")
        kind = DTYPES[one_of(dtype, DTYPES, "--dtype")]
        ids = np.memmap(path, kind, "r", offset=header_bytes or 0)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as {dtype or 'NumPy'} ({error})") from error
    if announced not in (None, ids.size):
        raise UserError(f"{path}: has {ids.size:,} tokens, announces {announced:,}; copy it again")
    if kind.itemsize == 2 and ids.size > 2 and not ids[1 : 2 * IDS_AT_ONCE : 2].any():
        raise UserError(f"{path}: every second id is 0, as if ids had 4 bytes; try --dtype uint32")
    lengths = np.diff(_document_ends(ids, end) if ends is None else ends, prepend=0)
    if lengths.max() > np.iinfo(np.int32).max:
        raise UserError(
            f"{path}: a document has {lengths.max():,} tokens; name the id that ends a document by"
            " --end-of-document"
        )
    write_index(path.with_suffix(""), lengths.astype(np.int32), kind, header_bytes or 0)


def _check_index(prefix: Path, dtype: str | None, header_bytes: int | None) -> None:
    """Raise `UserError` if the index of a file says something else than the given options."""
    file = TokenFile(prefix)
    kind = file.dtype if dtype is None else DTYPES[one_of(dtype, DTYPES, "--dtype")]
    if kind != file.dtype or header_bytes not in (None, file.header_bytes):
        raise UserError(
            f"{idx_path(prefix)}: says that ids of type {file.dtype} begin at byte "
            f"{file.header_bytes}; if it is wrong, delete it, else leave out --dtype and "
            "--header-bytes"
        )


def _document_ends(ids: NDArray[Any], end: int | None) -> NDArray[np.int64]:
    """Find where documents end: for each, the place after its last token, (documents,).

    Ids after the last `end` form a document as well; without an `end`, all ids are one document.
    """
    starts = range(0, ids.size, IDS_AT_ONCE)
    ends = [at + 1 + np.flatnonzero(ids[at : at + IDS_AT_ONCE] == end) for at in starts]
    return np.unique(np.concatenate([*ends, [ids.size]])).astype(np.int64)
