"""What of a study nothing needs any more. A run's record is never among it.

Only what this package made is ever named: a folder that is no study is refused, a copy of code must
carry its marker and the name of its content, and nothing that lies elsewhere is reached by a link
or by what a file says.
"""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tst_study.checkpoints.places import checkpoint_place, checkpoint_steps
from tst_study.config import schema as config
from tst_study.errors import UserError
from tst_study.experiments.launcher import UnreachableError, launchers, the_only_submitter
from tst_study.experiments.plan.planner import Planner, trunks_of
from tst_study.experiments.state.status import check_is_one_study, folders_below, say_once
from tst_study.record import lock as run_lock
from tst_study.record import reader as run_record


@dataclass(frozen=True)
class NotNeeded:
    path: Path
    why: str
    size: int
    """Bytes."""


def not_needed(root: Path, planner: Planner | None = None) -> list[NotNeeded]:
    """Older checkpoints of runs that are over, checkpoints of trunks from which nothing forks any
    more, and folders of jobs that ended. Raises `UserError` for a folder that is no study.

    `planner`: of the study; without it trunks are kept, as a branch that has not been started has
    left nothing in the folder.
    """
    check_is_one_study(root)
    found = [*_checkpoints(root, planner)]
    for one in launchers():
        try:
            found += one.leftovers(root)
        except UnreachableError as error:
            say_once(f"without what jobs left: {error}")
    if not found and not folders_below(root):
        raise UserError(f"{root}: holds neither a run nor a job of this package; name a study")
    return [
        NotNeeded(path, why, sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
        for path, why in found
        if path.resolve() == root.resolve() / path.relative_to(root)  # no link in between
    ]


def delete(
    root: Path, found: Iterable[NotNeeded], planner: Planner | None = None
) -> list[NotNeeded]:
    """Delete what of it is still not needed once no submitter is at work; returns that."""
    with the_only_submitter(root):
        still = {one.path for one in not_needed(root, planner)}
        gone = [one for one in found if one.path in still]
        for one in gone:
            shutil.rmtree(one.path)
    return gone


def _is_over(folder: Path) -> bool:
    """Whether a run is done or has diverged; nothing is known of one whose record is damaged."""
    try:
        run_record.read_header(folder)
        return run_record.is_over(folder)
    except UserError:
        return False


def _checkpoints(root: Path, planner: Planner | None) -> Iterator[tuple[Path, str]]:
    """But those from which a run forks that was handed to a launcher and is not over."""
    needed = {
        Path(fork.folder).name
        for path in root.glob("*/job/config.toml")
        if (fork := config.load(path).execution.fork_from)
        if not _is_over(path.parent.parent)
    }
    given_up = set()
    if planner:
        # A trunk that it does not plan may be another scale's, whose branches are not known here.
        trunks = {one.run.run_id for one in trunks_of(planner.asked_for(), planner)}
        planned = (*planner.decided(), *planner.whole())
        given_up = trunks - {run.trunk.run_id for run in planned if run.trunk}
    # Of this study alone: which trunks are needed is not known of a folder full of studies.
    for folder in sorted(path.parent for path in root.glob("*/run.json")):
        if not _is_over(folder) or run_lock.is_held(folder) or folder.name in needed:
            continue
        header, steps = run_record.read_header(folder), checkpoint_steps(folder)
        if header["role"] != "trunk":
            kept = header["config"]["execution"].get("keep_steps", ())
            why = "not the last checkpoint of a run that is over"
            yield from (
                (checkpoint_place(folder, step), why) for step in steps[:-1] if step not in kept
            )
        elif folder.name in given_up:
            why = "nothing forks from this trunk any more"
            yield from ((checkpoint_place(folder, step), why) for step in steps)
