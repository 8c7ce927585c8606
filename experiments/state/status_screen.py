"""`tst-study status`: a summary, then one line per run; once, or again and again."""

import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from tst_study.errors import UserError
from tst_study.experiments.plan.planned_run import totals
from tst_study.experiments.screen import ENDLESS, columns, fitted
from tst_study.experiments.state.status import (
    StatusRow,
    check_is_there,
    rows_below,
    rows_of,
    say_once,
)
from tst_study.experiments.studies.catalogue import STUDIES, load
from tst_study.text import duration, printable, wrapped

NUMBERS = ("step", "training", "held-out", "tokens/s", "left")


def show(root: Path, rows: Callable[[], list[StatusRow]], every: float | None) -> None:
    """Print the status once, or again and again after so many seconds."""
    is_screen = sys.stdout.isatty()
    for look_number in count():
        found = rows()
        width = columns()
        text = [*wrapped([f"{root}: {sums(found)}"], width), "", *lines(found, width)]
        clear = "\x1b[2J\x1b[H" if is_screen and look_number else ""
        print(clear + "\n".join(text), flush=True)
        if every is None:
            return
        time.sleep(every)


def look(study: str, scale: str, root: Path, share: bool = True) -> list[StatusRow]:
    """Status of all runs of a study if its corpora are prepared, else of the runs in its folder."""
    if study in STUDIES:
        try:
            return rows_of(load(study, scale, root, share=share))
        except UserError as error:
            check_is_there(root)
            say_once(f"without runs of {study} that never began: {error}")
    return rows_below(root)


def sums(rows: Sequence[StatusRow]) -> str:
    """Counts of states, and speed and time left of the runs that are training."""
    text = totals(row.state for row in rows)
    speeds = [one.tokens_per_second for one in rows if one.tokens_per_second]
    left = [one.seconds_left for one in rows if one.seconds_left]
    if speeds:
        text += f" | {sum(speeds):,.0f} tokens/s"
    if left:
        text += f" | running ones end within {duration(max(left))}"
    return text


def lines(rows: Sequence[StatusRow], width: int = ENDLESS) -> list[str]:
    """A heading and a line for each run, for a screen of so many columns."""
    cells = [["run", "state", *NUMBERS, "job", "phase", "message"]]
    for one in rows:
        cells.append(
            [
                printable(one.run_id),
                one.state,
                f"{one.step:,}/{one.steps:,}" if one.steps else "",
                "" if one.loss is None else f"{one.loss:.3f}",
                "" if one.held_out is None else f"{one.held_out:.4f}",
                "" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}",
                "" if one.seconds_left is None else duration(one.seconds_left),
                one.job,
                one.phase,
                "" if one.state == "done" else printable(one.message),
            ]
        )
    return fitted(cells, width, NUMBERS, ("tokens/s", "phase", "training", "job", "held-out"))
