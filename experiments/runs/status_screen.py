"""`tst-study status`: one line per run, sums below, once or again and again."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from experiments.runs.status import StatusRow, rows_below, rows_of, sums, table
from experiments.study import STUDIES, load
from tst_study.errors import UserError


def show(study: str, scale: str, runs: Path | None, *, share: bool, every: float | None) -> None:
    """Raises `UserError` where there is nothing to show."""
    console = Console()
    root, rows = _look(study, scale, runs, share)
    if every is None:
        console.print(table(rows, str(root)))
        print(sums(rows))
        return
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            live.update(Group(table(rows, str(root)), Text(sums(rows))), refresh=True)
            time.sleep(every)
            root, rows = _look(study, scale, runs, share)


def _look(study: str, scale: str, runs: Path | None, share: bool) -> tuple[Path, list[StatusRow]]:
    """A study's own list of runs where its corpora are there, else what its folder holds."""
    if study not in STUDIES:
        return Path(study), rows_below(Path(study))
    chosen = load(study, scale)
    root = runs or chosen.folder
    try:
        return root, rows_of(chosen, root, share)
    except UserError:
        return root, rows_below(root)
