"""The program `tst-study`. It finds its verbs by entry points, and prints every error as one
message without a traceback.

The verbs are in `tst_study/cli.py` and in the `cli.py` of `experiments`, `analysis` and
`paper_figures`. `pyproject.toml` lists these modules as entry points of the group
`tst_study.verbs`, so that nothing here imports them by name. `--help` must answer at once, so each
verb imports slow libraries inside its function.
"""

import gc
import io
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any, NoReturn, TypeVar

import tst_study
from tst_study.errors import OtherRankError, UserError, not_installed

try:
    import typer
    from typer.core import TyperGroup
except ModuleNotFoundError as missing:  # without the extras only `tst_study.superposition` works
    sys.exit(f"error: {not_installed(missing.name or 'typer')}")

from tst_study.text import printable, whole_amount, wrapped

VERBS = "tst_study.verbs"
"""The group of the entry points that hold verbs."""
ONE_RUN, STUDIES, RESULTS = ("One run", "Studies", "Results")
"""The headings under which `--help` lists the verbs."""
# The base class of usage errors, which is click's. It is taken from the bases of a class that typer
# exports, because the versions of typer name it differently.
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
Function = TypeVar("Function", bound=Callable[..., None])


class Verbs(TyperGroup):
    """A group of verbs whose `--help` lists them by heading, each with its whole description."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        # Groups of verbs come first, because text is prepared before a run is trained.
        verbs = sorted(self.commands.values(), key=lambda verb: not isinstance(verb, TyperGroup))
        for heading in dict.fromkeys(getattr(verb, "rich_help_panel", "") for verb in verbs):
            shown = [verb for verb in verbs if getattr(verb, "rich_help_panel", "") == heading]
            with formatter.section(heading or "Commands"):
                formatter.write_dl(
                    [(verb.name, " ".join((verb.help or "").split())) for verb in shown]
                )


def verb(
    app: typer.Typer, group: str, *examples: str, name: str | None = None
) -> Callable[[Function], Function]:
    """Make the decorated function a verb of `app`, listed under the heading `group`.

    `examples`: command lines for its `--help`. `name`: by default that of the function.
    """
    # Click keeps the lines of a paragraph that begins with this character.
    epilog = "\n".join(["\b", "Examples:", *examples])
    return app.command(name, rich_help_panel=group, epilog=epilog)


def count_option(help: str, *names: str, least: int = 1, most: int = 2**63 - 1) -> Any:
    """Return a `typer.Option` for a whole number as people write it: `270M`, `1B`, `20,000`.

    `names`: names of the option, such as `--limit`; by default it is named after the parameter.
    `least`, `most`: bounds of the number, inclusive.
    """

    def read(text: str | int) -> int:
        try:
            value = whole_amount(str(text))
        except UserError as error:
            raise typer.BadParameter(str(error)) from None
        if not least <= value <= most:
            bound = f"least {least:,}" if value < least else f"most {most:,}"
            raise typer.BadParameter(f"{text!r}: give a number of at {bound}")
        return value

    return typer.Option(*names, parser=read, metavar="COUNT", help=help)


def look_for_garbage_rarely() -> None:
    """Nearly all objects of an answer live until it is given. To look through them after every 700
    new ones, as Python does, takes a tenth of the time."""
    gc.set_threshold(100_000)


def _installed_verbs() -> Iterable[EntryPoint]:
    """Return the entry points that hold verbs.

    In a checkout they are read from `pyproject.toml`, since the package need not be installed
    there.
    """
    declared = Path(tst_study.__file__).parents[1] / "pyproject.toml"
    if declared.is_file():
        project = tomllib.loads(declared.read_text(encoding="utf8")).get("project", {})
        if named := project.get("entry-points", {}).get(VERBS):
            return [EntryPoint(name, value, VERBS) for name, value in named.items()]
    return entry_points(group=VERBS)


def _version(asked: bool) -> None:
    if asked:
        print(f"tst-study {tst_study.__version__}")
        raise typer.Exit


def program() -> typer.Typer:
    """Build the command line with all verbs."""
    app = typer.Typer(
        help="Token Superposition Training: prepare data, train, run studies, draw their figures.",
        cls=Verbs,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        callback=_every_verb,
    )
    for entry in _installed_verbs():
        app.add_typer(entry.load())
    return app


def _every_verb(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command line and exit.

    An error is printed as one message, wrapped on a terminal. The exit status is then 2 for wrong
    input, for a path that the system refuses and for a missing package, 3 if another rank has
    failed, 130 for an interrupt, and 1 for a bug or a closed output pipe. Without an error it is
    what the verb returns. With `--debug` errors are raised, for their tracebacks.
    """
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a character shows a "?"; a file gets the character's number.
            stream.reconfigure(errors="replace" if stream.isatty() else "backslashreplace")
    try:
        status = _answered(arguments)
    except BrokenPipeError:
        # The reader of our output, such as `head`, has ended; the interpreter must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            raise
        message, status = _in_words(error)
        # Line breaks and control characters from a file or an argument must not reach the terminal.
        line = printable(" ".join(message.split()))
        width = get_terminal_size().columns if sys.stderr.isatty() else len(line) + 1
        print(*wrapped([line], width), sep="\n", file=sys.stderr)
    sys.exit(status)


def _in_words(error: BaseException) -> tuple[str, int]:
    """Return the message to print for an error, and the exit status."""
    status, message = 2, str(error)
    match error:
        case KeyboardInterrupt():
            return "stopped", 130
        case OtherRankError():
            return message, 3
        case UserError():
            pass
        # The system refuses a path: a folder that is a file, a loop, no permission.
        case OSError() if error.filename is not None:
            message = f"{os.fsdecode(error.filename)}: {error.strerror}; name another place"
        case RuntimeError() if message.startswith("Symlink loop"):  # raised by `Path.resolve`
            message = f"{message}; name another place"
        case ModuleNotFoundError(name=str(name)) if not name.startswith(("tst_study", "_")):
            message = not_installed(name.partition(".")[0])
        case MemoryError():
            reason = f" ({message})" if message else ""
            message = f"not enough memory{reason}; raise the limit of this process or its job"
        case _:
            status, message = 1, f"{type(error).__name__}: {message} (--debug shows where)"
    # Several processes of one run print to the same screen.
    rank = os.environ.get("RANK") if os.environ.get("WORLD_SIZE", "1") != "1" else None
    return f"error: {f'rank {rank}: ' if rank else ''}{message}", status


def _answered(arguments: list[str]) -> int:
    """Run a command and return its exit status, 0 unless the verb returns one.

    Raises `UserError` for bad arguments.
    """
    for option, override, following in zip(arguments, arguments[1:], arguments[2:], strict=False):
        if option == "--set" and re.match(r"[\w.]+=", following):
            raise UserError(
                f"{following}: give a value to each --set: --set {override} --set {following}"
            )
    try:
        status = program()(args=arguments, prog_name="tst-study", standalone_mode=False)
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            return 2
        words, options = error.format_message(), error.ctx.command.params if error.ctx else ()
        if "extra argument" in words and any("--runs" in option.opts for option in options):
            words += "; name runs by --runs, after `tst-study import` if they are logs or a table"
        # An argument in place of an option, or an option in place of an argument, or neither.
        examples = (error.ctx.command.epilog or "").split("\n")[2:] if error.ctx else []
        if examples and re.match("Missing|Got unexpected extra|No such option(?!.*mean)", words):
            words = f"{words.rstrip('.')}; such as: {examples[0]}"
        raise UserError(f"{words} (--help shows what there is)") from None
    return status if isinstance(status, int) else 0
