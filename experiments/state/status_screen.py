"""`tst-study status`: a summary, then one line per run; once, or again and again."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from shutil import get_terminal_size

from tst_study.errors import UserError
from tst_study.experiments.plan.planned_run import DAMAGED
from tst_study.experiments.state.status import (
    StatusRow,
    check_is_there,
    rows_below,
    rows_of,
    say_once,
)
from tst_study.experiments.studies.catalogue import STUDIES, load
from tst_study.text import aligned, duration, printable, shortened

STATES = (
    *("done", "running", "failed", "diverged", "preempted", "interrupted", "queued", "blocked"),
    *("cancelled", DAMAGED, "waiting"),
)
ENDLESS = 10_000
"""Width for a file or a pipe, which gets whole lines."""
NUMBERS = ("step", "training", "held-out", "tokens/s", "left")


def show(root: Path, rows: Callable[[], list[StatusRow]], every: float | None) -> None:
    """Print the status once, or again and again after so many seconds."""
    is_screen = sys.stdout.isatty()
    for look_number in count():
        found = rows()
        text = [f"{root}: {sums(found)}", "", *lines(found, columns())]
        clear = "\x1b[2J\x1b[H" if is_screen and look_number else ""
        print(clear + "\n".join(text), flush=True)
        if every is None:
            return
        time.sleep(every)


def columns() -> int:
    return get_terminal_size().columns if sys.stdout.isatty() else ENDLESS


def look(study: str, scale: str, root: Path, share: bool = True) -> list[StatusRow]:
    """Status of all runs of a study if its corpora are prepared, else of the runs in its folder."""
    if study in STUDIES:
        try:
            return rows_of(load(study, scale, root, share=share))
        except UserError as error:
            check_is_there(root)
            say_once(f"without runs of {study} that never began: {error}")
    return rows_below(root)


def totals(rows: Iterable[StatusRow]) -> str:
    """Counts of states, such as `12 done, 2 running, 7 waiting`."""
    counts = Counter(row.state for row in rows)
    order = [state for state in STATES if state in counts]
    return ", ".join(f"{counts[state]} {state}" for state in order) or "no runs"


def sums(rows: Sequence[StatusRow]) -> str:
    """Counts of states, and speed and time left of the runs that are training."""
    text = totals(rows)
    speeds = [one.tokens_per_second for one in rows if one.tokens_per_second]
    left = [one.seconds_left for one in rows if one.seconds_left]
    if speeds:
        text += f" | {sum(speeds):,.0f} tokens/s"
    if left:
        text += f" | running ones end within {duration(max(left))}"
    return text


def lines(rows: Sequence[StatusRow], width: int = ENDLESS) -> list[str]:
    """A heading and a line for each run, for a screen of so many columns."""
    cells = [["run", "state", *NUMBERS, "job", "phase"]]
    for one in rows:
        said = (one.phase, "" if one.state == "done" else one.message)
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
                printable("; ".join(filter(None, said))),
            ]
        )
    return fitted(cells, width, NUMBERS)


def fitted(rows: Sequence[Sequence[str]], width: int, numbers: Sequence[str]) -> list[str]:
    """Lines of a table for a screen of so many columns, without its empty columns.

    `numbers`: headings of columns that are aligned on the right. On a narrow screen the run names
    in the first column are shortened in their middle, so that seeds stay visible. The last column
    may run over the edge.
    """
    kept = [column for column in zip(*rows, strict=True) if any(column[1:])]
    beside = sum(max(map(len, column)) + 2 for column in kept[1:-1])
    names = [shortened(name, max(24, width - beside)) for name in kept[0]] if kept else []
    right = [place for place, column in enumerate(kept) if column[0] in numbers]
    return aligned(list(zip(names, *kept[1:], strict=True)), right)
