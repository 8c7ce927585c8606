"""Checks of the columns of tables that users give. The errors name the column and, for a bad value,
the value and its row."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tst_study.errors import UserError

Floats = NDArray[np.float64]
"""An array of floating-point numbers."""


def needs_columns(table: pd.DataFrame, columns: Iterable[str], what: str) -> None:
    """Raise `UserError` for a column that `table` lacks; `what` names the table in words."""
    for name in columns:
        if name not in table:
            raise UserError(f"{what}: column {name!r} is missing")


def positive(table: pd.DataFrame, columns: Iterable[str], what: str) -> pd.DataFrame:
    """Return the table with these columns as numbers, which may have been text. Raises `UserError`
    for a missing column, and for a value that is not a finite number above 0. `what` names the
    table in words."""
    names = list(columns)
    needs_columns(table, names, what)
    for name in names:
        values = pd.to_numeric(table[name], errors="coerce").to_numpy(float, na_value=np.nan)
        bad = table[name][~((values > 0) & (values < np.inf))]
        if len(bad):
            raise UserError(
                f"column {name!r} of {what}, row {bad.index[0]}: {bad.iloc[0]} is not a finite "
                "number above 0; correct it or leave that row out"
            )
    return table.assign(**{name: pd.to_numeric(table[name]) for name in names})
