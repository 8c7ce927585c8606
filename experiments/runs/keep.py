"""Records of runs that are over, small enough to be kept in git: what figures and comparisons read,
without checkpoints and logs, and of the training curve about a hundred rows."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from tst_study import run_record
from tst_study.atomic_files import written_atomically
from tst_study.run_record import Metrics

ROWS = 100
WHOLE = ("run.json", "evals.jsonl", "segments.jsonl", "status.json")


def keep(root: Path, to: Path) -> list[Path]:
    """Write the record of every run below `root` that is over into a folder of its name in `to`;
    returns these folders. Raises `UserError` for a damaged run.

    A study whose run folder is made from such records again skips these runs and trains the rest.
    """
    kept = []
    for folder in run_record.find_run_folders(root):
        if run_record.is_over(folder):
            record, place = run_record.read(folder), to / folder.name
            place.mkdir(parents=True, exist_ok=True)
            for name in WHOLE:
                shutil.copyfile(folder / name, place / name)
            evaluated = {row["step"] for row in record.evals}
            with written_atomically(place / "metrics.jsonl") as file:
                for row in thinned(record.metrics, evaluated):
                    file.write(run_record.line_of(row).encode())
            kept.append(place)
    return kept


def thinned(rows: Sequence[Metrics], evaluated: set[int]) -> list[Metrics]:
    """About `ROWS` of them, evenly, with the first, the last and those of evaluated steps."""
    every = max(1, len(rows) // ROWS)
    last = len(rows) - 1
    return [
        row
        for place, row in enumerate(rows)
        if place % every == 0 or place == last or row["step"] in evaluated
    ]
