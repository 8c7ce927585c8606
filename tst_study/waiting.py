"""What the program does while a user waits."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Say on a terminal what the program does while the block runs.

    Yields a function that changes the text.
    """
    # `--help`, which imports this module, must answer at once.
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    # What a block prints must reach a pipe, so that only the terminal's own stream is redirected.
    with Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        disable=not console.is_terminal,
    ) as line:
        task = line.add_task(what)
        yield lambda text: line.update(task, description=text)
