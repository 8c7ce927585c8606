"""The answer that every `tst-study analyse …` returns: tables, sentences, and what they were
computed from. It can be printed, shown in a notebook, or written as JSON."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from tst_study.analysis.tables.columns import rows_of
from tst_study.analysis.wording import left_out
from tst_study.text import ENDLESS, fitted, printable, screen_width, wrapped


@dataclass(frozen=True)
class Answer:
    """The answer to one `tst-study analyse …`."""

    question: str
    tables: Mapping[str, pd.DataFrame]
    """Tables by title, with losses in nats per token."""
    sentences: tuple[str, ...]
    inputs: Mapping[str, str] = field(default_factory=dict)
    """The identity of each input, by name: the fingerprint of a run or of a published file, or the
    numbers of tokens and documents of a token file. Those of runs are filled in by
    `questions.ask`."""
    excluded: pd.DataFrame = field(default_factory=pd.DataFrame)
    """All runs that were left out, each with its `reason`; the JSON lists every one."""

    text: Callable[[int], list[str]] | None = None
    """A function from the width of a terminal to the lines to print; None for an answer that prints
    its tables and sentences as they are."""

    def __str__(self) -> str:
        return "\n".join(self.lines(screen_width()))

    def lines(self, width: int = ENDLESS) -> list[str]:
        """Return lines for a terminal of this width. Control characters, which the name of a run
        may hold, are escaped, so that they cannot act on the terminal; a function `text` must do
        this itself."""
        if self.text is not None:
            return self.text(width)
        text = wrapped(self.sentences, width)
        for title, table in self.tables.items():
            text += ["", *wrapped([title], width)]
            text += (f"  {line}" for line in table_lines(table, width - 2))
        out = wrapped(left_out(self.excluded), width)
        return [printable(line) for line in (*text, *([""] if out else []), *out)]

    def to_json(self) -> str:
        """Return `to_dict` as JSON text. U+007F to U+009F, the control characters that JSON allows
        in strings, are escaped, too."""
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False)
        return re.sub(r"[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON values: each table is a list of rows, and missing or infinite
        numbers are null. `text` is left out."""
        return {
            "question": self.question,
            "sentences": list(self.sentences),
            "tables": {title: records(table) for title, table in self.tables.items()},
            "excluded": records(self.excluded),
            "inputs": dict(self.inputs),
        }

    def _repr_html_(self) -> str:
        """Show in a notebook what the command shows."""
        return f"<pre>{escape(str(self))}</pre>"


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as JSON values, as `plain` does."""
    rows: list[dict[str, Any]] = plain(list(rows_of(table)))
    return rows


def plain(value: Any, number: Callable[[str], float] = float) -> Any:
    """Return a value as JSON has it: dataclasses as objects, numpy's numbers as Python's, and
    missing and infinite numbers as None. `number` reads each float from its digits."""
    text = json.dumps(value, default=_inside)
    return json.loads(text, parse_float=number, parse_constant=lambda name: None)


def _inside(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return None if value is pd.NA else value.item()


def table_lines(table: pd.DataFrame, width: int = ENDLESS) -> list[str]:
    """Return the lines of a table with aligned columns; a dash stands for a missing value.

    The estimates in a row (`_ESTIMATES`) get as many decimals as it takes to show two digits of the
    width of the row's interval. On a narrow terminal columns are left out: first those without
    values and then, from right to left, those that are not `_WANTED`. A last line names them.
    """
    if table.empty:
        return ["(none)"]
    whole = [name for name in table.columns if _is_whole(table[name])]
    headings = [str(name).replace("_", " ") for name in table.columns]
    cells = [headings]
    for row in rows_of(table):
        digits = _digits(row)
        cells.append(
            [
                _shown(value if name not in whole or pd.isna(value) else int(value))
                if name not in _ESTIMATES or digits is None or not _is_finite(value)
                else f"{value:,.{digits}f}".replace("-", "−")
                for name, value in row.items()
            ]
        )
    columns = range(len(headings))
    numbers = {i for i in columns if all(map(_is_number, table.iloc[:, i]))}
    known = table.notna().any()
    others = [i for i in columns[::-1] if table.columns[i] not in _WANTED and known.iloc[i]]
    dispensable = [*(i for i in columns if not known.iloc[i]), *others]
    lines, dropped = fitted(cells, width, numbers, dispensable)
    if dropped:
        names = ", ".join(headings[i] for i in dropped)
        lines += wrapped([f"Left out for the width: {names}; --json has all columns."], width)
    return lines


_WANTED: tuple[str, ...] = ("question", "setting", "size", "kind", "steps", "bag_size")
_WANTED += ("step_ratio", "best", "gain", "low", "high", "multiplier", "verdict", "seeds")
_WANTED += ("parameter", "value", "note", "sentence")
"""Columns that are shown on a narrow terminal, too, unless they are empty."""


_ESTIMATES: tuple[str, ...] = ("best", "gain", "multiplier", "low", "high")
_ESTIMATES += ("flat_low", "flat_high", "steps_ratio", "flops_ratio")
_ESTIMATES += ("smallest_detectable", "params_exponent", "exponent_low", "exponent_high")
"""Columns whose number of decimals follows from the row's interval (`_digits`)."""


def _digits(row: Mapping[str, Any]) -> int | None:
    """Return how many decimals show two digits of the width of a row's interval; None if the row
    has no interval."""
    low, high = (row.get(end, row.get(f"exponent_{end}")) for end in ("low", "high"))
    if not (_is_finite(low) and _is_finite(high) and high > low):
        return None
    return max(0, 1 - math.floor(math.log10(high - low)))


def _is_finite(value: object) -> bool:
    """Return whether a value is a finite number; False for texts, truth values and missing
    values."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return number and math.isfinite(value)  # type: ignore[arg-type]


def _is_whole(column: pd.Series) -> bool:
    """Return whether a column holds whole numbers that became floats because some are missing."""
    if not pd.api.types.is_float_dtype(column) or column.notna().all():
        return False
    known = column.dropna()
    return bool(len(known) and (known == known.round()).all())


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float | np.number)


def _shown(value: Any) -> str:
    value = plain(value)
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    if not isinstance(value, int | float):
        return str(value)
    form = ","
    if isinstance(value, float):
        size = abs(value)
        form = ",.0f" if size >= 1000 else ",.2f" if size >= 100 else ",.4f"
        form = ".3g" if size and not 1e-4 <= size < 1e6 else form
    return f"{value:{form}}".replace("-", "−")
