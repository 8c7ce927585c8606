"""The request that a prepared folder answers."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tst_study.data.integrity import file_sha256
from tst_study.data.manifest import TOKENIZER
from tst_study.data.preparation.text_sources import Source, find_sources
from tst_study.errors import UserError

BOOKS = "books"
BOOKS_FOLDER = Path(__file__).resolve().parents[3] / "data" / "books"
DEFAULT_VALIDATION_SHARE = 0.01


@dataclass(frozen=True)
class Request:
    """The sources and options of a corpus: equal requests on equal sources make equal token files,
    byte by byte."""

    sources: Sequence[str]
    """Training text: names that `find_sources` takes, or "books" alone, the bundled corpus, which
    brings its own validation text."""
    tokenizer: str = "bpe:1024"
    """"bytes"; "bpe:V", trained on about the first 4,096·V bytes of the training text; the path of
    a `tokenizer.json` or of a folder with one; or an id of the Hugging Face hub."""
    validation: Sequence[str] = ()
    """Held-out text, named as `sources` are. Without it, `validation_share` of the documents are
    held out."""
    validation_share: float | None = None
    """Share of the documents to hold out where there is no `validation`, between 0 and 1; 0.01 by
    default. They are picked by the hash of their text (see `is_held_out`)."""
    text_field: str = "text"
    """The JSON field or dataset column with the text."""
    limit_bytes: int | None = None
    """Stop after about this many bytes of training records; for quick trials."""
    licence: str | None = None
    """Licence of the text, for the manifest."""
    notes: str | None = None
    """Remarks on the text, for the manifest."""

    def resolved(self) -> Self:
        """Name the files of the bundled corpus, and fill in the share that is held out.

        Raises `UserError` where the bundled corpus is not there, or held-out text is given both by
        files and by a share.
        """
        request = self
        if list(self.sources) == [BOOKS]:
            books = bundled_books()
            request = dataclasses.replace(
                self,
                sources=books.sources,
                validation=self.validation or books.validation,
                licence=books.licence,
                notes=books.notes,
            )
        share = request.validation_share
        if request.validation and share is not None:
            raise UserError(f"--validation-share {share:g}: leave it out or --validation")
        if request.validation or share is not None:
            return request
        return dataclasses.replace(request, validation_share=DEFAULT_VALIDATION_SHARE)

    def sources_besides(self, to: Path) -> list[Source]:
        """Find the sources in reading order, without what the preparation itself writes to `to`.

        Raises `UserError` for a source that cannot be read, or is both training and held-out text.
        """
        train = find_sources(self.sources, "train", besides=to)
        held = find_sources(self.validation, "validation", besides=to)
        both = {source.place for source in train} & {source.place for source in held}
        if both:
            raise UserError(
                f"source {min(both)}: is both training and held-out text; name files that are one"
                " of the two"
            )
        return [*train, *held]

    def as_recorded(self, sources: Sequence[Source]) -> dict[str, Any]:
        """Return plain JSON values for the manifest, in which sources stand by name and size, and
        a tokenizer's file by its sha256."""
        records = [source.record for source in sources]
        return {
            "sources": [[record.split, record.name, record.bytes] for record in records],
            "tokenizer": _stable_name(self.tokenizer),
            "validation_share": self.validation_share,
            "text_field": self.text_field,
            # A removed option: its default keeps requests equal to those that recorded it.
            "end_of_document": None,
            "limit_bytes": self.limit_bytes,
            "licence": self.licence,
            "notes": self.notes,
        }


def bundled_books(shards: int | None = None) -> Request:
    """Request the English prose of the checkout: the first `shards` of its five training files, or
    all, and its validation file.

    Raises `UserError` where its files are not there.
    """
    train = [str(path) for path in sorted(BOOKS_FOLDER.glob("books.train-*.jsonl.xz"))]
    validation = BOOKS_FOLDER / "books.val.jsonl.xz"
    if not train or not validation.exists():
        raise UserError(
            f"source books: {BOOKS_FOLDER} does not hold the bundled books; run from a checkout of"
            " the repository, or give files of your own"
        )
    return Request(
        train[:shards],
        validation=[str(validation)],
        licence="public domain",
        notes="English prose of 1700 to 1928; see data/books/README.md",
    )


def _stable_name(tokenizer: str) -> str:
    path = Path(tokenizer)
    if path.is_dir():
        path = path / TOKENIZER
    return f"sha256:{file_sha256(path)}" if path.is_file() else tokenizer
