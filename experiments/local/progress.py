"""Progress of a study on this machine: a live table in a terminal, else lines now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tst_study.experiments.local.queue import Queue
from tst_study.experiments.state.status import StatusRow, row
from tst_study.experiments.state.status_screen import lines
from tst_study.text import duration, wrapped

SHOWN = 24
"""Most runs that the live table shows; runs that are training or have failed come first."""


@contextmanager
def shown(console: Console, title: str, every: float = 10.0) -> Iterator[Callable[[Queue], None]]:
    """Yield a function that draws the queue; call it several times a second. The terminal is
    restored at the end."""
    started, last = time.monotonic(), float("-inf")
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def draw(queue: Queue) -> None:
        nonlocal last
        now, is_over = time.monotonic(), not (queue.running or queue.waiting)
        if not is_over and now - last < (0.5 if live else every):
            return
        last = now
        headline = f"{duration(now - started)} | {_headline(queue)}"
        if live:
            # The time left comes first: a table that is longer than the screen loses its end.
            text = [*wrapped([title, headline], console.width), *lines(_rows(queue), console.width)]
            live.update(Text("\n".join(text[: console.height - 1]), no_wrap=True), refresh=True)
            return
        parts = [headline]
        for status in (row(run.folder) for run in queue.running.values()):
            loss = "" if status.loss is None else f"loss {status.loss:.3f}"
            words = (status.run_id, status.phase, f"{status.step}/{status.steps}", loss)
            parts.append(" ".join(filter(None, words)))
        console.print(Text(" | ".join(parts)), soft_wrap=True)

    with live or nullcontext():
        yield draw


def _headline(queue: Queue) -> str:
    # A shared prefix run is no longer planned once its last branch has begun.
    prefixes = queue.over.keys() - {run.fingerprint for run in queue.decided}
    total = max(len(queue.whole), len(queue.decided)) + len(prefixes)
    parts = [f"{len(queue.over)} of {total} runs over", f"{len(queue.running)} running"]
    if queue.failed:
        parts.append(f"{len(queue.failed)} failed")
    if queue.waiting and not queue.begun_at:
        parts.append("loading torch, once for all runs")
    elif queue.running or queue.waiting:
        seconds = time_left(queue)
        parts.append("time left: measuring" if seconds is None else f"{duration(seconds)} left")
    return " | ".join(parts)


def _rows(queue: Queue) -> list[StatusRow]:
    first = [*queue.running.values(), *(run for run, _ in queue.failed.values())]
    shown = {run.fingerprint: run for run in (*first, *queue.waiting, *queue.over.values())}
    chosen = [run for run, _ in zip(shown.values(), range(SHOWN), strict=False)]
    order = {run.fingerprint: place for place, run in enumerate(queue.decided)}
    chosen.sort(key=lambda run: order.get(run.fingerprint, len(order)))
    return [row(run.folder, run.steps) for run in chosen]


def time_left(queue: Queue) -> float | None:
    """Seconds until the last run is over, at the pace of the runs that are training; None before
    one of them knows its pace."""
    rows = [row(run.folder) for run in queue.running.values()]
    paced = [run for run in rows if run.seconds_left and run.steps > run.step]
    if not paced:
        return None
    pace = sum(run.seconds_left or 0.0 for run in paced) / sum(
        run.steps - run.step for run in paced
    )
    seconds = [run.seconds_left or pace * (run.steps - run.step) for run in rows]
    known = queue.over.keys() | queue.failed.keys() | queue.running.keys()
    # Before a sweep has chosen, the whole study has runs of another rate, but as many.
    seconds += [
        pace * (run.steps - run.first_step) for run in queue.whole if run.fingerprint not in known
    ]
    return max(sum(seconds) / queue.slots, max(seconds))
