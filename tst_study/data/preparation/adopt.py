"""A manifest for token files that were made elsewhere: Megatron's pairs, or bare files of ids."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tst_study.data.integrity import record_of
from tst_study.data.manifest import MANIFEST, Manifest, TokenizerRecord, folder_manifest
from tst_study.data.preparation.text_tokenizers import read_tokenizer
from tst_study.data.token_file import CODE_OF_DTYPE, bin_path, idx_path, write_index
from tst_study.errors import UserError, one_of

IDS_AT_ONCE = 1 << 24
DTYPES = [str(dtype) for dtype in CODE_OF_DTYPE]


def adopt(
    files: Sequence[str | Path],
    vocabulary_size: int | None = None,
    *,
    tokenizer: str | Path | None = None,
    end_of_document: int | None = None,
    dtype: str | None = None,
) -> Manifest:
    """Describe the token files of one folder, as they are now, in a manifest beside them.

    Args:
        files: all that the folder is to be read for, with or without `.bin`.
        vocabulary_size, end_of_document: of the tokenizer that made the ids; known from its
            `tokenizer.json` where `tokenizer` names one, which is copied beside the files.
        dtype: how a file without an index stores its ids, as nanoGPT's `.bin` does. It gets an
            index, in which a document goes up to each `end_of_document`.

    Raises:
        UserError: a file is missing or damaged, ids lie outside the vocabulary, or the folder has
            the manifest of a preparation.
    """
    prefixes = [Path(f).with_suffix("") if Path(f).suffix == ".bin" else Path(f) for f in files]
    folder = prefixes[0].parent
    if any(prefix.parent != folder for prefix in prefixes):
        raise UserError(f"{prefixes[-1]}: lies in another folder than {prefixes[0]}; one at a time")
    for prefix in prefixes:
        if not bin_path(prefix).is_file():
            raise UserError(f"{bin_path(prefix)}: is no file; name the .bin files of one folder")
    before = folder_manifest(folder)
    if before is not None and not before.request.get("adopted"):
        raise UserError(f"{folder / MANIFEST}: is of a prepared folder, which needs no other")
    known = None if tokenizer is None else read_tokenizer(tokenizer)
    if known is not None:
        record = known.as_recorded()
    elif vocabulary_size is None:
        raise UserError("--vocabulary-size: missing; give it, or the --tokenizer that made the ids")
    else:
        record = TokenizerRecord(
            kind="unnamed", vocabulary_size=vocabulary_size, end_of_document=end_of_document
        )
    for prefix in prefixes:
        if not idx_path(prefix).exists():
            _write_index(prefix, dtype, record.end_of_document)
    manifest = Manifest(
        request={"adopted": [prefix.name for prefix in prefixes]},
        tokenizer=record,
        splits={prefix.name: record_of(prefix, record.vocabulary_size) for prefix in prefixes},
    )
    return manifest.write(folder, known.json if known else None)


def _write_index(prefix: Path, dtype: str | None, end_of_document: int | None) -> None:
    path = bin_path(prefix)
    if dtype is None:
        raise UserError(f"{idx_path(prefix)}: is missing; say how the ids lie in {path} by --dtype")
    kind = np.dtype(one_of(dtype, DTYPES, "--dtype"))
    try:
        ids = np.memmap(path, kind, "r")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as {kind} ({error})") from error
    lengths = np.diff(_document_ends(ids, end_of_document), prepend=0)
    if lengths.max() > np.iinfo(np.int32).max:
        raise UserError(
            f"{path}: a document has {lengths.max():,} tokens; name the id that ends a document by"
            " --end-of-document"
        )
    write_index(prefix, lengths.astype(np.int32), kind)


def _document_ends(ids: NDArray[Any], end: int | None) -> NDArray[np.int64]:
    """(documents,) places after the last token of each; what no end follows is one, too."""
    starts = range(0, ids.size, IDS_AT_ONCE)
    found = [at + 1 + np.flatnonzero(ids[at : at + IDS_AT_ONCE] == end) for at in starts]
    return np.unique(np.concatenate([*found, [ids.size]])).astype(np.int64)
