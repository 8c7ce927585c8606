"""A request to stop a running loop at its next step, made by a signal."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


class StopRequest:
    """The name of the signal that asked for a stop, or None."""

    def __init__(self) -> None:
        self.signal: str | None = None

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C does not wait for the checkpoint
        self.signal = signal.Signals(number).name


@contextmanager
def listening() -> Iterator[StopRequest]:
    """Yield a request that signals set while the block runs."""
    request = StopRequest()
    with signals_handled(request.ask):
        yield request


@contextmanager
def signals_handled(
    handle: Callable[[int, FrameType | None], None], signals: Iterable[signal.Signals] = SIGNALS
) -> Iterator[None]:
    """Call `handle` for signals that ask the process to stop, while the block runs. SIGHUP stays
    ignored if `nohup` has turned it off. Only the main thread can handle signals; in any other
    thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    handled = [number for number in signals if number != signal.SIGHUP or not ignored]
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
