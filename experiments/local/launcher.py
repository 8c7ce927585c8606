"""This machine as a launcher: from text to report in one call, which lasts as long as the study."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from experiments.launcher import Job, Options, check_before_preparing
from experiments.local.progress import Progress
from experiments.local.queue import Queue, StoppedError, fitting, launch
from experiments.plan.layouts import Allocation, Prices
from experiments.plan.planned_run import PlannedRun, is_over
from experiments.plan.planner import Planner
from experiments.run_process import cancel_mark, log_path
from experiments.state.status import jobs_if_known, row, rows_of
from experiments.study import Study
from tst_study.record import lock as run_lock
from tst_study.text import duration

WAITING = ("waiting", "preempted", "interrupted")
"""States of what a launcher may start."""


class Local:
    """Child processes of the one that submits; a `Launcher`."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def submit(
        self, study: Study, root: Path, wanted: Callable[[PlannedRun], bool] = lambda run: True
    ) -> int:
        """Prepare, train, draw, say. Returns the exit status: 1 where a run failed."""
        options, console = self._options, Console(highlight=False)
        check_before_preparing(study, root, options.share, self.allocation)
        if options.dry:
            return self._say_what(study, root, wanted)
        began = time.monotonic()
        _say(console, study.title, study.claims)
        study.prepare()
        try:
            with Progress(console, str(root)) as progress:
                queue = launch(study, root, options, progress, wanted)
        except StoppedError as stopped:
            again = self._command(study, root)
            _say(console, f"Stopped ({stopped}); nothing is lost. To go on: {again}")
            return stopped.status
        _say(console, "Drawing figures and report.")
        _conclude(console, study, root, options.share)
        _say(console, "", f"Total time {duration(time.monotonic() - began)}.")
        return _failures(queue)

    def jobs(self, root: Path) -> dict[str, Job]:
        """None: a run that is trained here is held by its process (`record.lock`)."""
        return {}

    def cancel(self, root: Path, wanted: Callable[[str], bool]) -> set[str]:
        """Have no launcher start those that wait, and ask the processes of this machine that hold
        runs to checkpoint and end."""
        folders = [path.parent for path in root.glob("*/job") if wanted(path.parent.name)]
        waiting = [folder for folder in folders if row(folder).state in WAITING]
        for folder in waiting:  # first: what ends makes room for them
            cancel_mark(folder).touch()
        return {folder.name for folder in folders if _stop(folder) or folder in waiting}

    def logs(self, root: Path, run_id: str) -> list[Path]:
        return [log_path(root / run_id)]

    def leftovers(self, root: Path) -> Iterable[tuple[Path, str]]:
        return ()

    def allocation(self, run: PlannedRun) -> Allocation:
        return Allocation(self._options.processes)

    def prices(self) -> Prices:
        return Prices()

    def _say_what(self, study: Study, root: Path, wanted: Callable[[PlannedRun], bool]) -> int:
        planned = Planner(study, root, self._options.share, unprepared=True).decided()
        runs = [run for run in planned if wanted(run)]
        open_ = [run for run in runs if not is_over(run)]
        at_once = self._options.parallel or fitting(planned, self._options.processes)
        print(f"{len(runs) - len(open_)} over; to be trained here, {at_once} at a time:")
        print(*(f"  {run.run_id}" for run in open_), sep="\n")
        return 0

    def _command(self, study: Study, root: Path) -> str:
        words = ["tst-study", "submit", study.name, "--scale", study.scale, "--runs", str(root)]
        if not study.scale:  # of a mere folder
            words = ["tst-study", "retry", study.name]
        return shlex.join([*words, *self._options.words()])


def _stop(folder: Path) -> bool:
    owner = run_lock.owner(folder)
    if owner is None or owner.host != os.uname().nodename:
        return False
    cancel_mark(folder).touch()
    with suppress(ProcessLookupError):
        os.kill(owner.process, signal.SIGTERM)
    return True


def _conclude(console: Console, study: Study, root: Path, share: bool) -> None:
    from experiments.state.collect import collect

    collected = collect(root, rows_of(study, root, share, jobs_if_known(root)))
    _say(console, "", f"What {study.name} at scale {study.scale} says", study.claims, "")
    _say(console, *collected.summary, "")
    _say(
        console, f"Runs    {root}/", f"Figures {root}/report/", f"Report  {root}/report/report.html"
    )


def _failures(queue: Queue) -> int:
    lines = queue.failures()
    if lines:
        print(
            f"error: {len(lines)} runs did not finish; submit again to retry them:",
            *(f"  {line}" for line in lines),
            sep="\n",
            file=sys.stderr,
        )
        if len(queue.decided) < len(queue.whole):
            print("  More runs depend on them and were not started.", file=sys.stderr)
    return 1 if lines else 0


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(Text(line), soft_wrap=True)
