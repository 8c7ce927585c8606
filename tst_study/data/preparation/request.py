"""The request for a corpus: which text to tokenise, with which tokenizer and options.

`tst-study data prepare` and the corpora of the studies build a `Request`, and `prepare` carries it
out. The manifest of the prepared folder records the request, so that a later call with the same one
has nothing to do.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tst_study.data.integrity import file_sha256
from tst_study.data.manifest import TOKENIZER
from tst_study.data.preparation.text_sources import Source, find_sources
from tst_study.errors import UserError

BOOKS = "books"
"""The name of the bundled corpus as a source."""
BOOKS_FOLDER = Path(__file__).resolve().parents[3] / "data" / "books"
DEFAULT_VALIDATION_SHARE = 0.01


@dataclass(frozen=True)
class Request:
    """The sources and options of a corpus.

    Equal requests on equal sources give the same token files byte for byte, as long as the
    tokenizer is the same too: another version of the `tokenizers` library may train a different
    tokenizer, and the owner of a repository on the hub may replace the tokenizer in it.
    """

    sources: Sequence[str]
    """Training text: names as `find_sources` takes them, or "books" as the only name. That is the
    bundled corpus, which has a validation file, a licence and notes of its own."""
    tokenizer: str = "bpe:1024"
    """"bytes"; "bpe:V", trained on about the first 4,096·V bytes of the training text; the path of
    a `tokenizer.json` or of a folder with one; or an id of the Hugging Face hub."""
    validation: Sequence[str] = ()
    """Held-out text: names as `find_sources` takes them. Without any, a share of the training
    documents is held out instead."""
    validation_share: float | None = None
    """The share of the training documents to hold out if there is no `validation`, as a fraction;
    by default 0.01. Whether a document is held out depends on a hash of its text (`is_held_out` in
    `prepare.py`)."""
    within_documents: bool = False
    """Whether `validation_share` is taken from the end of every document's text, instead of whole
    documents."""
    text_field: str = "text"
    """The JSON field or dataset column that holds the text of a document."""
    skip_empty: bool = False
    """Whether to leave out documents whose text is null, as one in a row of parquet may be."""
    limit_bytes: int | None = None
    """Stop after about this many bytes of training records, for a quick trial; None for no limit.
    Validation files are read whole all the same."""
    licence: str | None = None
    """The licence of the text, to be recorded in the manifest."""
    notes: str | None = None
    """Remarks on the text, to be recorded in the manifest."""

    def resolved(self) -> Self:
        """Return the request with its defaults filled in: the files of the bundled corpus in place
        of "books", and the default share if no validation files are given.

        Raises `UserError` if the bundled corpus is not there, or if a share is given that does not
        lie between 0 and 1, or although there are validation files ("books" has one of its own).
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
        if request.validation and self.within_documents:
            raise UserError("--within-documents: held-out text is given; leave it out")
        if request.validation and share is not None:
            raise UserError(f"--validation-share {share:g}: held-out text is given; leave it out")
        if share is not None and not 0 < share < 1:
            raise UserError(f"--validation-share {share:g}: give a number between 0 and 1")
        if request.validation or share is not None:
            return request
        return dataclasses.replace(request, validation_share=DEFAULT_VALIDATION_SHARE)

    def sources_besides(self, to: Path) -> list[Source]:
        """Find the sources in reading order, training text first.

        Files in the folder `to`, which the preparation writes, are left out.

        Raises `UserError` for a name that `find_sources` refuses, and for a source that is both
        training and held-out text, or named twice.
        """
        train = find_sources(self.sources, "train", besides=to)
        held = find_sources(self.validation, "validation", besides=to)
        places = Counter(source.place for source in (*train, *held))
        if twice := [place for place, count in places.items() if count > 1]:
            raise UserError(
                f"source {min(twice)}: is both training and held-out text, or named twice; name"
                " each text once"
            )
        return [*train, *held]

    def as_recorded(self, sources: Sequence[Source]) -> dict[str, Any]:
        """Return the request as plain JSON values for the manifest.

        A file of text is recorded by its split, its name without the folder and its size in bytes,
        and a tokenizer that is a file by its sha256, so that the record does not depend on where
        the files lie.
        """
        records = [source.record for source in sources]
        # Added later, so that they stand only in requests that set them.
        later = {key: True for key in ("within_documents", "skip_empty") if getattr(self, key)}
        return later | {
            "sources": [[record.split, record.name, record.bytes] for record in records],
            "tokenizer": _stable_name(self.tokenizer),
            "validation_share": self.validation_share,
            "text_field": self.text_field,
            "limit_bytes": self.limit_bytes,
            "licence": self.licence,
            "notes": self.notes,
        }


def bundled_books(shards: int | None = None) -> Request:
    """Return a request for the English prose that the repository bundles.

    `shards`: how many of its five training files to read, from the first on; by default all. The
    validation file is always the same.

    Raises `UserError` if the files are not there.
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
    """Return the sha256 of a tokenizer that is a file on this machine; any other name as it is."""
    path = Path(tokenizer)
    if tokenizer == "bytes" or tokenizer.startswith("bpe:"):
        return tokenizer
    if path.is_dir():
        path = path / TOKENIZER
    return f"sha256:{file_sha256(path)}" if path.is_file() else tokenizer
