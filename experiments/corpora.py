"""The corpora that studies read, and how each is made. The small ones need no download."""

from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from shlex import quote
from typing import Self

from tst_study.config.schema import FolderName, Fraction, PathText, Positive, Strict
from tst_study.data.manifest import MANIFEST, read_manifest
from tst_study.errors import UserError
from tst_study.waiting import waiting

PREPARED = Path("prepared")
"""The folder of all prepared corpora, each in a folder of its own."""
BOOKS_WORDS = 1024
"""Vocabulary size of the tokenizer of `Books`."""


def _is_whole(folder: Path) -> bool:
    """Return whether the corpus in a folder is complete. Its manifest is the last file that is
    written."""
    return (folder / MANIFEST).exists()


@dataclass(frozen=True)
class Books:
    """The bundled prose (public domain, about 50M training tokens), with a BPE tokenizer that is
    trained on it."""

    shards: int | None = None
    """How many of the five training files to take, from the first on; all by default."""
    megabytes: int | None = None
    """About how many megabytes of training text to take, from the beginning (2.7 bytes are a
    token); by default all. With such a limit, the tokenizer and the held-out text are those of the
    whole prose. This is for runs that read a short text again and again."""

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


class TextSource(Strict):
    """What `tst-study data prepare` reads, and how."""

    source: PathText
    tokenizer: PathText = "bpe:1024"
    limit_bytes: Positive | None = None
    validation_share: Fraction | None = None
    within_documents: bool = False


class Text(TextSource):
    """A text of one's own, or a dataset of the Hugging Face hub. The latter is too large to be
    prepared by the command that submits a study, so the user prepares it first."""

    name: FolderName

    def placed(self, home: Path) -> Self:
        """Return a copy in which paths and globs of files start from `home`; other sources and
        tokenizers keep their names."""
        files = {key: str(home / getattr(self, key)) for key in ("source", "tokenizer")}
        there = {k: v for k, v in files.items() if Path(v).exists() or glob(v, recursive=True)}
        return self.model_copy(update=there)

    def first(self, gigabytes: int) -> Self:
        """Return the first gigabytes of a text of the hub, as a text of its own."""
        limit = gigabytes * 10**9
        return self.model_copy(update={"name": f"{self.name}-{gigabytes}GB", "limit_bytes": limit})

    def prepare(self, folder: Path) -> None:
        had = read_manifest(folder).request if _is_whole(folder) else {}
        if self.is_remote and not had:
            raise UserError(f"{folder}: not prepared; first: {self.command(folder)}")
        if "adopted" in had:
            return  # other tools made the token files, and nothing says of which text
        from tst_study.data.preparation.prepare import prepare
        from tst_study.data.preparation.request import Request

        request = Request([self.source], **self.model_dump(exclude={"name", "source"}))
        try:
            request.resolved().sources_besides(folder)
        except UserError:
            if had:
                return  # it was prepared elsewhere, and only the token files are here
            raise
        # The user may have prepared it with options that a recipe lacks and, if it is of the hub,
        # in part or with a copy of its tokenizer.
        free = {"text_field", "skip_empty", "licence", "notes"}
        if self.is_remote and not self.limit_bytes:
            free.add("limit_bytes")
        if self.is_remote and str(had.get("tokenizer")).startswith("sha256:"):
            free.add("tokenizer")
        prepare(replace(request, **{key: had[key] for key in free & had.keys()}), folder)

    @property
    def is_remote(self) -> bool:
        return self.source.startswith("hf://")

    def command(self, folder: Path) -> str:
        """Return the command that makes it in a folder."""
        share = self.validation_share
        return (
            f"tst-study data prepare --source {quote(self.source)} --to {quote(str(folder))} "
            f"--tokenizer {quote(self.tokenizer)}"
            + (f" --limit-bytes {self.limit_bytes}" if self.limit_bytes else "")
            + (f" --validation-share {share}" if share is not None else "")
            + " --within-documents" * self.within_documents
        )


@dataclass(frozen=True)
class TopicalLanguage:
    """A text in a generated language, whose best possible loss is known. Its topic changes slowly,
    classes of words follow each other as a Markov chain, and the words of a class obey Zipf's law
    (`data.preparation.generated_language`)."""

    words: int = 2048
    """Vocabulary size."""
    tokens: int = 5_000_000
    """Training tokens. The default is more than any run of the laptop study reads of it."""
    validation_tokens: int = 262_144

    @property
    def name(self) -> str:
        return f"topical-{self.words}-{self.tokens // 1000}k"

    def prepare(self, folder: Path) -> None:
        from tst_study.data.preparation.generated_language import LanguageParameters, generate

        language = LanguageParameters(self.words)
        with waiting(f"generating {self.tokens:,} tokens in {folder}"):
            generate(folder, self.tokens, self.validation_tokens, language)


Recipe = Books | Text | TopicalLanguage
"""A corpus that a study reads. `name` is the name of its folder in `PREPARED`. `prepare(folder)`
makes the corpus, or compares one that is complete with the recipe. After an interruption, `Books`
and a `Text` continue and a `TopicalLanguage` starts over. A `Text` of the hub is never made. Raises
`UserError` if that is not complete, and if the folder holds the corpus of another request."""


_LLAMA, _QWEN = "meta-llama/Meta-Llama-3-8B", "Qwen/Qwen3-30B-A3B"
"""The Hugging Face models whose tokenizers are used. All of the Qwen3 family share theirs; their
vocabulary is padded to 151,936 entries."""
_EDU, _BASELINE = "hf://HuggingFaceFW/fineweb-edu/sample-", "hf://mlfoundations/dclm-baseline-1.0"
FINEWEB_EDU = Text(name="fineweb-edu-llama3", source=f"{_EDU}100BT:train", tokenizer=_LLAMA)
DCLM = Text(name="dclm-llama3", source=_BASELINE, tokenizer=_LLAMA)
FINEWEB_EDU_QWEN = Text(name="fineweb-edu-qwen3", source=f"{_EDU}350BT:train", tokenizer=_QWEN)
DCLM_QWEN = Text(name="dclm-qwen3", source=_BASELINE, tokenizer=_QWEN)
KNOWN: tuple[Recipe, ...] = (
    *(Books(), Books(1), *(Books(megabytes=size) for size in (1, 2, 8, 9, 32))),
    *(TopicalLanguage(), TopicalLanguage(tokens=1_000_000, validation_tokens=65_536)),
    *(FINEWEB_EDU, DCLM, FINEWEB_EDU_QWEN, DCLM_QWEN),
    *(FINEWEB_EDU.first(gigabytes) for gigabytes in (2, 8, 32)),
    *(DCLM.first(gigabytes) for gigabytes in (20, 80, 320)),
)
"""Texts that this package can make, which any study may read by their folder in `PREPARED`."""


def by_folder(*more: Recipe, home: Path = Path()) -> dict[Path, Recipe]:
    """Return `KNOWN` and further recipes by the folder that the text is made in; paths start from
    `home`."""
    return {home / PREPARED / recipe.name: recipe for recipe in (*KNOWN, *more)}
