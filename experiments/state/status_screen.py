"""`tst-study status`: sums, then one line per run, once or again and again."""

import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from experiments.launcher import Job
from experiments.plan.planned_run import matches
from experiments.state.status import (
    StatusRow,
    check_is_there,
    jobs_if_known,
    plain,
    rows_below,
    rows_of,
    say_once,
    sums,
    table,
)
from experiments.studies.catalogue import STUDIES, folder_of, load
from tst_study.errors import UserError


def show(
    study: str, scale: str, pattern: str, runs: Path | None, *, share: bool, every: float | None
) -> None:
    """Raises `UserError` where there is nothing to show."""
    console = Console()

    def screen() -> Group | str:
        root = folder_of(study, scale, runs)
        rows = chosen(study, scale, pattern, runs, share)
        head = f"{root}: {sums(rows)}"
        if not console.is_terminal:
            return "\n".join([head, "", *plain(rows)])
        return Group(Text(head), "", table(rows, "", console.width))

    if not console.is_terminal:
        print(screen(), flush=True)
        while every is not None:
            time.sleep(every)
            print(screen(), flush=True)
        return
    if every is None:
        console.print(screen())
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(screen(), refresh=True)
            time.sleep(every)


def chosen(study: str, scale: str, pattern: str, runs: Path | None, share: bool) -> list[StatusRow]:
    """The rows whose names match. Raises `UserError` where none does."""
    root = folder_of(study, scale, runs)
    rows = [row for row in look(study, scale, root, share) if matches(row.run_id, pattern)]
    if pattern and not rows:
        raise UserError(f"{root}: no run's name has {pattern!r} in it")
    return rows


def look(
    study: str,
    scale: str,
    root: Path,
    share: bool = True,
    jobs: Mapping[str, Job] | None = None,
) -> list[StatusRow]:
    """A study's own list of runs where its corpora are there, else what its folder holds; asks for
    their jobs where they are not given."""
    jobs = jobs_if_known(root) if jobs is None else jobs
    if study in STUDIES:
        try:
            return rows_of(load(study, scale, root), root, share, jobs)
        except UserError as error:
            check_is_there(root)
            say_once(f"without runs of {study} that never began: {error}")
    return rows_below(root, jobs)
