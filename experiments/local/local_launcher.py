"""The launchers of this machine: `Local`, and `Gpus`, which shares out its GPUs. One call of
`submit` prepares text, trains every run and draws the report."""

import os
import signal
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from glob import glob
from pathlib import Path
from shlex import quote

from tst_study import file_lock
from tst_study.errors import UserError
from tst_study.experiments.launcher import Job, Options, check_can_be_trained
from tst_study.experiments.local import progress
from tst_study.experiments.local.queue import StoppedError, launch
from tst_study.experiments.plan.layouts import Allocation
from tst_study.experiments.plan.planned_run import PlannedRun
from tst_study.experiments.plan.planner import prepare
from tst_study.experiments.run_process import cancel_mark, log_path
from tst_study.experiments.state.collect import collect, mark_left
from tst_study.experiments.state.status import folders_below, row, rows_of_study
from tst_study.experiments.study import Study
from tst_study.record.reader import FINAL_STATES
from tst_study.text import screen_width, wrapped

CANCELLABLE = ("waiting", "preempted", "interrupted", "failed")
"""States of runs that no process trains, but that a launcher may still start. `cancel` marks such
runs, so that no launcher starts them."""


class Local:
    """A `Launcher` that trains runs in child processes of the command that submits them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._seats: list[str] = []
        """GPUs for one run each, separated by commas; none if all runs see the same."""

    def submit(self, study: Study, wanted: Callable[[PlannedRun], bool] = lambda run: True) -> int:
        """Prepare the text, train the runs, draw the report and print what it shows.

        Returns the exit status: 0, or 1 if a run did not finish, or 128 plus the number of the
        signal that stopped the command. Raises `UserError` for a dry run, if a layout cannot work,
        and if a corpus cannot be prepared.
        """
        if self._options.dry or self._options.top_up:
            raise UserError("--dry-run and --top-up apply to Slurm only; `plan` lists the runs")
        check_can_be_trained(study, wanted, self.allocation)
        print(*wrapped([study.title, study.claims], screen_width()), sep="\n", flush=True)
        prepare(study)
        try:
            with progress.shown() as draw:
                queue = launch(study, self._options, draw, wanted, seats=self._seats)
        except StoppedError as stopped:
            print(f"Stopped ({stopped}). The same command resumes from the last checkpoints.")
            return stopped.status
        if not folders_below(study.folder):
            archives = ", ".join(map(str, study.recorded))
            print(f"Nothing to train: every run is recorded in {archives}.")
            return 0
        mark_left(study)  # again, since with new results the study may ask for runs that were left
        print("Drawing figures and report.", flush=True)
        at_scale = f" at scale {study.scale}" if study.scale else ""
        lines = ["", f"What {study.name}{at_scale} says", study.claims, ""]
        try:
            lines += collect(study.folder, partial(rows_of_study, study))
            print(*wrapped(lines, screen_width()), sep="\n")
        finally:  # The disk may be full, which both runs and the report fail for.
            if queue.failed:
                lines = [
                    f"error: runs that did not finish: {len(queue.failed)}; submit again to retry; "
                    f"their logs: tst-study logs {quote(str(study.folder))}"
                ]
                lines += [f"  {run.run_id}: {why}" for run, why in queue.failed.values()]
                if len(queue.decided) < len(queue.whole):
                    lines.append("  More runs depend on them and were not started.")
                print(*wrapped(lines, screen_width()), sep="\n", file=sys.stderr)
        return int(bool(queue.failed))

    def jobs(self, root: Path) -> dict[str, Job]:
        """Return no jobs. Whether a run is being trained on this machine shows in its lock
        (`file_lock`)."""
        return {}

    def cancel(self, root: Path, wanted: Callable[[str], bool]) -> set[str]:
        """Mark wanted runs as cancelled: those whose state is in `CANCELLABLE`, and those that a
        process on this machine holds, unless they are over. Such a process gets SIGTERM; if it is
        training, it writes a checkpoint and ends. Return the ids of the marked runs."""
        folders = (path.parent for path in root.glob("*/job") if wanted(path.parent.name))
        # A run that is over can be held only by its evaluation, which nobody asked to stop.
        live = {each: state for each in folders if (state := row(each).state) not in FINAL_STATES}
        waiting = [folder for folder, state in live.items() if state in CANCELLABLE]
        # Waiting runs are marked first, because each run that is stopped frees a slot, in which its
        # launcher would start one of them.
        for folder in waiting:
            cancel_mark(folder).touch()
        return {folder.name for folder in live if _stop(folder) or folder in waiting}

    def hint(self, root: Path, waiting: Collection[str]) -> str:
        return ""

    def logs(self, root: Path, run_id: str) -> list[Path]:
        first = log_path(root / run_id)
        return [*sorted(first.parent.glob("log-rank*.txt")), first]

    def allocation(self, study: Study, run: PlannedRun) -> Allocation:
        return Allocation(self._options.processes)


class Gpus(Local):
    """A `Launcher` that trains runs as `Local` does, but each on GPUs of its own.

    Whatever `Local` says or does about runs on this machine is about those of this launcher, too,
    so this one has no logs of its own and nothing to cancel.
    """

    def submit(self, study: Study, wanted: Callable[[PlannedRun], bool] = lambda run: True) -> int:
        """Train the runs as `Local` does. Also raises `UserError` if there are too few GPUs."""
        names, need = _gpus(), self._options.processes
        starts = range(0, len(names) - need + 1, need)
        self._seats = [",".join(names[start : start + need]) for start in starts]
        if not self._seats:
            raise UserError(
                f"GPUs on this machine: {len(names)}, of which each run needs {need}; give fewer "
                "--processes, or name the GPUs in CUDA_VISIBLE_DEVICES"
            )
        return super().submit(study, wanted)

    def cancel(self, root: Path, wanted: Callable[[str], bool]) -> set[str]:
        return set()

    def logs(self, root: Path, run_id: str) -> list[Path]:
        return []

    def allocation(self, study: Study, run: PlannedRun) -> Allocation:
        return Allocation(self._options.processes, on_gpu=True)


def _gpus() -> list[str]:
    """The names of the GPUs that may be used here, as CUDA_VISIBLE_DEVICES gives them, or else the
    numbers of all of NVIDIA's on this machine. Touches none of them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(number) for number in range(len(glob("/proc/driver/nvidia/gpus/*")))]
    return [name for word in named.split(",") if (name := word.strip()) and name != "-1"]


def _stop(folder: Path) -> bool:
    owner = file_lock.owner(folder)
    if owner is None:
        return False
    cancel_mark(folder).touch()
    with suppress(ProcessLookupError):
        os.kill(owner, signal.SIGTERM)
    return True
