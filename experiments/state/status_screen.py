"""The text that `tst-study status` prints: a summary, then one line per run."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote

from tst_study.errors import UserError
from tst_study.experiments.launcher import launchers
from tst_study.experiments.plan.planned_run import totals
from tst_study.experiments.screen import table_of_runs
from tst_study.experiments.state.status import (
    StatusRow,
    check_holds_runs,
    left_runs,
    rows_below,
    rows_of_study,
)
from tst_study.experiments.studies.catalogue import is_study, load
from tst_study.experiments.study import Study
from tst_study.text import ENDLESS, duration, printable, wrapped

NUMBERS = ("step", "training", "held-out", "tokens/s", "left")
"""Headings of the columns of numbers, which are aligned on the right."""


def screen(root: Path, rows: Sequence[StatusRow], width: int) -> list[str]:
    """Return the number of runs in each state, an empty line, and a table with a line for each
    run; `width` in columns."""
    counts = totals(row.state for row in rows)
    waiting = [row.run_id for row in rows if row.state == "waiting"]
    hints = [launcher.hint(root, waiting) for launcher in launchers()] if waiting else []
    head = [f"{root}: {counts}", *filter(None, hints)]
    return [*wrapped(head, width), "", *lines(rows, width)]


def study_and_rows(
    sources: Sequence[str],
    scale: str | None,
    root: Path,
    share: bool = True,
    recorded: Path | None = None,
    headers: bool = True,
) -> tuple[Study | None, list[StatusRow]]:
    """Return the study that `sources` name, if any, and the status of every run that it has planned
    so far (later ones may depend on results that are not there yet), and of every other run in its
    folder. Without a study, and if its corpora are not prepared, these are the runs in the folder
    `root`.

    `headers`: whether to find the runs whose `run.json` is damaged.

    Raises `UserError` if it needs the folder and there is none.
    """
    study = None
    if is_study(sources):
        try:
            study = load(sources, scale, root, share, recorded)
            return study, rows_of_study(study, headers)
        except UserError as error:
            check_holds_runs(root)
            print(f"only runs that have a folder are shown: {error}", file=sys.stderr)
    return study, rows_below(root, headers)


def left_line(study: Study) -> list[str]:
    """Return a line about the runs that the study does not ask for any more; none without any,
    while text is missing, by which runs are recognised, and while it may ask for them again."""
    with suppress(UserError):
        if count := len(left_runs(study)):
            runs = "1 run" if count == 1 else f"{count} runs"
            named = " ".join(map(quote, study.sources))
            remedy = f"delete their checkpoints: tst-study clean {named} --left --yes"
            return [f"{runs} that {named} no longer asks for; {remedy}"]
    return []


def lines(rows: Sequence[StatusRow], width: int = ENDLESS) -> list[str]:
    """Return a line of headings and a line for each run, for a screen of `width` columns."""
    cells = [["run", "state", *NUMBERS, "job", "phase", "message"]]
    for entry in rows:
        cells.append(
            [
                printable(entry.run_id),
                entry.state,
                f"{entry.step:,}/{entry.steps:,}" if entry.steps else "",
                "" if entry.loss is None else f"{entry.loss:.3f}",
                "" if entry.held_out is None else f"{entry.held_out:.4f}",
                "" if entry.tokens_per_second is None else f"{entry.tokens_per_second:,.0f}",
                "" if entry.seconds_left is None else duration(entry.seconds_left),
                entry.job,
                entry.phase,
                "" if entry.state == "done" else printable(entry.message),
            ]
        )
    return table_of_runs(
        cells, width, NUMBERS, ("tokens/s", "phase", "training", "job", "held-out")
    )
