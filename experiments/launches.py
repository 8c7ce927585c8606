"""Counts the launches of a run, and says when it is given up.

A launch is one attempt to train a run: its ranks start, and end or are stopped. Whatever starts
ranks in jobs (`slurm/launch`) counts launches here, in the file `job/launches` of the run's folder.
After too many of them in a row without a new checkpoint the run is marked as failed.
"""

from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from tst_study.atomic_files import disk_errors_named, write_json
from tst_study.experiments.run_process import last_checkpoint, submitted_config
from tst_study.record.reader import is_over, read_status
from tst_study.record.writer import mark

RETRIES = 3
"""How many consecutive launches of a run may stop or crash without a new checkpoint. After one more
such launch the run is given up."""


def given_up(idle: int, retries: int, why: str) -> str:
    """Say why a run is given up after `idle` launches in a row without a new checkpoint. The text
    is empty if these are no more than `retries`: then the run is launched again. `why`: how the
    last launch ended."""
    words = f"given up: launches in a row without a new checkpoint: {idle}"
    return "" if idle <= retries else f"{words} ({why})" if why else words


@dataclass(frozen=True)
class Launches:
    """Counts of a run's launches since its last submission, and how the last of them ended.

    When a launch's ranks have ended, or its time is nearly up, it counts if the run needs another
    launch. It does not count if its node died, if the cluster itself requeued the job, if the run
    was cancelled, or if another process held the run.
    """

    number: int = 0
    idle: int = 0
    """The number of consecutive launches, up to the last one, that left no new checkpoint."""
    last: str = ""
    """Words that say how the last launch ended."""


def launches_of(folder: Path) -> Launches:
    """Read the counts of a run's launches. They are 0 if the file that holds them is missing or
    damaged, so that `tst-study status` can always show the study."""
    # Other errors of the disk are raised: where it is away, the counts may still be there.
    with suppress(FileNotFoundError, IsADirectoryError, ValueError):
        return TypeAdapter(Launches).validate_json((folder / "job" / "launches").read_bytes())
    return Launches()


def remark(folder: Path) -> str:
    """Summarise a run's launches for people. The text is empty if no launch has been counted."""
    launches = launches_of(folder)
    if not launches.number:
        return ""
    idle = f", in a row without a new checkpoint: {launches.idle}" if launches.idle else ""
    return f"launched again: {launches.number}{idle}, last: {launches.last}"


def counted(folder: Path, before: int, words: str) -> Launches:
    """Count a launch and return the new counts. `before`: the step of the last checkpoint when the
    launch began; `words`: how it ended. Raises `UserError` if the counts cannot be written. The run
    must then not be launched again, because uncounted launches could go on for ever."""
    path = folder / "job" / "launches"
    with disk_errors_named(path):
        launches = launches_of(folder)
        idle = 0 if last_checkpoint(folder) > before else launches.idle + 1
        now = Launches(launches.number + 1, idle, words)
        write_json(path, asdict(now))
    return now


def give_up(folder: Path, why: str) -> None:
    """Mark a run as failed, unless it is over. Its ranks must have ended or been killed, since they
    would overwrite the status. If there were too many launches (`given_up`), the last message that
    the ranks left is added after `why`."""
    status = read_status(folder)
    if not is_over(folder):
        last_words = status["message"] if status and why.startswith("given up") else ""
        text = ": ".join(filter(None, (why, last_words)))
        mark(folder, submitted_config(folder), "failed", text)
