"""Ask a running loop to stop at the next step, by a signal or by its own end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class StopRequest:
    """Holds the name of the signal that asked for a stop, or None."""

    def __init__(self) -> None:
        self.signal: str | None = None

    def ask(self, number: int, frame: object = None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C does not wait for the checkpoint
        self.signal = signal.Signals(number).name


@contextmanager
def listening() -> Iterator[StopRequest]:
    """Signals turn into a request while the block runs; only the main thread can listen."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.ask) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
