"""Tokenizers that turn text into ids: by bytes, by a BPE trained on the corpus, or by any tokenizer
of Hugging Face.

Every tokenizer, the one of bytes included, is stored as a Hugging Face `tokenizer.json`, so that an
exported model has its tokenizer in the usual form. After each text, the preparation of a corpus
puts the id of the token that ends documents. A text that spells this token out does not get that
id, provided that the `tokenizer.json` marks the token as special; those made here do.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from tst_study.atomic_files import read_json
from tst_study.data.manifest import TOKENIZER, TokenizerRecord, folder_manifest
from tst_study.errors import UserError, first_line
from tst_study.text import memory_size, short

END_OF_DOCUMENT = "<|endoftext|>"
"""The token that ends a document, in the tokenizers that are made here."""
STRETCH, LONGEST = 1 << 18, 1 << 24
"""Texts of more characters than `STRETCH` are cut; what cannot be cut may have `LONGEST`."""
_CUT = re.compile(r"(?<=[^\W\d_])(?=[ \n.,;:!?，。、；：！？])")
KNOWN_ENDS = (END_OF_DOCUMENT, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
"""Tokens that usually end a document, in the order in which a vocabulary is searched for them."""
UNKNOWN = "set the unk_token of its model to a token of the vocabulary"
CONVERSION = "docs/data.md converts files of SentencePiece and tiktoken by a line each"
BYTE_TOKENIZER = Path(__file__).with_name("byte_tokenizer.json")
"""The `tokenizer.json` of the byte tokenizer: a BPE without merges, which spells every byte as a
printable character (GPT-2's table). It is a file of this package, so that its fingerprint does not
change with the version of the `tokenizers` library."""


class Tokenizer:
    """A tokenizer of the `tokenizers` library, from the bytes of a `tokenizer.json`.

    Args:
        content: the bytes of the file.
        kind: "bytes" for the tokenizer of bytes, "bpe" for one that `train_byte_pair_tokenizer` has
            just trained, "huggingface" for all others. The manifest records it. It changes no id;
            "bytes" only selects a faster way to the same ids.
        end_of_document: the token that ends a document; by default the first of `KNOWN_ENDS` that
            the vocabulary has.
        source: what error messages call the tokenizer, such as its path.

    Attributes:
        json, fingerprint: the content of the `tokenizer.json`, and its sha256.
        library: the tokenizer of the library, without truncation and padding.
        vocabulary_size: the largest id + 1, so that an embedding of this many rows has one for each
            id.
        end_of_document, end_of_document_token: the id that follows every document, and how the
            vocabulary spells it.

    Raises:
        UserError: the content is not that of a `tokenizer.json`, or the vocabulary has no token to
            end a document with.
    """

    def __init__(
        self,
        content: bytes,
        kind: str = "huggingface",
        end_of_document: str | None = None,
        source: str = "tokenizer.json",
    ) -> None:
        try:
            self.library = LibraryTokenizer.from_str(content.decode())
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{source}: is not a tokenizer.json ({error}); {CONVERSION}") from error
        self.library.encode_special_tokens = True
        self.library.no_truncation()
        self.library.no_padding()
        self.json = content
        self.kind, self.source = kind, source
        vocabulary = self.library.get_vocab(with_added_tokens=True)
        self.vocabulary_size = max(vocabulary.values(), default=-1) + 1
        ends = KNOWN_ENDS if end_of_document is None else (end_of_document,)
        end = next((token for token in ends if token in vocabulary), None)
        if end is None:
            raise UserError(
                f"{source}: the vocabulary has no token {' or '.join(ends)}; name the one that ends"
                " documents in a tokenizer_config.json beside it, as eos_token"
            )
        self.end_of_document, self.end_of_document_token = vocabulary[end], end
        self.fingerprint = hashlib.sha256(content).hexdigest()

    def as_recorded(self) -> TokenizerRecord:
        """Describe the tokenizer for a manifest."""
        return TokenizerRecord.model_validate(self, from_attributes=True)

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.integer[Any]]]:
        """Tokenise texts: return for each one its ids, a vector of whole numbers, without the id
        that ends a document.

        The library needs over 100 times the memory of a text, so long texts are tokenised in
        stretches. Raises `UserError` for a text of over `LONGEST` characters that cannot be cut,
        and if the tokenizer has no token for what it does not know.
        """
        if self.kind == "bytes":  # the same ids as the library's, many times faster
            return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
        if self._leaves_out:
            raise UserError(f"{self.source}: leaves out characters that it lacks; {UNKNOWN}")
        if max(map(len, texts), default=0) > STRETCH:
            return [self._encode_long(text) for text in texts]
        return self._encoded(texts)

    def _encoded(self, texts: Sequence[str]) -> list[NDArray[np.integer[Any]]]:
        try:
            encodings = self.library.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{self.source}: {first_line(error)}; {UNKNOWN}") from error
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

    def _encode_long(self, text: str) -> NDArray[np.integer[Any]]:
        ids: list[NDArray[np.integer[Any]]] = []
        rest = iter(stretches(text) if self._may_cut else [text])
        while parts := list(islice(rest, 4)):
            if max(map(len, parts)) > LONGEST:
                raise UserError(
                    f"a document of {memory_size(len(text))} that begins {short(text[:30])}: this "
                    "tokenizer would need a hundred times its size; split it into documents"
                )
            ids += self._encoded(parts)
        return np.concatenate(ids)

    @cached_property
    def _may_cut(self) -> bool:
        """Whether the tokens of a text are those of its `stretches`: the tokenizer splits a text
        into words by a pattern as GPT-2's or a later one, and nothing else looks across a word."""
        splits = self._steps("pre_tokenizer")
        kinds = [(step["type"], step.get("use_regex", True)) for step in splits]
        by_pattern = kinds == [("ByteLevel", True)] or (
            kinds == [("Split", True), ("ByteLevel", False)] and "Regex" in splits[0]["pattern"]
        )
        normal = {step["type"] for step in self._steps("normalizer")}
        added = (token["content"] for token in self._described.get("added_tokens", ()))
        return by_pattern and normal <= {"NFC", "NFD"} and not any(map(_CUT.search, added))

    @cached_property
    def _leaves_out(self) -> bool:
        """Whether the library would leave out characters that are not in the vocabulary: it does so
        for a BPE that neither works on bytes nor has a token for what it does not know."""
        model, steps = self._described["model"], self._steps("normalizer", "pre_tokenizer")
        known = model.get("unk_token") or model.get("byte_fallback")
        return (
            model["type"] == "BPE" and not known and "ByteLevel" not in {s["type"] for s in steps}
        )

    @cached_property
    def _described(self) -> dict[str, Any]:
        return dict(json.loads(self.json))

    def _steps(self, *parts: str) -> list[dict[str, Any]]:
        """Return the steps of the normaliser or pre-tokenizer, which may be a sequence of them."""
        steps: list[dict[str, Any]] = []
        for part in filter(None, map(self._described.get, parts)):
            steps += part.get("normalizers") or part.get("pretokenizers") or [part]
        return steps


def stretches(text: str) -> Iterator[str]:
    """Cut a text into stretches of about `STRETCH` characters or fewer, each of which ends between
    a letter and a space, a line break or a punctuation mark."""
    begin = 0
    while len(text) - begin > STRETCH:
        end = begin + STRETCH
        found = [match.start() for match in _CUT.finditer(text, end - 1000, end)]
        later = None if found else _CUT.search(text, end)
        cut = found[-1] if found else later.start() if later else len(text)
        yield text[begin:cut]
        begin = cut
    yield text[begin:]


def byte_tokenizer() -> Tokenizer:
    """Return the tokenizer of UTF-8 bytes: an id is a byte's value, and 256 ends a document."""
    return Tokenizer(BYTE_TOKENIZER.read_bytes(), kind="bytes")


def train_byte_pair_tokenizer(texts: Iterable[str], vocabulary_size: int) -> Tokenizer:
    """Train a byte-level BPE, which splits words as GPT-2's does, on some texts.

    The same texts give the same tokenizer, whatever the number of threads. Id 0 is
    `<|endoftext|>`, ids 1 … 256 are the bytes, and the others are the merges.

    Raises `UserError` if the texts have too few different words to fill the vocabulary.
    """
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator((part for text in texts for part in stretches(text)), trainer)
    if library.get_vocab_size() < vocabulary_size:
        raise UserError(
            f"bpe:{vocabulary_size}: the text yields only {library.get_vocab_size()} tokens"
            " of vocabulary; ask for fewer, or give more text"
        )
    return Tokenizer(library.to_str().encode(), kind="bpe")


def read_tokenizer(path: str | Path) -> Tokenizer:
    """Read a tokenizer from a `tokenizer.json`, or from a folder that holds one.

    Files beside it may name the token that ends documents (see `_end_beside`).

    Raises `UserError` if the file cannot be read, if it holds no tokenizer that can be used (see
    `Tokenizer`), or if a file beside it is damaged.
    """
    path = Path(path)
    if path.is_dir():
        path = path / TOKENIZER
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: no tokenizer can be read there ({error.strerror}); {CONVERSION}"
        ) from error
    if content == BYTE_TOKENIZER.read_bytes():
        return byte_tokenizer()
    return Tokenizer(content, end_of_document=_end_beside(path), source=str(path))


def download_tokenizer(name: str) -> Tokenizer:
    """Download the tokenizer of a repository on the Hugging Face hub, such as `gpt2`.

    Raises `UserError` if it cannot be fetched, or cannot be used (see `read_tokenizer`).
    """
    from huggingface_hub import snapshot_download

    wanted = [TOKENIZER, "tokenizer_config.json"]  # the latter may name the end of a document
    try:
        folder = snapshot_download(name, allow_patterns=wanted)
    except Exception as error:  # network, authorisation, unknown name: the hub has many classes
        raise UserError(
            f"tokenizer {name}: is not a local file and cannot be fetched from the hub "
            f"({first_line(error)}); check the name, log in with `hf auth login`, or give a "
            "local tokenizer.json"
        ) from error
    return read_tokenizer(folder)


def _end_beside(path: Path) -> str | None:
    """Look up the token that ends documents in the files beside a `tokenizer.json`.

    In a prepared folder the manifest decides; elsewhere the `eos_token` of `tokenizer_config.json`
    does. None if the manifest names no such token, or if `tokenizer_config.json` is missing or
    names none.

    Raises `UserError` if the file that decides is damaged, or if the preparation of the folder has
    not ended.
    """
    if (manifest := folder_manifest(path.parent)) is not None:
        return manifest.tokenizer.end_of_document_token
    config = path.with_name("tokenizer_config.json")
    token = (read_json(config, TypeAdapter(dict[str, Any])) or {}).get("eos_token")
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
