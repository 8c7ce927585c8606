"""Text of files and arguments: whether it can be stored, and how others may be shown it."""


def is_whole(text: str) -> bool:
    """Whether every character of it has UTF-8; half a pair of surrogates has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """With control characters spelled out, so that a file cannot steer a terminal; line breaks,
    too."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def in_markdown(text: str) -> str:
    """As a cell of a Markdown table: no HTML, no further cell, no further line."""
    return " ".join(text.replace("<", "&lt;").replace("|", "/").splitlines())


def in_csv(text: str) -> str:
    """As a cell of a CSV file: a spreadsheet would take some texts for formulas and run them."""
    return f"'{text}" if len(text) > 1 and text[0] in "=+-@\t\r" else text
