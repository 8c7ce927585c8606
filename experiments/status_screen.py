"""`tst-study status`: one line per run, sums below, once or again and again."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from experiments.status import StatusRow, rows_below, rows_of, sums, table
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
        return Path(study), _of_folder(Path(study))
    chosen = load(study, scale)
    root = runs or chosen.folder
    try:
        return root, rows_of(chosen, root, share)
    except UserError:
        return root, _of_folder(root)


def _of_folder(root: Path) -> list[StatusRow]:
    from experiments.status import jobs_of

    if not root.is_dir():
        return rows_below(root)
    try:
        jobs = jobs_of(root, [path.parent for path in root.glob("*/status.json")])
    except UserError as error:
        print(f"without job states: {error}", file=sys.stderr)
        jobs = {}
    return rows_below(root, jobs)
