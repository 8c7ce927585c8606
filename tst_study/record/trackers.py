"""Sends copies of a run's rows to TensorBoard and Weights & Biases (W&B), if `execution.track`
names them. The record that counts is the run folder.

If a tracker fails, a line on stderr says so and the run goes on without it. Both libraries write
or send rows in the background.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tst_study.config.schema import TrackerName
from tst_study.errors import one_line
from tst_study.record.reader import RunHeader

Show = Callable[[dict[str, float], int], Any]
"""A function that sends the values of a row, by name, to a tracker; its second argument is the
step."""


@contextmanager
def _tensorboard(folder: Path, header: RunHeader) -> Iterator[Show]:
    """Write event files into the folder `tensorboard` of the run folder."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard")) as writer:
        yield lambda values, step: [writer.add_scalar(k, v, step) for k, v in values.items()]


@contextmanager
def _wandb(folder: Path, header: RunHeader) -> Iterator[Show]:
    """Log to a W&B run, in a project that has the study's name. `WANDB_MODE` and W&B's other
    environment variables apply."""
    import wandb

    run_id = header["run_id"]
    with wandb.init(
        project=header["study"],
        name=run_id,
        id=run_id,
        group=re.sub(r"-?seed\d+", "", header["config"]["name"]),  # the runs of an arm
        dir=folder,
        config=header["config"],
        resume="allow",
    ) as run:
        # W&B's own step may only grow, so W&B would drop rows of steps that a resumed run logs
        # again. A metric `step` is the horizontal axis instead.
        run.define_metric("*", step_metric="step")
        yield lambda values, step: run.log({**values, "step": step})


Tracker = Callable[[Path, RunHeader], AbstractContextManager[Show]]
"""A function that opens a tracker for a run folder and its `run.json`."""
TRACKERS: dict[TrackerName, Tracker] = {"tensorboard": _tensorboard, "wandb": _wandb}


class Trackers:
    """The trackers of one launch."""

    def __init__(self, names: Iterable[TrackerName], folder: Path, header: RunHeader) -> None:
        self._shows: dict[str, Show] = {}
        self._open = ExitStack()
        for name in names:
            with self._failing_alone(name):
                self._shows[name] = self._open.enter_context(TRACKERS[name](folder, header))

    def row(self, kind: str, row: Mapping[str, Any]) -> None:
        """Show the numbers of a logged row as `KIND/NAME`; `kind` is "training" or "held_out". The
        name of a training loss tells which loss it is (`training/bag_mce_loss`), because the losses
        of bags and of next tokens are two curves."""
        values = {
            f"{kind}/{row['loss_name']}_loss" if name == "loss" else f"{kind}/{name}": float(value)
            for name, value in row.items()
            if isinstance(value, float | int) and name not in ("segment", "step")
        }
        for name, show in list(self._shows.items()):
            with self._failing_alone(name):
                show(values, row["step"])

    def close(self) -> None:
        """Let the trackers send the rows that they still hold, and close them."""
        with self._failing_alone("a tracker"):
            self._open.close()

    @contextmanager
    def _failing_alone(self, name: str) -> Iterator[None]:
        """Drop the tracker `name` if the block raises an exception, and print why: no error of a
        tracker's library, network or disk may stop a run."""
        try:
            yield
        except Exception as error:
            self._shows.pop(name, None)
            print(f"{name}: {one_line(error)}; the run goes on without it", file=sys.stderr)
