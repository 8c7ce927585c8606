"""The corpora that studies read, and how each is made; small ones from the checkout alone."""

from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from tst_study.data.manifest import MANIFEST
from tst_study.errors import UserError
from tst_study.waiting import waiting

PREPARED = Path("prepared")
BOOKS_WORDS = 1024


def _is_whole(folder: Path) -> bool:
    """Return whether the corpus is complete: its manifest is written last."""
    return (folder / MANIFEST).exists()


@dataclass(frozen=True)
class Books:
    """The bundled prose (public domain, about 50M tokens), with a BPE trained on it."""

    shards: int | None = None
    """How many of the five files, from the first; all by default."""
    megabytes: int | None = None
    """Only so many megabytes of records from the beginning (2.7 bytes a token), with the tokenizer
    and the held-out text of the whole prose: for runs that read the same text again and again."""

    @property
    def name(self) -> str:
        part = f"-first{self.shards}" if self.shards else ""
        return f"books-bpe{BOOKS_WORDS}{part}" + (f"-{self.megabytes}MB" if self.megabytes else "")

    def prepare(self, folder: Path) -> None:
        from tst_study.data.preparation.prepare import prepare
        from tst_study.data.preparation.request import BOOKS_FOLDER, bundled_books

        if _is_whole(folder) and not BOOKS_FOLDER.is_dir():
            return  # an installed package or a copy of the code comes without the books
        books = replace(bundled_books(self.shards), tokenizer=f"bpe:{BOOKS_WORDS}")
        if self.megabytes:
            whole = folder.parent / Books().name
            Books().prepare(whole)
            tokenizer, limit = str(whole / "tokenizer.json"), self.megabytes * 1_000_000
            books = replace(books, tokenizer=tokenizer, limit_bytes=limit)
        prepare(books, folder)


@dataclass(frozen=True)
class HubText:
    """A corpus of the Hugging Face hub. It is too large to be prepared in passing."""

    name: str
    source: str
    tokenizer: str
    limit_bytes: int | None = None

    def prepare(self, folder: Path) -> None:
        if not _is_whole(folder):
            limit = f" --limit-bytes {self.limit_bytes}" if self.limit_bytes else ""
            raise UserError(
                f"{folder}: not prepared; first: tst-study data prepare --source "
                f"{self.source} --to {quote(str(folder))} --tokenizer {self.tokenizer}{limit}"
            )


@dataclass(frozen=True)
class TopicalLanguage:
    """A slow topic, Markov word classes, Zipf words within a class; its entropy rate is known."""

    words: int = 2048
    tokens: int = 5_000_000
    """Training tokens; more than the longest run of the laptop study reads."""
    validation_tokens: int = 262_144

    @property
    def name(self) -> str:
        return f"topical-{self.words}-{self.tokens // 1000}k"

    def prepare(self, folder: Path) -> None:
        from tst_study.data.preparation.generated_language import LanguageParameters, generate

        language = LanguageParameters(self.words)
        with waiting(f"generating {self.tokens:,} tokens in {folder}"):
            generate(folder, self.tokens, self.validation_tokens, language)


Recipe = Books | HubText | TopicalLanguage
"""A corpus that a study reads. `name` is that of its folder. `prepare(folder)` makes the folder,
goes on where an earlier call was interrupted, and returns at once where the folder is complete; a
`HubText` that is not complete raises `UserError` instead."""
