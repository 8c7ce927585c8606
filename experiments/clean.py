"""What of a study nothing needs any more. A run's record is never among it.

Only what this package made is ever named: a folder that is no study is refused, a copy of code must
carry its marker and the name of its content, and nothing that lies elsewhere is reached by a link
or by what a file says.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.code_copy import copies
from experiments.slurm import submission
from experiments.slurm.jobs import Key
from tst_study import run_lock, run_record
from tst_study.checkpoint_places import checkpoint_place, checkpoint_steps
from tst_study.errors import UserError
from tst_study.run_record import FINAL_STATES


@dataclass(frozen=True)
class NotNeeded:
    path: Path
    why: str
    size: int
    """Bytes."""


def not_needed(root: Path) -> list[NotNeeded]:
    """Older checkpoints of runs that are over, checkpoints of trunks from which every branch has
    forked, and folders of jobs that ended. Raises `UserError` for a folder that is no study."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; name a study or its folder")
    if not _is_study(root):
        raise UserError(f"{root}: holds neither a run nor a job of this package; name a study")
    found = [*_checkpoints(root), *_job_folders(root)]
    return [NotNeeded(path, why, _size(path)) for path, why in found if _lies_in(path, root)]


def delete(found: Iterable[NotNeeded]) -> None:
    for one in found:
        shutil.rmtree(one.path)


def _is_study(root: Path) -> bool:
    return any(_runs(root)) or any(submission.all_of(root))


def _runs(root: Path) -> list[Path]:
    """Of this study alone: which trunks are needed is not known of a folder full of studies."""
    return sorted(path.parent for path in root.glob("*/run.json"))


def _lies_in(path: Path, root: Path) -> bool:
    """Whether nothing between the two is a link."""
    return path.resolve() == root.resolve() / path.relative_to(root)


def _checkpoints(root: Path) -> Iterator[tuple[Path, str]]:
    needed = _forked_from(root)
    for folder in _runs(root):
        status = run_record.read_status(folder)
        if not status or status["state"] not in FINAL_STATES or run_lock.is_held(folder):
            continue
        places = [checkpoint_place(folder, step) for step in checkpoint_steps(folder)]
        if run_record.read_header(folder)["role"] != "trunk":
            yield from (
                (place, "not the last checkpoint of a run that is over") for place in places[:-1]
            )
        elif folder.name not in needed:
            yield from ((place, "every branch has forked from this trunk") for place in places)


def _forked_from(root: Path) -> set[str]:
    """Trunks that a branch may still fork from: one that is not over, or is not there yet."""
    needed = set()
    for path in root.glob("*/job/config.toml"):
        from tst_study import config

        fork = config.load(path).execution.fork_from
        status = run_record.read_status(path.parent.parent)
        if fork and (not status or status["state"] not in FINAL_STATES):
            needed.add(Path(fork.folder).name)
    return needed


def _job_folders(root: Path) -> Iterator[tuple[Path, str]]:
    submissions = submission.all_of(root)
    active = _active(submissions)
    for one in submissions:
        if one.id not in active:
            yield one.folder(root), "its jobs have ended"
    used = {Path(one.code).name for one in submissions if one.id in active}
    for place in copies(root):
        if place.name not in used:
            yield place, "code of jobs that have ended"


def _active(submissions: list[submission.Submission]) -> set[str]:
    if not submissions:
        return set()
    from experiments.slurm.jobs import Job, in_the_queue

    known: dict[Key, Job] = in_the_queue()
    return {name for (name, _), job in known.items() if job.is_active}


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
