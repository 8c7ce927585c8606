"""`tst-study status`: sums, then one line per run, once or again and again."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from shutil import get_terminal_size

from experiments.launcher import Job
from experiments.plan.planned_run import matches
from experiments.state.status import (
    StatusRow,
    check_is_there,
    jobs_if_known,
    rows_below,
    rows_of,
    say_once,
)
from experiments.studies.catalogue import STUDIES, folder_of, load
from tst_study.errors import UserError
from tst_study.text import aligned, duration, printable, shortened

STATES = (
    *("done", "running", "failed", "diverged", "preempted", "interrupted", "queued", "blocked"),
    *("cancelled", "waiting"),
)
ENDLESS = 10_000
"""Columns of a screen that is none: a file or a pipe gets whole lines."""
NUMBERS = range(2, 8)
"""Columns that end alike."""


def show(
    study: str, scale: str, pattern: str, runs: Path | None, *, share: bool, every: float | None
) -> None:
    """Raises `UserError` where there is nothing to show."""
    root, is_screen = folder_of(study, scale, runs), sys.stdout.isatty()
    for look_number in count():
        rows = chosen(study, scale, pattern, runs, share)
        text = [f"{root}: {sums(rows)}", "", *lines(rows, columns())]
        clear = "\x1b[2J\x1b[H" if is_screen and look_number else ""
        print(clear + "\n".join(text), flush=True)
        if every is None:
            return
        time.sleep(every)


def columns() -> int:
    return get_terminal_size().columns if sys.stdout.isatty() else ENDLESS


def chosen(study: str, scale: str, pattern: str, runs: Path | None, share: bool) -> list[StatusRow]:
    """The rows whose names match. Raises `UserError` where none does."""
    root = folder_of(study, scale, runs)
    rows = [row for row in look(study, scale, root, share) if matches(row.run_id, pattern)]
    if pattern and not rows:
        raise UserError(f"{root}: no run's name has {pattern!r} in it")
    return rows


def look(study: str, scale: str, root: Path, share: bool = True) -> list[StatusRow]:
    """A study's own list of runs where its corpora are there, else what its folder holds."""
    jobs: Mapping[str, Job] = jobs_if_known(root)
    if study in STUDIES:
        try:
            return rows_of(load(study, scale, root), root, share, jobs)
        except UserError as error:
            check_is_there(root)
            say_once(f"without runs of {study} that never began: {error}")
    return rows_below(root, jobs)


def totals(rows: Iterable[StatusRow]) -> str:
    """`12 done, 2 running, 7 waiting`."""
    counts = Counter(row.state for row in rows)
    order = [state for state in STATES if state in counts]
    return ", ".join(f"{counts[state]} {state}" for state in order) or "no runs"


def sums(rows: Sequence[StatusRow]) -> str:
    """Counts of states; speed and time left of what runs."""
    text = totals(rows)
    speeds = [one.tokens_per_second for one in rows if one.tokens_per_second]
    left = [one.seconds_left for one in rows if one.seconds_left]
    if speeds:
        text += f" | {sum(speeds):,.0f} tokens/s"
    if left:
        text += f" | running ones end within {duration(max(left))}"
    return text


def cells(rows: Sequence[StatusRow]) -> list[list[str]]:
    """A heading, then the cells of each run, without columns that nothing stands in."""
    lagging, jobs = any(one.lag is not None for one in rows), any(one.job for one in rows)
    remarks = [
        printable("; ".join(filter(None, (one.phase, "" if one.state == "done" else one.message))))
        for one in rows
    ]
    heads = ("run", "state", "step", "training", "held-out", "tokens/s", "left")
    found = [[*heads, "lag" if lagging else "", "job" if jobs else ""]]
    for one in rows:
        found.append(
            [
                printable(one.run_id),
                one.state,
                f"{one.step:,}/{one.steps:,}" if one.steps else "",
                "" if one.loss is None else f"{one.loss:.3f}",
                "" if one.held_out is None else f"{one.held_out:.4f}",
                "" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}",
                "" if one.seconds_left is None else duration(one.seconds_left),
                "" if one.lag is None else duration(one.lag),
                one.job,
            ]
        )
    return [
        [*row, remark]
        for row, remark in zip(found, ["phase" if any(remarks) else "", *remarks], strict=True)
    ]


def lines(rows: Sequence[StatusRow], width: int = ENDLESS) -> list[str]:
    """For a screen of so many columns. Names of runs give way where it is narrow, in their middle:
    seeds stay apart."""
    text = cells(rows)
    beside = sum(max(map(len, column)) + 2 for column in list(zip(*text, strict=True))[1:-1])
    text = [[shortened(row[0], max(24, width - beside)), *row[1:]] for row in text]
    return aligned(text, NUMBERS)
