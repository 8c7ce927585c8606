"""Which key of a config was meant by one that it does not have."""

from collections.abc import Iterable
from difflib import get_close_matches

SYMBOLS = {"s": "bag_size", "r": "step_ratio", "L": "sequence_length"}
"""As papers print them."""
LONGEST = 100


def near_key(given: str, keys: Iterable[str]) -> str | None:
    """The dotted key most like `given`: in its own section by spelling, initials (`lr`) or symbol
    (`s`), in another one by its whole name alone. None where none is like it."""
    section, _, name = given.rpartition(".")
    own: dict[str, str] = {}
    others: dict[str, str] = {}
    for key in keys:
        place, _, word = key.rpartition(".")
        if place == section:
            own[word] = key
        else:
            others.setdefault(word, key)
    if not name or len(name) > LONGEST:
        return None
    by_initials = {
        "".join(part[0] for part in word.split("_")): word for word in own if "_" in word
    }
    meant = SYMBOLS.get(name) or by_initials.get(name) or name
    near = get_close_matches(meant.lower(), own, 1)
    return own[near[0]] if near else others.get(meant)
