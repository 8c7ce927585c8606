"""Corpora that go by a name: where their files lie, under which licence."""

from dataclasses import dataclass
from pathlib import Path

from tst_study.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class NamedCorpus:
    """Training and validation sources of a corpus."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    licence: str
    notes: str


def named_corpus(name: str) -> NamedCorpus | None:
    """The corpus of a name, or None if the name is none ("books" is bundled with the checkout).

    Raises:
        UserError: the name is known, but its files are not there.
    """
    if name != "books":
        return None
    folder = REPOSITORY / "data" / "books"
    train = tuple(str(path) for path in sorted(folder.glob("books.train-*.jsonl.xz")))
    validation = folder / "books.val.jsonl.xz"
    if not train or not validation.exists():
        raise UserError(
            f"source books: {folder} does not hold the bundled books; run from a checkout of the"
            " repository, or give files of your own"
        )
    return NamedCorpus(
        train,
        (str(validation),),
        licence="public domain",
        notes="English prose of 1700 to 1928; see data/books/README.md",
    )
