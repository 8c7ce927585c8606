"""The manifest of a prepared folder, and how paths in a config name its token files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError

from tst_study.atomic_files import write_json, written_atomically
from tst_study.config.schema import Strict
from tst_study.data.token_file import TokenFile, idx_path
from tst_study.errors import UserError, first_line, first_problem

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
UNFINISHED = ".unfinished"
"""The subfolder of unfinished work in a folder that is being prepared."""
SPLITS = ("train", "validation")

Count = Annotated[int, Field(ge=0)]


class NoTokenFilesError(UserError):
    """A corpus has not been prepared, or lies elsewhere."""


class SourceRecord(Strict):
    """One source as it was read. `sha256`, `bytes` and `modified_ns` are those of the file on disk,
    compressed or not; None for a dataset of the Hugging Face hub."""

    name: str
    split: str
    bytes: Count | None = None
    sha256: str | None = None
    modified_ns: int | None = None


class TokenizerRecord(Strict):
    kind: str
    """"bytes", "bpe", "huggingface", "generated" where words are numbers, or "unnamed"."""
    fingerprint: str | None = None
    """The sha256 of `tokenizer.json`; None where there is none."""
    vocabulary_size: int
    end_of_document: int | None = None
    """The id that ends documents; None where there is none or it is not known."""
    end_of_document_token: str | None = None


class SplitRecord(Strict):
    """One pair of token files."""

    documents: Count
    tokens: Count
    """End-of-document tokens included."""
    text_bytes: Count | None
    """UTF-8 bytes of the documents' text; None where they are not known (adopted token files) or
    there never was a text (a generated language)."""
    dtype: str
    fingerprint: str
    """See `integrity.fingerprint`."""
    sha256: str
    """sha256 of the ids in the `.bin`."""
    blocks: Annotated[str, Field(pattern="^([0-9a-f]{8})+$")]
    """CRC-32 of each 4 MiB of the ids in the `.bin`, 8 hex digits each."""
    text_sha256: str | None = None
    """sha256 over the sha256 digests of the documents' texts, in order; None where they are not
    known."""
    empty_documents: Count = 0
    """Number of documents without text, which were left out."""

    @property
    def bytes_per_token(self) -> float | None:
        """UTF-8 bytes of text per token, by which nats per token become bits per byte; None where
        `text_bytes` is None."""
        return None if self.text_bytes is None else self.text_bytes / self.tokens


class GeneratedRecord(Strict):
    """How a language was generated."""

    parameters: dict[str, Any]
    entropies: dict[str, float | str]
    """`optimal_validation_loss`, the mean loss of the best possible predictor on the validation
    text, and its standard error, both in nats per token; `unit` says so."""


class Manifest(Strict):
    """`manifest.json` of a prepared folder."""

    schema_version: Literal[1] = 1
    request: dict[str, Any]
    """The request for which the folder was prepared: a second call with the same request has
    nothing to do. `{"adopted": [splits]}` for token files that other tools made."""
    sources: tuple[SourceRecord, ...] = ()
    tokenizer: TokenizerRecord
    splits: dict[str, SplitRecord]
    licence: str | None = None
    notes: str | None = None
    generated: GeneratedRecord | None = None

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's kind and size for messages, such as `bpe of 1,024 tokens`."""
        return f"{self.tokenizer.kind} of {self.tokenizer.vocabulary_size:,} tokens"

    def write(self, folder: Path, tokenizer: bytes | None = None) -> Self:
        """Complete a folder of token files with its `tokenizer.json`, if any, and this manifest."""
        if tokenizer is not None:
            with written_atomically(folder / TOKENIZER) as file:
                file.write(tokenizer)
        write_json(folder / MANIFEST, self.model_dump())
        return self


def read_manifest(folder: str | Path) -> Manifest:
    """Read the manifest of a prepared folder.

    Raises `UserError` where there is none, or it is damaged or from another version.
    """
    path = Path(folder) / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: no such file; `tst-study data prepare` makes prepared folders"
        ) from error
    except (OSError, ValidationError) as error:
        reason = first_problem(error) if isinstance(error, ValidationError) else first_line(error)
        raise UserError(f"{path}: cannot be used ({reason}); prepare the folder again") from error


def token_prefix(path: str | Path, split: str = "train") -> Path:
    """Return the token-file prefix of a split: in `path` if that is a prepared folder, else `path`
    itself, without `.bin` or `.idx`, whatever the split.

    Raises `NoTokenFilesError` where `path` is neither a folder with that split nor the prefix of a
    `.bin/.idx` pair.
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
    """Return the token-file prefix of the `validation` split in a corpus' folder, or beside a
    corpus that is a `.bin/.idx` pair.

    Raises `NoTokenFilesError` where there is none. `corpus` itself, which is trained on, does not
    count as its held-out text.
    """
    path = Path(corpus)
    prefix = (path if path.is_dir() else path.parent) / "validation"
    if not idx_path(prefix).exists() or prefix in (path, path.with_suffix("")):
        raise NoTokenFilesError(
            f"{corpus}: no held-out text lies beside it; name one (data.validation, or"
            " --held-out of `tst-study evaluate`)"
        )
    return prefix


def folder_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a folder; None where there is none.

    Raises `UserError` where it is damaged, and `NoTokenFilesError` where the folder's preparation
    has not ended.
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
    """A token file, and the manifest beside it."""

    file: TokenFile
    manifest: Manifest

    @property
    def record(self) -> SplitRecord:
        return self.manifest.splits[self.file.prefix.name]


def open_split(prefix: str | Path) -> Split:
    """Open a token file together with its manifest, without comparing the two (see `integrity`).

    Raises `UserError` where the file cannot be read (see `TokenFile`) or the folder's preparation
    has not ended, and where the manifest is missing, damaged or of other files, because then
    nothing could show that ids have changed.
    """
    file = TokenFile(prefix)
    return Split(file, manifest_of(file.prefix))


def manifest_of(prefix: str | Path) -> Manifest:
    """Read the manifest beside a token file, which is not opened. Raises `UserError` for a manifest
    as `open_split` does."""
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
