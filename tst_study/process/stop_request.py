"""Ask a running loop to stop at the next step, by a signal or by its own end."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


class StopRequest:
    """Holds the name of the signal that asked for a stop, or None."""

    def __init__(self) -> None:
        self.signal: str | None = None

    def ask(self, number: int, frame: FrameType | None = None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C does not wait for the checkpoint
        self.signal = signal.Signals(number).name


@contextmanager
def listening() -> Iterator[StopRequest]:
    """Signals turn into a request while the block runs."""
    request = StopRequest()
    with signals_handled(request.ask):
        yield request


@contextmanager
def signals_handled(
    handle: Callable[[int, FrameType | None], None], signals: Iterable[signal.Signals] = SIGNALS
) -> Iterator[None]:
    """Whatever asks a process to stop calls `handle` instead; a hang-up that `nohup` has turned
    off stays off. Only the main thread can listen: in any other nothing changes."""
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
