"""The options of `tst-study evaluate`, for the command line and for `evaluate_run`."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tst_study.command_line import count_option

TokenizerFile = Annotated[
    Path | None,
    typer.Option(help="The run's tokenizer.json, if its corpus is not on this machine."),
]


@dataclass(frozen=True)
class EvaluationOptions:
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER",
            help="A held-out text; by default the run's own.",
        ),
    ] = None
    tokens: Annotated[
        int | None,
        count_option("Held-out tokens of each text; by default as many as in training.", least=2),
    ] = None
    tasks: Annotated[
        str | None,
        typer.Option(help="Tasks of lm-eval with commas between them, or `paper` for its own."),
    ] = None
    shots: Annotated[
        int | None, count_option("Solved examples before a question; by default none.", least=0)
    ] = None
    limit: Annotated[
        int | None, count_option("Questions of each task, from its first; by default all.")
    ] = None
    max_length: Annotated[
        int | None, count_option("Longest context; by default that of training.", least=2)
    ] = None
    tokenizer: TokenizerFile = None
    device: Annotated[str, typer.Option(help="`auto`, `cpu` or `cuda`.")] = "auto"


def takes_options(options: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's `**options` by the options that a dataclass's fields describe."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own, described = (inspect.signature(x, eval_str=True) for x in (command, options))
        parameters = [*list(own.parameters.values())[:-1], *described.parameters.values()]
        command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate
