"""A line on stderr that tells a waiting user what the program is doing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Say on stderr that the program is doing `what` while the block runs.

    A terminal shows this at once and erases it at the end. A file or a pipe gets a line only if the
    block takes more than two seconds. Yields a function that changes the text on a terminal.
    """
    # Imported here so that `--help`, which imports this module, stays fast.
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    # If stdout is a terminal, rich shows above the line what the block prints there. Output into a
    # pipe must stay as it is.
    with Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        disable=not console.is_terminal,
    ) as line:
        task = line.add_task(what)
        timer = Timer(2.0, print, [f"{what} …"], {"file": sys.stderr, "flush": True})
        if not console.is_terminal:
            timer.start()
        try:
            yield lambda text: line.update(task, description=text)
        finally:
            timer.cancel()
