"""Checks of input columns; errors name the column, the row and the value."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from tst_study.errors import UserError

Floats = NDArray[np.float64]


def needs_columns(table: pd.DataFrame, columns: Iterable[str], what: str) -> None:
    """Raises `UserError` for a column that `table` lacks; `what` names the table in words."""
    for name in columns:
        if name not in table:
            near = get_close_matches(name, map(str, table.columns), 1)
            hint = f"; is it {near[0]!r}?" if near else ""
            raise UserError(f"{what}: column {name!r} is missing{hint}")


def numbers(
    values: ArrayLike | pd.Series,
    name: str,
    *,
    above: float = -np.inf,
    least: float = -np.inf,
    below: float = np.inf,
) -> Floats:
    """Values as floats. Raises `UserError` for the first that is no number, not finite, not more
    than `above`, less than `least` or not less than `below`; a table's row goes by its label."""
    series = values if isinstance(values, pd.Series) else pd.Series(np.ravel(np.asarray(values)))
    parsed = pd.to_numeric(series, errors="coerce").to_numpy(dtype=float)
    good = np.isfinite(parsed) & (parsed > above) & (parsed >= least) & (parsed < below)
    bad = np.flatnonzero(~good)
    if len(bad):
        place = int(bad[0])
        bounds = {" above": above, " of at least": least, " below": below}
        limits = [f"{words} {bound:g}" for words, bound in bounds.items() if np.isfinite(bound)]
        wanted = "a finite number" + " and".join(limits)
        raise UserError(
            f"column {name}, row {series.index[place]}: {series.iloc[place]} is not {wanted}; "
            "correct it or leave that row out"
        )
    return parsed


def is_number(value: object, above: float = -np.inf) -> bool:
    """Return whether a value is a finite number above `above`; text and missing values are not."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return number and above < float(value) < np.inf  # type: ignore[arg-type]


def positive(table: pd.DataFrame, columns: Iterable[str], what: str) -> None:
    """Raises `UserError` for a missing column and for a value that is not finite or not above 0."""
    names = list(columns)
    needs_columns(table, names, what)
    for name in names:
        numbers(table[name], f"{name!r} of {what}", above=0)


def truths(values: pd.Series, name: str) -> NDArray[np.bool_]:
    """Return a column of truth values. Raises `UserError` for anything else, such as text, which
    Python would take for true."""
    for row, value in values.items():
        if not isinstance(value, bool | np.bool_) and value not in (0, 1):
            raise UserError(
                f"column {name}, row {row}: {value!r} is neither true nor false; "
                "read the column as booleans"
            )
    return values.to_numpy(dtype=bool)
