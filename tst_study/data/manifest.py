"""The manifest of a prepared folder, and how paths in a config name its token files.

A prepared folder holds the token files of one corpus. `tst-study data prepare` writes them, or
`data adopt` describes files that other tools made. `manifest.json` says what they are.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter

from tst_study.atomic_files import read_json, write_json, written_atomically
from tst_study.config.schema import Strict
from tst_study.data.token_file import TokenFile, idx_path
from tst_study.errors import UserError

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
UNFINISHED = ".unfinished"
"""The subfolder that holds unfinished work while a folder is being prepared."""
SPLITS = ("train", "validation")
"""The token files that a preparation writes: text to train on, and held-out text."""

Count = Annotated[int, Field(ge=0)]


class NoTokenFilesError(UserError):
    """There are no token files at a path, or their preparation has not ended."""


class SourceRecord(Strict):
    """A file, or a dataset of the Hugging Face hub, from which documents were read.

    `sha256`, `bytes` and `modified_ns` describe the file as it is on disk; a compressed file is not
    unpacked first. They are None for a dataset.
    """

    name: str
    split: str
    """The split for which it was given; part of its documents may be held out."""
    bytes: Count | None = None
    sha256: str | None = None
    modified_ns: int | None = None
    """Time of the last change, in nanoseconds since 1970."""


class TokenizerRecord(Strict):
    """The tokenizer that made the ids of a folder."""

    kind: str
    """"bytes", "bpe" (trained on the corpus), "huggingface", "generated" (a generated language,
    whose words are numbers), or "unnamed" (adopted token files without a tokenizer)."""
    fingerprint: str | None = None
    """The sha256 of `tokenizer.json`; None if there is no such file."""
    vocabulary_size: int
    end_of_document: int | None = None
    """The id that ends documents; None if there is none or it is not known."""
    end_of_document_token: str | None = None
    """How the vocabulary spells that id; None if it is not known."""


class SplitRecord(Strict):
    """One token file, that is, a pair of `.bin` and `.idx`."""

    documents: Count
    tokens: Count
    """End-of-document tokens included."""
    text_bytes: Count | None
    """UTF-8 bytes of the documents' text; None if they are not known (adopted token files) or there
    never was a text (a generated language)."""
    dtype: str
    fingerprint: str
    """See `integrity.fingerprint`."""
    sha256: str
    """sha256 of the ids in the `.bin`."""
    blocks: Annotated[str, Field(pattern="^([0-9a-f]{8})+$")]
    """The CRC-32 of each 4 MiB of the ids in the `.bin`, 8 hex digits each."""
    text_sha256: str | None = None
    """sha256 of the concatenated sha256 digests of the documents' texts; None if the texts are not
    known."""
    empty_documents: Count = 0
    """The number of documents without text, which were left out."""

    @property
    def bytes_per_token(self) -> float | None:
        """UTF-8 bytes of text per token, with which a loss in nats per token is converted to bits
        per byte; None if `text_bytes` is None."""
        return None if self.text_bytes is None else self.text_bytes / self.tokens


class GeneratedRecord(Strict):
    """How a language was generated (`preparation/generated_language.py`)."""

    parameters: dict[str, Any]
    """The fields of its `LanguageParameters`."""
    entropies: dict[str, float | str]
    """`optimal_validation_loss` is the mean loss, in nats per token, of the best possible predictor
    on the validation text. Earlier versions also recorded its standard error and the unit."""


class Manifest(Strict):
    """The content of the `manifest.json` of a prepared folder."""

    schema_version: Literal[1] = 1
    request: dict[str, Any]
    """The sources and options with which the folder was prepared. A later call with the same
    request has nothing to do. The request of token files that other tools made is
    `{"adopted": [splits]}`."""
    sources: tuple[SourceRecord, ...] = ()
    tokenizer: TokenizerRecord
    splits: dict[str, SplitRecord]
    """The token files by their name without ending, such as `train`."""
    licence: str | None = None
    notes: str | None = None
    generated: GeneratedRecord | None = None

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's kind and size for messages, such as `bpe of 1,024 tokens`."""
        return f"{self.tokenizer.kind} of {self.tokenizer.vocabulary_size:,} tokens"

    def write(self, folder: Path, tokenizer: bytes | None = None) -> Self:
        """Write this manifest into a folder. If the content of a `tokenizer.json` is given, that
        file is written first. Returns the manifest."""
        if tokenizer is not None:
            with written_atomically(folder / TOKENIZER) as file:
                file.write(tokenizer)
        write_json(folder / MANIFEST, self.model_dump())
        return self


_MANIFEST = TypeAdapter(Manifest)


def read_manifest(folder: str | Path) -> Manifest:
    """Read the manifest of a prepared folder.

    Raises `UserError` if there is none, or if it is damaged or of another schema version.
    """
    path = Path(folder) / MANIFEST
    remedy = "delete the folder and prepare it again"
    manifest = read_json(path, _MANIFEST, remedy) if path.parent.is_dir() else None
    if manifest is None:
        raise UserError(f"{path}: no such file; `tst-study data prepare` makes prepared folders")
    return manifest


def token_prefix(path: str | Path, split: str = "train") -> Path:
    """Return the prefix of a token file, that is, its path without `.bin` or `.idx`.

    If `path` is a folder, the prefix is that of the split in the folder. Otherwise `path` itself
    names the token file, with or without ending, and `split` has no effect.

    Raises `NoTokenFilesError` if there is no index (`.idx`) of this prefix.
    """
    path = Path(path)
    if path.suffix in (".bin", ".idx"):
        path = path.with_suffix("")
    prefix = path / split if path.is_dir() else path
    if not idx_path(prefix).exists():
        raise NoTokenFilesError(
            f"{path}: holds no token files of the split {split!r}; give a folder made by"
            " `tst-study data prepare`, or the path of a Megatron .bin/.idx pair without its ending"
        )
    return prefix


def held_out_prefix(corpus: str | Path) -> Path:
    """Return the prefix of the token file `validation` in the folder of a corpus, or beside a
    corpus that is given as a prefix.

    Raises `NoTokenFilesError` if there is none, or if it is `corpus` itself, which is trained on.
    """
    path = Path(corpus)
    prefix = (path if path.is_dir() else path.parent) / "validation"
    if not idx_path(prefix).exists() or prefix in (path, path.parent / path.stem):
        raise NoTokenFilesError(
            f"{corpus}: no held-out text lies beside it; name one (data.validation, or"
            " --held-out of `tst-study evaluate`)"
        )
    return prefix


def folder_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a folder; None if there is none.

    Raises `UserError` if it is damaged or of another schema version, and `NoTokenFilesError` if the
    preparation of the folder has begun but not ended.
    """
    if (folder / MANIFEST).exists():
        return read_manifest(folder)
    if (folder / UNFINISHED).exists():
        raise NoTokenFilesError(
            f"{folder}: its preparation has not ended; wait, or give the same command again that"
            " began it"
        )
    return None


@dataclass(frozen=True)
class Split:
    """A token file, and the manifest beside it, which describes it."""

    file: TokenFile
    manifest: Manifest

    @property
    def record(self) -> SplitRecord:
        return self.manifest.splits[self.file.prefix.name]


def open_split(prefix: str | Path) -> Split:
    """Open a token file together with its manifest, without comparing the two (see `integrity`).

    Raises `UserError` if the file cannot be opened (see `TokenFile`), or if `manifest_of` finds no
    usable manifest.
    """
    file = TokenFile(prefix)
    return Split(file, manifest_of(file.prefix))


def manifest_of(prefix: str | Path) -> Manifest:
    """Read the manifest beside a token file, without opening the token file.

    Raises `UserError` if the preparation of the folder has not ended, or if the manifest is
    missing, damaged, or does not describe this token file. Without a manifest nothing could show
    that ids have changed.
    """
    prefix = Path(prefix)
    manifest = folder_manifest(prefix.parent)
    if manifest is None or prefix.name not in manifest.splits:
        path = prefix.parent / MANIFEST
        raise UserError(
            f"{path}: {'is missing' if manifest is None else f'does not describe {prefix.name}'};"
            " restore it, or describe files made elsewhere with `tst-study data adopt"
            f" {prefix}.bin --vocabulary-size V`"
        )
    return manifest
