"""Helpers for text: whether it can be stored and shown safely; numbers, times and sizes as people
write them; tables and lines that fit a terminal."""

import math
import re
from collections.abc import Container, Iterable, Sequence
from shutil import get_terminal_size
from textwrap import wrap

from tst_study.errors import UserError


def is_whole(text: str) -> bool:
    """Return whether a text can be written in UTF-8. It cannot if it holds lone surrogates, which
    Python puts into file names for bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """Replace line breaks and other characters that are not printable by escapes such as `\\x1b`,
    so that text from a file cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def is_file_name(text: str) -> bool:
    """Return whether a text can be the name of a file or folder in any parent folder: at most 200
    bytes, printable, without slashes, and not only dots and spaces."""
    return (
        0 < len(text.encode(errors="replace")) <= 200
        and text.isprintable()
        and not {"/", "\\"} & set(text)
        and text.strip(". ") != ""
    )


def short(value: object) -> str:
    """Return the `repr` of a value for an error message, cut to at most 80 characters."""
    text = repr(value) if len(str(value)) < 10_000 else repr(str(value)[:80])
    return text if len(text) <= 80 else f"{text[:79]}…"


def in_markdown(text: str) -> str:
    """Make a text fit into one line of Markdown, such as a title or a cell of a table: without HTML
    tags, `|` and control characters."""
    return printable(" ".join(text.replace("<", "&lt;").replace("|", "/").splitlines()))


def in_csv(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would run as a formula if it read the text
    from a CSV file."""
    return f"'{text}" if len(text) > 1 and text[0] in "=+-@\t\r" else text


def duration(seconds: float | None) -> str:
    """Write a duration: `42 s`, `12.3 min`, `7.5 h` or `1,234 h`; a dash if it is None or NaN."""
    if seconds is None or math.isnan(seconds):
        return "–"
    if seconds < 100:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.1f} min"
    hours = seconds / 3600
    return f"{hours:,.0f} h" if hours >= 1000 else f"{hours:.1f} h"


_UNITS = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def decimal(value: object) -> float | None:
    """Read a number as people and programs write it: `0.3`, `1e9`, `270M`, `1.5B`, `20,000`, `nan`.
    Return None if it is not a number."""
    digits, unit = str(value).strip().replace("_", ""), 1.0
    # "1,5" must not become 15, nor "0,001" 1: commas stand only between groups of three digits.
    if re.match(r"[1-9]\d{0,2}(,\d{3})+(?![\d,])", digits):
        digits = digits.replace(",", "")
    named = {name.upper(): size for name, size in _UNITS.items()}
    if digits[-1:].upper() in named:
        digits, unit = digits[:-1], named[digits[-1].upper()]
    try:
        return float(digits) * unit
    except ValueError:
        return None


def amount(text: str, what: str = "") -> float:
    """Read a number above 0 (`decimal`). Raises `UserError` for anything else. `what` is the text
    before the value in its message."""
    value = decimal(text)
    if value is None or not 0 < value < math.inf:
        raise UserError(f"{what} {text!r}: give a number above 0, such as 270M or 1.5B".strip())
    return value


def whole_amount(text: str) -> int:
    """Read a whole number as people write it: `270M`, `100e9` or `20,000`. Numbers below 1 must be
    plain digits, such as `0` or `-1`. Raises `UserError` for anything else.
    """
    try:
        return int(text)
    except ValueError:
        exact = amount(text)
    if not math.isclose(round(exact), exact, rel_tol=1e-12):
        raise UserError(f"{text!r}: give a whole number")
    return round(exact)


def big(value: float, like: float | None = None) -> str:
    """Write a number with three significant digits and k, M, B or T: 1,234 as 1.23k. `like`: the
    number whose unit it gets, if that is not its own."""
    # Rounded before the unit is chosen, so that 999,600 is 1M.
    value, like = (float(f"{number:.3g}") for number in (value, like or value))
    for letter, size in reversed(_UNITS.items()):
        if like >= size:
            return f"{value / size:,g}{letter}"
    return f"{value:g}"


_TELLING = re.compile(r"baseline|(s|r|seed)[\d.]+|[0-9a-f]{8}")
"""The parts between the hyphens of a run's name that tell the run from others, such as `s4`,
`r0.25`, `baseline`, `seed1` and the eight digits of its identity."""


def shortened(name: str, width: int) -> str:
    """Shorten a name to at most `width` characters. First, parts of a run's name that do not tell
    it from other runs are replaced by `…`, as many as necessary; if that is not enough, the middle
    of the name is cut out."""
    parts = name.split("-")
    for place in range(1, len(parts)):
        if len(name) > width and not _TELLING.fullmatch(parts[place]):
            parts[place] = "…"
            name = re.sub("…(-…)+", "…", "-".join(parts))
    if len(name) <= width:
        return name
    end = 2 * (width - 1) // 3
    return f"{name[: width - 1 - end]}…{name[-end:]}"


def memory_size(size: float) -> str:
    """Write a size in bytes as `79.6 GB` or `34 MB`. A GB is 10^9 bytes, as in the data sheets of
    GPUs."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"


def listed(names: Sequence[str], most: int) -> str:
    """List the first `most` names, and count the others: `a, b and 3 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Return a line for each row, with columns that are aligned and two spaces apart. `right`: the
    columns that are aligned to the right, counted from 0."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{'>' if i in right else '<'}{width}}}" for i, width in enumerate(widths))
    return [line.format(*row).rstrip() for row in rows]


ENDLESS = 10_000
"""The width that a file or a pipe is taken to have, so that its lines are not broken."""


def screen_width() -> int:
    """Return the number of columns of the terminal, or `ENDLESS` if the output goes elsewhere."""
    return get_terminal_size((ENDLESS, 24)).columns


def fitted(
    rows: Sequence[Sequence[str]],
    width: int,
    right: Container[int] = (),
    dispensable: Iterable[int] = (),
) -> tuple[list[str], list[int]]:
    """Fit a table into `width` characters. Return its lines, and the numbers of the columns left
    out, counted from 0.

    The columns named in `dispensable` are left out one after another until the others fit with
    their text wrapped. The columns `right` hold numbers, which are aligned to the right and never
    wrapped. If even the longest words do not fit, long words are cut by `shortened`. A table that
    is still too wide is returned as it is.
    """
    from rich.cells import cell_len  # a Chinese character is two cells wide
    from rich.console import Console
    from rich.table import Table

    columns = dict(enumerate(zip(*rows, strict=True)))
    least = {place: max(map(cell_len, cells)) for place, cells in columns.items()}
    least |= {i: min(least[i], _WORDS) for i in columns if i and i not in right}
    dropped: list[int] = []
    for place in dispensable:
        if sum(least[i] + 2 for i in columns) - 2 > width and len(columns) > 1:
            dropped.append(place)
            del columns[place]
    if sum(_longest_word(cells) + 2 for cells in columns.values()) - 2 > width:
        columns = {i: tuple(map(_short_words, cells)) for i, cells in columns.items()}
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    widths = {i: max(map(cell_len, cells)) for i, cells in columns.items()}
    narrow = {i: _longest_word(cells) for i, cells in columns.items() if i not in right}
    total = sum(widths.values()) + 2 * len(widths) - 2
    while total > width and (wide := [i for i in narrow if widths[i] > narrow[i]]):
        widths[max(wide, key=widths.__getitem__)] -= 1
        total -= 1
    for i, wanted in widths.items():
        table.add_column(justify="right" if i in right else "left", width=wanted)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    console = Console(
        width=max(width, total), markup=False, emoji=False, highlight=False, color_system=None
    )
    with console.capture() as drawn:
        console.print(table)
    return [line.rstrip() for line in drawn.get().splitlines()], dropped


_WORDS, _LONGEST_WORD = 24, 36
"""`_WORDS`: the width, in characters, to which a column of text may be narrowed before another
column is left out. `_LONGEST_WORD`: the length to which words are cut if they must be shortened."""


def _longest_word(cells: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max(cell_len(word) for cell in cells for word in cell.split(" "))


def _short_words(text: str) -> str:
    return " ".join(shortened(word, _LONGEST_WORD) for word in text.split(" "))


def wrapped(lines: Iterable[str], width: int) -> list[str]:
    """Break, between words, the lines that are longer than `width`. The text after a break is
    indented by two spaces more than the line."""
    found: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        found += wrap(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=len(line) > width,
        ) or [line]
    return found
