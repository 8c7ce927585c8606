"""Where a run's checkpoints lie: `checkpoints/step-N` holds the state after N steps."""

from __future__ import annotations

from pathlib import Path

FOLDER = "checkpoints"
PREFIX = "step-"


def steps_below(folder: Path) -> list[int]:
    """Steps with a whole checkpoint in a folder of checkpoints, in order."""
    names = (path.name.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*"))
    return sorted(int(name) for name in names if name.isdigit())


def place_of(folder: Path, step: int) -> Path:
    return folder / f"{PREFIX}{step:08d}"
