"""Byte-level BPE at dictionary speed.

The `tokenizers` library spends most of its time splitting text into words, again and again the
same ones. GPT-2's splitting never joins a character to white space after it; so a text can be cut
before every run of white space and its segments encoded one by one, which a dictionary remembers.
The ids are exactly the library's (a property test compares them).
"""

import json
import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# Unicode White_Space, which is what the library's splitting goes by. Python's \s has more.
WHITE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
SEGMENT = re.compile(f"[{WHITE}]*[^{WHITE}]+|[{WHITE}]+")
# GPT-2's words, for text that is ASCII; other text is left to the library.
ASCII_WORD = re.compile(
    r"'(?:[stmd]|re|ve|ll)| ?[A-Za-z]+| ?[0-9]+| ?[^\t-\r A-Za-z0-9]+"
    r"|[\t-\r ]+(?![^\t-\r ])|[\t-\r ]+"
)
MOST_REMEMBERED = 1_000_000


class CachedWords:
    """Encodes text segment by segment and remembers the segments.

    Args:
        encode_text: the library's way: any text to its ids, without special tokens.
        encode_word: the library's model alone: an ASCII word to its ids.
    """

    def __init__(
        self,
        encode_text: Callable[[str], list[int]],
        encode_word: Callable[[str], list[int]],
    ) -> None:
        self._encode_text = encode_text
        self._encode_word = encode_word
        self._segments: dict[str, bytes] = {}
        self._words: dict[str, bytes] = {}

    def encode(self, text: str) -> NDArray[np.int64]:
        """The ids of a text, int64 (length,)."""
        segments = SEGMENT.findall(text)
        found = list(map(self._segments.get, segments))
        place = -1
        for _ in range(found.count(None)):
            place = found.index(None, place + 1)
            found[place] = self._learned(segments[place])
        ids = b"".join(found)  # type: ignore[arg-type]  # no None is left
        return np.frombuffer(ids, dtype=np.int32).astype(np.int64)

    def _learned(self, segment: str) -> bytes:
        ids = self._segments.get(segment)  # it may have been new twice in one text
        if ids is None:
            if segment.isascii():
                ids = b"".join(map(self._word, ASCII_WORD.findall(segment)))
            else:
                ids = np.array(self._encode_text(segment), dtype=np.int32).tobytes()
            _remember(self._segments, segment, ids)
        return ids

    def _word(self, word: str) -> bytes:
        ids = self._words.get(word)
        if ids is None:
            ids = np.array(self._encode_word(word), dtype=np.int32).tobytes()
            _remember(self._words, word, ids)
        return ids


def _remember(memory: dict[str, bytes], key: str, ids: bytes) -> None:
    if len(memory) >= MOST_REMEMBERED:
        memory.clear()
    memory[key] = ids


def splits_at_spaces(tokenizer_json: bytes) -> bool:
    """Whether a `tokenizer.json` is one that `CachedWords` encodes exactly: GPT-2's kind."""
    description = json.loads(tokenizer_json)
    splitting = description.get("pre_tokenizer") or {}
    return (
        description["model"].get("type") == "BPE"
        and not description["model"].get("dropout")
        and description.get("normalizer") is None
        and splitting.get("type") == "ByteLevel"
        and splitting.get("add_prefix_space") is False
        and splitting.get("use_regex", True) is True
        and all(token["special"] for token in description.get("added_tokens", ()))
    )
