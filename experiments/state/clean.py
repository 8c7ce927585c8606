"""Finds the checkpoints that a study no longer needs, and deletes them (`tst-study clean`).

The records of runs are never touched. Only checkpoints inside the study's folder are found, and
none that is reached through a symbolic link."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tst_study import file_lock
from tst_study.checkpoints.places import checkpoint_place, checkpoint_steps
from tst_study.errors import UserError
from tst_study.experiments.launcher import submission_lock
from tst_study.experiments.plan.planner import Planner, prefixes_of
from tst_study.experiments.run_process import submitted_config
from tst_study.experiments.state.status import check_holds_runs
from tst_study.record import reader as run_record


@dataclass(frozen=True)
class NotNeeded:
    """A checkpoint that is no longer needed."""

    path: Path
    why: str
    size: int
    """Size in bytes."""


def not_needed(
    root: Path, planner: Planner | None = None, left: Sequence[Path] = ()
) -> list[NotNeeded]:
    """Return two kinds of checkpoints. Of a shared prefix run that is over: all, if nothing will
    fork from it any more. Of any other run that is over: all but the last one and those that its
    config asks to keep (`keep_steps`).

    `planner`: the planner of the study. Without it, the checkpoints of shared prefix runs are kept,
    because a branch that has not started leaves no trace in the folder. `left`: folders of runs
    that the study no longer asks for, of which all checkpoints are returned unless they train.

    Raises `UserError` if the folder does not exist or no run lies directly in it.
    """
    check_holds_runs(root)
    return [
        NotNeeded(path, why, sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
        for path, why in _checkpoints(root, planner, left)
        if path.resolve() == root.resolve() / path.relative_to(root)  # no link in between
    ]


def delete(
    root: Path, planner: Planner | None = None, left: Sequence[Path] = ()
) -> list[NotNeeded]:
    """Delete what `not_needed` finds, and return it.

    Waits first until no other command submits the study's runs to Slurm or cleans its folder.
    """
    with submission_lock(root):
        items = not_needed(root, planner, left)
        for item in items:
            shutil.rmtree(item.path)
    return items


def _is_over(folder: Path) -> bool:
    """Return whether a run is done or has diverged; False if its record is damaged, so that all its
    checkpoints are kept."""
    with suppress(UserError):
        run_record.read_header(folder)
        return run_record.is_over(folder)
    return False


def _checkpoints(
    root: Path, planner: Planner | None, left: Sequence[Path]
) -> Iterator[tuple[Path, str]]:
    """Yield each checkpoint that is not needed, with the reason.

    All checkpoints of a run are needed if it is not over, if a process holds it, or if a submitted
    run that is not over forks from it.
    """
    for folder in left:
        if not file_lock.is_held(folder):
            why = "of a run that the study no longer asks for"
            yield from ((checkpoint_place(folder, n), why) for n in checkpoint_steps(folder))
    submitted = [path.parent.parent for path in root.glob("*/job/config.toml")]
    needed = {
        Path(fork.folder).name
        for folder in submitted
        if not _is_over(folder)
        if (fork := submitted_config(folder).execution.fork_from)
    }
    given_up = set()
    if planner:
        # Only shared prefix runs that this study plans: any other may belong to a study at another
        # scale in the same folder, whose branches are not known here.
        prefixes = {prefix.run.run_id for prefix in prefixes_of(planner.asked_for(), planner)}
        planned = (*planner.decided(), *planner.whole())
        given_up = prefixes - {run.prefix.run_id for run in planned if run.prefix}
    # Only runs directly in this folder: deeper ones may belong to other studies, and nothing here
    # says which of their shared prefix runs are needed.
    for folder in sorted(path.parent for path in root.glob("*/run.json")):
        if folder in left or folder.name in needed:
            continue
        if not _is_over(folder) or file_lock.is_held(folder):
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
