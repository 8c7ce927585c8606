"""The progress of a study on this machine: one live line in a terminal, or a line now and then
where the output goes to a file or a pipe."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tst_study.experiments.local.queue import Queue
from tst_study.experiments.state.status import row
from tst_study.text import duration
from tst_study.waiting import waiting

MEASURED_STEPS = 200
"""After so many steps, or a twentieth of its steps, the pace of a run is known."""


@contextmanager
def shown(every: float = 10.0) -> Iterator[Callable[[Queue], None]]:
    """Yield a function that shows the state of a queue. It should be called several times a second,
    and decides itself when to show something new.

    `every`: seconds between two lines if the output is not a terminal.
    """
    started, last = time.monotonic(), float("-inf")
    is_screen = sys.stdout.isatty()

    with waiting("training the runs") as say:

        def draw(queue: Queue) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < (0.5 if is_screen else every):
                return
            last = now
            text = f"{duration(now - started)} | {_summary(queue)}"
            if is_screen:
                say(text)
            else:
                print(text, flush=True)

        yield draw


def _summary(queue: Queue) -> str:
    # A finished prefix run leaves the plan when no branch needs it any more. It still counts as one
    # of the runs here.
    finished_prefixes = queue.over.keys() - {run.fingerprint for run in queue.decided}
    total = max(len(queue.whole), len(queue.decided)) + len(finished_prefixes)
    parts = [f"{len(queue.over)} of {total} runs over", f"{len(queue.running)} running"]
    if queue.failed:
        parts.append(f"{len(queue.failed)} failed or cancelled")
    if queue.held:
        parts.append(f"{len(queue.held)} in another process")
    if queue.waiting and not (queue.begun_at or queue.held):
        parts.append("loading torch, once for all runs")
    elif queue.running:
        seconds = time_left(queue)
        parts.append("time left: measuring" if seconds is None else f"{duration(seconds)} left")
    for status in (row(run.folder) for run in queue.running.values()):
        loss = "" if status.loss is None else f"loss {status.loss:.3f}"
        steps = f"{status.step}/{status.steps}" if status.steps else "starting"
        words = (status.run_id, status.phase, steps, loss)
        parts.append(" ".join(filter(None, words)))
    return " | ".join(parts)


def time_left(queue: Queue) -> float | None:
    """Estimate the seconds until the last run is over, at the mean pace of the runs that are
    training now; None as long as none of them knows its pace. The first steps do not count, because
    they are slow."""
    rows = [row(run.folder) for run in queue.running.values()]
    begun = [run for run in rows if run.step >= min(MEASURED_STEPS, 0.05 * run.steps)]
    paced = [run for run in begun if run.seconds_left and run.step < run.steps]
    if not paced:
        return None
    steps = sum(run.steps - run.step for run in paced)
    pace = sum(run.seconds_left or 0.0 for run in paced) / steps
    seconds = [run.seconds_left or pace * (run.steps - run.step) for run in rows]
    known = queue.over.keys() | queue.failed.keys() | queue.running.keys()
    # Until a learning-rate sweep is decided, `whole` guesses which rate the later runs will have.
    # The guess does not change how long a run takes.
    later = (run for run in queue.whole if run.fingerprint not in known)
    seconds += [pace * (run.steps - run.first_step) for run in later]
    return max(sum(seconds) / queue.slots, max(seconds))
