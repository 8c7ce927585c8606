"""Finds and deletes the checkpoints that a study no longer needs, and no run's record.

Only folders of checkpoints inside the study's folder are named, and none that is reached by a link.
"""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tst_study import file_lock
from tst_study.checkpoints.places import checkpoint_place, checkpoint_steps
from tst_study.config import schema as config
from tst_study.errors import UserError
from tst_study.experiments.launcher import submission_lock
from tst_study.experiments.plan.planner import Planner, prefixes_of
from tst_study.experiments.state.status import check_is_one_study, folders_below
from tst_study.record import reader as run_record


@dataclass(frozen=True)
class NotNeeded:
    path: Path
    why: str
    size: int
    """Bytes."""


def not_needed(root: Path, planner: Planner | None = None) -> list[NotNeeded]:
    """Older checkpoints of runs that are over, and checkpoints of shared prefix runs from which
    nothing forks any more. Raises `UserError` for a folder that is no study.

    `planner`: that of the study. Without it shared prefix runs are kept, because a branch that has
    not started has left no trace in the folder."""
    check_is_one_study(root)
    if not folders_below(root):
        raise UserError(f"{root}: holds no run of this package; name a study")
    return [
        NotNeeded(path, why, sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
        for path, why in _checkpoints(root, planner)
        if path.resolve() == root.resolve() / path.relative_to(root)  # no link in between
    ]


def delete(
    root: Path, items: Iterable[NotNeeded], planner: Planner | None = None
) -> list[NotNeeded]:
    """Wait until no other command submits runs of the study, then delete those of the items that
    are still not needed. Returns what was deleted."""
    with submission_lock(root):
        still = {item.path for item in not_needed(root, planner)}
        gone = [item for item in items if item.path in still]
        for item in gone:
            shutil.rmtree(item.path)
    return gone


def _is_over(folder: Path) -> bool:
    """Return whether a run is done or has diverged; False where its record is damaged, so that all
    its checkpoints are kept."""
    try:
        run_record.read_header(folder)
        return run_record.is_over(folder)
    except UserError:
        return False


def _checkpoints(root: Path, planner: Planner | None) -> Iterator[tuple[Path, str]]:
    """Yield the checkpoints that are not needed, with the reason. All checkpoints of a run from
    which a submitted run will fork are needed, and so are those of a run that a process holds."""
    needed = {
        Path(fork.folder).name
        for path in root.glob("*/job/config.toml")
        if (fork := config.load(path).execution.fork_from)
        if not _is_over(path.parent.parent)
    }
    given_up = set()
    if planner:
        # Only those that this study plans: any other may belong to another scale in the same
        # folder, whose branches are not known.
        prefixes = {prefix.run.run_id for prefix in prefixes_of(planner.asked_for(), planner)}
        planned = (*planner.decided(), *planner.whole())
        given_up = prefixes - {run.prefix.run_id for run in planned if run.prefix}
    # Only runs directly in this folder: in a folder full of studies nobody knows which shared
    # prefix runs are needed.
    for folder in sorted(path.parent for path in root.glob("*/run.json")):
        if not _is_over(folder) or file_lock.is_held(folder) or folder.name in needed:
            continue
        header, steps = run_record.read_header(folder), checkpoint_steps(folder)
        if header["role"] != "trunk":
            kept = header["config"]["execution"].get("keep_steps", ())
            why = "not the last checkpoint of a run that is over"
            yield from (
                (checkpoint_place(folder, step), why) for step in steps[:-1] if step not in kept
            )
        elif folder.name in given_up:
            why = "nothing forks from this prefix run any more"
            yield from ((checkpoint_place(folder, step), why) for step in steps)
