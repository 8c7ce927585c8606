"""Progress of a study here: a live table in a terminal, a line every ten seconds elsewhere."""

import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from experiments.local.queue import Queue
from experiments.state.status import StatusRow, row
from experiments.state.status_screen import lines
from tst_study.text import duration

SHOWN = 24
"""Runs in the live table at most; those that train and those that failed come first."""
SECONDS = 10.0


class Progress:
    """Called with the queue a few times a second; a context manager, so that the terminal is left
    in order."""

    def __init__(self, console: Console, title: str, *, every: float = SECONDS) -> None:
        self._console, self._title, self._every = console, title, every
        self._started = time.monotonic()
        self._shown = float("-inf")
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, queue: Queue) -> None:
        now, is_over = time.monotonic(), not (queue.running or queue.waiting)
        if not is_over and now - self._shown < (0.5 if self._live else self._every):
            return
        self._shown = now
        headline = f"{duration(now - self._started)} | {_headline(queue)}"
        if self._live:
            table = lines(_rows(queue), self._console.width)
            text = Text("\n".join([self._title, *table, headline]), no_wrap=True)
            self._live.update(text, refresh=True)
        else:
            said = [headline]
            for one in (row(run.folder) for run in queue.running.values()):
                loss = "" if one.loss is None else f"loss {one.loss:.3f}"
                words = (one.run_id, one.phase, f"{one.step}/{one.steps}", loss)
                said.append(" ".join(filter(None, words)))
            self._console.print(Text(" | ".join(said)), soft_wrap=True)


def _headline(queue: Queue) -> str:
    # A trunk is no longer planned once its last branch has begun.
    trunks = queue.over.keys() - {one.fingerprint for one in queue.decided}
    total = max(len(queue.whole), len(queue.decided)) + len(trunks)
    parts = [f"{len(queue.over)} of {total} runs over", f"{len(queue.running)} running"]
    if queue.failed:
        parts.append(f"{len(queue.failed)} failed")
    if queue.running or queue.waiting:
        left = time_left(queue)
        parts.append("time left: measuring" if left is None else f"{duration(left)} left")
    return " | ".join(parts)


def _rows(queue: Queue) -> list[StatusRow]:
    first = [*queue.running.values(), *(one for one, _ in queue.failed.values())]
    shown = {one.fingerprint: one for one in (*first, *queue.waiting, *queue.over.values())}
    chosen = [one for one, _ in zip(shown.values(), range(SHOWN), strict=False)]
    order = {one.fingerprint: place for place, one in enumerate(queue.decided)}
    chosen.sort(key=lambda one: order.get(one.fingerprint, len(order)))
    return [row(one.folder, one.steps) for one in chosen]


def time_left(queue: Queue) -> float | None:
    """Seconds until the last run is over, at the pace of those that train; None before any of them
    has one."""
    rows = [row(one.folder) for one in queue.running.values()]
    paced = [one for one in rows if one.seconds_left and one.steps > one.step]
    if not paced:
        return None
    pace = sum(one.seconds_left or 0.0 for one in paced) / sum(
        one.steps - one.step for one in paced
    )
    left = [one.seconds_left or pace * (one.steps - one.step) for one in rows]
    known = queue.over.keys() | queue.failed.keys() | queue.running.keys()
    # Before a sweep has chosen, the whole study has runs of another rate, but as many.
    left += [
        pace * (one.steps - one.first_step) for one in queue.whole if one.fingerprint not in known
    ]
    return max(sum(left) / queue.slots, max(left))
