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
    """The manifest is written last."""
    return (folder / MANIFEST).exists()


@dataclass(frozen=True)
class Books:
    """The bundled prose (public domain, about 50M tokens), with a BPE trained on it."""

    shards: int | None = None
    """The first of the five files only; all by default."""
    megabytes: int | None = None
    """The beginning only, of so many megabytes of records (2.7 bytes a token), in the tokens of all
    of it and with its held-out text: for runs that read the same text again and again."""

    @property
    def name(self) -> str:
        part = f"-first{self.shards}" if self.shards else ""
        return f"books-bpe{BOOKS_WORDS}{part}" + (f"-{self.megabytes}MB" if self.megabytes else "")

    def prepare(self, folder: Path) -> None:
        from tst_study.data.preparation.prepare import prepare
        from tst_study.data.preparation.request import BOOKS_FOLDER, bundled_books

        if _is_whole(folder) and not BOOKS_FOLDER.is_dir():
            return  # a Slurm job runs a copy of the code without the books
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
    """Training tokens; as many as the longest run reads."""
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
"""A corpus that a study reads: it has a name, that of its folder, and makes that folder, or goes on
making it, at once where it is whole."""
