"""How far runs are, read from their folders alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tst_study import run_lock, run_record
from tst_study.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

COLORS = {
    "done": "green",
    "running": "cyan",
    "failed": "red",
    "diverged": "red",
    "preempted": "yellow",
    "interrupted": "yellow",
    "waiting": "dim",
}


@dataclass(frozen=True)
class StatusRow:
    run_id: str
    state: str
    """A state of the run record, `waiting`, or `interrupted`: it says that it runs, but no
    process does."""
    step: int
    steps: int
    phase: str
    loss: float | None
    tokens_per_second: float | None
    seconds_left: float | None
    message: str


def row(folder: Path, steps: int = 0) -> StatusRow:
    """The state of one run folder, which need not exist yet; `steps` are those planned for it."""
    status = run_record.read_status(folder)
    if status is None:
        return StatusRow(folder.name, "waiting", 0, steps, "", None, None, None, "")
    state: str = status["state"]
    running = state == "running"
    if running and not run_lock.is_held(folder):
        state, running = "interrupted", False
    return StatusRow(
        run_id=folder.name,
        state=state,
        step=status["step"],
        steps=status["steps"],
        phase=status.get("phase", "") if running else "",
        loss=status.get("loss"),
        tokens_per_second=status.get("tokens_per_second") if running else None,
        seconds_left=status.get("seconds_left") if running else None,
        message=status["message"],
    )


def rows_below(root: Path) -> list[StatusRow]:
    """All runs of a study's folder, also those that failed before they wrote a record."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; submit the study first, or name its folder")
    folders = {path.parent for path in root.glob("*/status.json")}
    folders.update(run_record.find_run_folders(root))
    return [row(folder) for folder in sorted(folders)]


def totals(rows: Iterable[StatusRow]) -> str:
    """`12 done, 2 running, 7 waiting`."""
    counts = Counter(row.state for row in rows)
    order = [state for state in COLORS if state in counts]
    return ", ".join(f"{counts[state]} {state}" for state in order) or "no runs"


def table(rows: Sequence[StatusRow], title: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    # Rich marks up strings; a run's name or message is plain text whatever brackets it holds.
    shown = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    shown.add_column("run", overflow="ellipsis")  # the one to give way in a narrow terminal
    shown.add_column("state", no_wrap=True)
    for name in ("step", "loss", "tokens/s", "left"):
        shown.add_column(name, justify="right", no_wrap=True)
    remarks = [
        one.phase or ("" if one.state in ("done", "waiting") else one.message) for one in rows
    ]
    shown.add_column("phase" if any(remarks) else "", overflow="fold")
    for one, remark in zip(rows, remarks, strict=True):
        shown.add_row(
            Text(one.run_id),
            Text(one.state, style=COLORS.get(one.state, "")),
            f"{one.step:,}/{one.steps:,}" if one.steps else "",
            "" if one.loss is None else f"{one.loss:.3f}",
            "" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}",
            "" if one.seconds_left is None else duration(one.seconds_left),
            Text(remark),
        )
    return shown


def duration(seconds: float) -> str:
    """`42s`, `3:07`, `2:03:07`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
