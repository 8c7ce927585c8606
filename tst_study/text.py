"""Text that can be stored and shown safely; numbers, times and sizes as people write them."""

import math
import re
from collections.abc import Container, Iterable, Sequence
from shutil import get_terminal_size
from textwrap import wrap

from tst_study.errors import UserError


def is_whole(text: str) -> bool:
    """Return whether a text can be written in UTF-8, which lacks lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """Spell out control characters and line breaks, so that a file cannot steer a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def is_file_name(text: str) -> bool:
    """Return whether a text can name a folder, and nothing outside its parent folder."""
    return (
        0 < len(text.encode(errors="replace")) <= 200
        and text.isprintable()
        and not {"/", "\\"} & set(text)
        and text.strip(". ") != ""
    )


def short(value: object) -> str:
    """Shorten a value for an error message, to at most 80 characters."""
    text = repr(value) if len(str(value)) < 10_000 else repr(str(value)[:80])
    return text if len(text) <= 80 else f"{text[:79]}…"


def in_markdown(text: str) -> str:
    """Make a text one cell of a Markdown table: one line without HTML."""
    return " ".join(text.replace("<", "&lt;").replace("|", "/").splitlines())


def in_csv(text: str) -> str:
    """Make a text a cell of a CSV file that no spreadsheet runs as a formula."""
    return f"'{text}" if len(text) > 1 and text[0] in "=+-@\t\r" else text


def duration(seconds: float | None) -> str:
    """Write a duration: `42 s`, `12.3 min`, `7.5 h`; a dash where it is not known."""
    if seconds is None or math.isnan(seconds):
        return "–"
    if seconds < 100:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"


_UNITS = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def amount(text: str, what: str) -> float:
    """Read a number above 0 as people write it: `270M`, `1.5B`, `100e9`, `20,000`. Raises
    `UserError` for anything else; `what` comes before the value in its message."""
    digits, unit = text.strip().replace(",", "").replace("_", ""), 1.0
    named = {name.upper(): size for name, size in _UNITS.items()}
    if digits[-1:].upper() in named:
        digits, unit = digits[:-1], named[digits[-1].upper()]
    try:
        value = float(digits) * unit
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UserError(f"{what} {text!r}: give a number above 0, such as 270M, 1.5B or 100e9")
    return value


def whole_amount(text: str, what: str) -> int:
    """Read a whole number as people write it: `270M`, `100e9`, `20,000`; 0 and negative numbers in
    digits alone. Raises `UserError` for anything else; `what` comes before the value in its
    message."""
    try:
        return int(text)
    except ValueError:
        exact = amount(text, what)
    if not math.isclose(round(exact), exact, rel_tol=1e-12):
        raise UserError(f"{what} {text!r}: give a whole number".strip())
    return round(exact)


def big(value: float) -> str:
    """Write a number with three digits and a unit: 1,234 as 1.23k."""
    value = float(f"{value:.3g}")  # before the unit is chosen, so that 999,600 is 1M
    for letter, size in reversed(_UNITS.items()):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


_TELLING = re.compile(r"baseline|(s|r|seed)[\d.]+|[0-9a-f]{8}")
"""The parts of a run's name that are cut last: s and r, or `baseline`; seed and identity."""


def shortened(name: str, width: int) -> str:
    """Cut a name that is too long for its column: first the parts of a run's name that do not tell
    it from others, then its middle."""
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
    """Write a size as `79.6 GB` (10^9 bytes, as memory of GPUs is sold) or `34 MB`."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"


def listed(names: Sequence[str], most: int) -> str:
    """Name at most `most` of some names: `a, b and 3 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Return a line for each row, with columns two spaces apart. `right`: numbers of the columns
    that are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


ENDLESS = 10_000
"""The width of a file or a pipe, which gets whole lines."""


def screen_width() -> int:
    """Columns of the terminal, or `ENDLESS` where the output goes elsewhere."""
    return get_terminal_size((ENDLESS, 24)).columns


def fitted(
    rows: Sequence[Sequence[str]],
    width: int,
    right: Container[int] = (),
    dispensable: Iterable[int] = (),
) -> tuple[list[str], list[int]]:
    """Return the lines of a table that is at most `width` wide, and the columns left out.

    Columns are left out in the order of `dispensable` until the others fit with their text wrapped.
    Columns of `right` hold numbers and never wrap. Only if the longest words do not fit are they
    shortened (`shortened`), and a table that is still too wide stays so.
    """
    from rich.console import Console
    from rich.table import Table

    columns = dict(enumerate(zip(*rows, strict=True)))
    least = {place: max(map(len, cells)) for place, cells in columns.items()}
    least |= {i: min(least[i], _WORDS) for i in columns if i and i not in right}
    dropped: list[int] = []
    for place in dispensable:
        if sum(least[i] + 2 for i in columns) - 2 > width and len(columns) > 1:
            dropped.append(place)
            del columns[place]
    if sum(_longest_word(cells) + 2 for cells in columns.values()) - 2 > width:
        columns = {i: tuple(map(_short_words, cells)) for i, cells in columns.items()}
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    narrowest = -2
    for place, cells in columns.items():
        number = place in right
        narrow = least[place] if number else _longest_word(cells)
        narrowest += narrow + 2
        table.add_column(justify="right" if number else "left", no_wrap=number, min_width=narrow)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    console = Console(
        width=max(width, narrowest), markup=False, emoji=False, highlight=False, color_system=None
    )
    with console.capture() as drawn:
        console.print(table)
    return [line.rstrip() for line in drawn.get().splitlines()], dropped


_WORDS, _LONGEST_WORD = 24, 36
"""The width to which text is wrapped rather than a column left out; the most characters of a word
where long ones must be shortened."""


def _longest_word(cells: Iterable[str]) -> int:
    return max(len(word) for cell in cells for word in cell.split(" "))


def _short_words(text: str) -> str:
    return " ".join(shortened(word, _LONGEST_WORD) for word in text.split(" "))


def wrapped(lines: Iterable[str], width: int) -> list[str]:
    """Break lines longer than `width` between words. What follows a break is indented by two more
    than the line."""
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
