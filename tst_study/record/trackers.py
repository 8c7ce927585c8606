"""Copies of a run's rows for TensorBoard and W&B. The run folder stays the truth.

Each tracker that `execution.track` names takes the rows on a thread of its own. One that fails,
blocks or has lost its network costs a line on the terminal, but no step and no run.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any

from tst_study.config.schema import TrackerName
from tst_study.errors import UserError, one_line
from tst_study.record.reader import RunHeader

MOST_WAITING = 10_000
"""Rows that a slow tracker may lag behind; further ones are not shown."""
SECONDS_TO_FINISH = 60.0
"""Seconds for which the end of a launch waits for trackers."""

Show = Callable[[dict[str, float], int], Any]
"""A function that takes the values of a row, by name, and their step."""


@contextmanager
def _tensorboard(folder: Path, header: RunHeader, resumed_from: int | None) -> Iterator[Show]:
    """Write event files into `tensorboard/` of the run folder."""
    from torch.utils.tensorboard import SummaryWriter

    # Steps after the resume point leave the curves, as they leave the record.
    purge = None if resumed_from is None else resumed_from + 1
    with SummaryWriter(str(folder / "tensorboard"), purge_step=purge) as writer:
        yield lambda values, step: [writer.add_scalar(k, v, step) for k, v in values.items()]


@contextmanager
def _wandb(folder: Path, header: RunHeader, _: int | None) -> Iterator[Show]:
    """Log to a run in the project of the study's name; `WANDB_MODE` and its other variables
    apply."""
    import wandb

    run_id = header["run_id"]
    with wandb.init(
        project=header["study"],
        name=run_id,
        id=run_id,
        dir=folder,
        config=header["config"],
        resume="allow",
    ) as run:
        # By its own count of steps, W&B would drop a step that a resumed run logs again.
        run.define_metric("*", step_metric="step")
        yield lambda values, step: run.log({**values, "step": step})


Rows = Queue[tuple[dict[str, float], int] | None]
Tracker = Callable[[Path, RunHeader, int | None], AbstractContextManager[Show]]
TRACKERS: dict[TrackerName, Tracker] = {"tensorboard": _tensorboard, "wandb": _wandb}


class Trackers:
    """The trackers of one launch.

    Args:
        resumed_from: the steps that the launch begins after, or None at the beginning.

    Raises:
        UserError: one of them is not installed.
    """

    def __init__(
        self,
        names: tuple[TrackerName, ...],
        folder: Path,
        header: RunHeader,
        resumed_from: int | None,
    ) -> None:
        for name in names:
            if find_spec(name) is None:
                raise UserError(
                    f"execution.track: {name!r} is not installed; pip install 'tst-study[{name}]', "
                    "or leave it out"
                )
        self._followers: list[tuple[Thread, Rows]] = []
        for name in names:
            rows: Rows = Queue(MOST_WAITING)
            opening = TRACKERS[name](folder, header, resumed_from)
            # A daemon, because a tracker that never answers must not keep the process alive.
            thread = Thread(target=_follow, args=(name, opening, rows), daemon=True)
            thread.start()
            self._followers.append((thread, rows))

    def row(self, kind: str, row: Mapping[str, Any]) -> None:
        """Show the numbers of a logged row as `KIND/NAME`. A loss is shown under its own name,
        because a bag loss and a next-token loss are two curves."""
        values = {
            f"{kind}/{row['loss_name']}_loss" if name == "loss" else f"{kind}/{name}": float(value)
            for name, value in row.items()
            if isinstance(value, float | int) and name not in ("segment", "step")
        }
        for _, rows in self._followers:
            with suppress(Full):
                rows.put_nowait((values, row["step"]))

    def close(self) -> None:
        """Let the trackers show what they have, as long as they answer."""
        for _, rows in self._followers:
            with suppress(Full):
                rows.put_nowait(None)
        until = time.monotonic() + SECONDS_TO_FINISH
        for thread, _ in self._followers:
            thread.join(max(0.0, until - time.monotonic()))


def _follow(name: str, opening: AbstractContextManager[Show], rows: Rows) -> None:
    try:
        with opening as show:
            while (row := rows.get()) is not None:
                show(*row)
    except Exception as error:  # no error of a library, network or disk may stop the run
        print(f"{name}: {one_line(error)}; the run goes on without it", file=sys.stderr)
