"""Text of files and arguments: whether it can be stored, and how a terminal may be shown it."""


def is_whole(text: str) -> bool:
    """Whether every character of it has UTF-8; half a pair of surrogates has none."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def printable(text: str) -> str:
    """With control characters spelled out, so that a file cannot steer a terminal; line breaks,
    too."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
