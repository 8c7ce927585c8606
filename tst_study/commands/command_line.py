"""`tst-study …`: one verb per thing a researcher does in a day.

Every import beyond typer stands inside the command that needs it: `--help` must answer at once,
and only `train`, `export`, `import` and `evaluate` may import torch.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from tst_study.commands import model_verbs, study_verbs
from tst_study.errors import OtherRankError, UserError
from tst_study.text import is_whole, printable

if TYPE_CHECKING:
    from tst_study.config import Config
    from tst_study.data.manifest import Manifest

app = typer.Typer(
    help="Token Superposition Training: prepare data, train, run studies, draw their figures.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="Make and verify token files.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data, name="data")


# Typer has click's classes under names of its own, which differ between its versions.
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]


@app.callback()
def _every_command(
    debug: Annotated[bool, typer.Option(help="Show tracebacks (may stand anywhere).")] = False,
) -> None:
    pass


@app.command()
def train(
    config_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG.toml|run.json|RUN]",
            help="The run's configuration, or with --again a run's id.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. model.hidden_size=256."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Run folder; runs/<study>/<run id> by default.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print config and cost, make every check, and stop.")
    ] = False,
    time: Annotated[
        bool, typer.Option("--time", help="With --dry-run: time a few steps here.")
    ] = False,
    again: Annotated[
        Path | None,
        typer.Option(
            metavar="ARCHIVE", help="Train a run of this archive again and compare the losses."
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=4096, help="Ranks to start here; 1 is this process itself.")
    ] = 1,
) -> None:
    """Train one run, or go on with it from its last checkpoint."""
    from tst_study import config
    from tst_study.commands import last_words
    from tst_study.data.manifest import NoTokenFilesError
    from tst_study.process.rank_environment import (
        adopt_slurm_ranks,
        check_rank_variables,
        prepare_for_gpus,
        rank_variable,
    )
    from tst_study.run import lock as run_lock

    if config_file is None and not overrides:
        raise UserError("name a config: `tst-study train run.toml`; docs/config.md has its keys")
    record = None
    if again is not None:
        from experiments.run_again import compared, recorded

        record = recorded(again, str(config_file or ""), overrides or [])
        resolved, folder = record.config, folder or Path("runs/again") / record.run_id
    else:
        resolved = config.load(config_file, overrides or [])
    if dry_run:
        from tst_study.commands.dry_run import check_start, describe

        try:
            identity, stream = check_start(resolved, folder, processes)
        except NoTokenFilesError as error:  # what the run would cost does not depend on them
            print(describe(resolved, f"no id yet: {error}"))
            raise
        seconds = None
        if time:
            from experiments.plan.timing import seconds_per_step

            seconds = seconds_per_step(resolved)
        print(describe(resolved, identity, stream, seconds))
        return
    if time:
        raise UserError("--time: only with --dry-run, to estimate how long training takes")
    folder = folder or _run_folder(resolved)
    prepare_for_gpus()
    if processes > 1:
        from tst_study.process.local_ranks import train_on_processes

        raise typer.Exit(
            train_on_processes(
                processes,
                _without_processes(sys.argv[1:]),
                died=lambda words: _note_the_end(resolved, folder, words),
            )
        )
    adopt_slurm_ranks()
    check_rank_variables()
    # Of the ranks that torchrun starts, one holds the run and speaks for all.
    first = rank_variable("RANK") == 0
    before = last_words.of_done_before(resolved, folder)
    if before is not None:
        if first:
            print(before, *(compared(record, folder) if record else ()), sep="\n")
        return
    with run_lock.hold(folder) if first else nullcontext():
        from tst_study.train import train as train_run

        state = train_run(resolved, folder)
    if first:
        said = (
            last_words.of_done(folder) if state == "done" else last_words.of_stopped(folder, state)
        )
        print(*said, sep="\n")
    if state != "done":
        raise typer.Exit(1)
    if first and record:
        print(*compared(record, folder), sep="\n")


def _note_the_end(config: Config, folder: Path, words: str) -> None:
    """The last word on a run whose first rank could not say it."""
    from tst_study.run.writer import mark
    from tst_study.run_record import read_status

    status = read_status(folder)
    if status is not None and status["state"] == "running":
        mark(folder, config, "failed", words)


model_verbs.register(app)
study_verbs.register(app)


@app.command()
def figures(
    runs: Annotated[
        Path | None, typer.Option(help="Folder of runs; none: published numbers alone.")
    ] = None,
    to: Annotated[
        Path, typer.Option(help="Folder to write figures, tables and report into.")
    ] = Path("figures"),
    only: Annotated[
        list[str] | None,
        typer.Option(help="table4, figure4, report, tables, extensions, … (repeatable)."),
    ] = None,
) -> None:
    """Draw the paper's tables and figures, those it lacks, and the report."""
    from paper_figures.build import build

    for line in build(runs, to, only=only).lines():
        print(line)


@app.command()
def analyse(
    question: Annotated[
        str,
        typer.Argument(
            help="comparison, matched, set-ups, bag-size, law, compute, chinchilla, data "
            "or mutual-information."
        ),
    ] = "comparison",
    runs: Annotated[Path | None, typer.Option(help="Folder of runs.")] = None,
    published: Annotated[
        bool, typer.Option("--published", help="The paper's numbers in place of runs.")
    ] = False,
    table: Annotated[
        Path | None, typer.Option(help="CSV or parquet of runs trained elsewhere.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="PARAMS,TOKENS", help="Where `law` is to recommend.")
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="Token file (mutual-information), without .bin.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="File to write; by default DIR/analysis/QUESTION.json.")
    ] = None,
) -> None:
    """Say what runs, or the published numbers, show: one question, with intervals."""
    from analysis.questions import ask

    answer = ask(question, runs, of_published=published, table=table, at=at, tokens=tokens)
    for line in answer.lines():
        print(line)
    named = runs or table
    if json is None and named is not None:
        folder = named if named.is_dir() else named.parent
        json = folder / "analysis" / f"{question}.json"
    if json is not None:
        answer.write_json(json)
        print(f"\n{json}")


@data.command("prepare")
def data_prepare(
    source: Annotated[
        list[str],
        typer.Option(
            help="Text, JSONL (.gz, .xz, .bz2, .zst), a folder, a Hugging Face dataset, or books."
        ),
    ],
    to: Annotated[Path, typer.Option(help="Folder to write.")],
    tokenizer: Annotated[
        str, typer.Option(help="bytes, bpe:WORDS, a tokenizer.json, or a Hugging Face id.")
    ] = "bpe:1024",
    validation: Annotated[
        list[str] | None, typer.Option(help="Held-out text; by default a share is held out.")
    ] = None,
    validation_share: Annotated[
        float | None, typer.Option(help="Share of the documents held out; 0.01 by default.")
    ] = None,
    text_field: Annotated[str, typer.Option(help="JSON field or column of the text.")] = "text",
    end_of_document: Annotated[
        str | None, typer.Option(help="The token that ends a document, if not the usual one.")
    ] = None,
    limit_bytes: Annotated[
        int | None, typer.Option(min=1, help="Stop after about this many bytes of text.")
    ] = None,
) -> None:
    """Turn text into token files. Goes on where an interrupted call left off."""
    from tst_study.data.preparation.prepare import prepare
    from tst_study.data.preparation.request import Request

    request = Request(
        source,
        tokenizer,
        validation=validation or [],
        validation_share=validation_share,
        text_field=text_field,
        end_of_document=end_of_document,
        limit_bytes=limit_bytes,
    )
    _say_prepared(to, prepare(request, to))


@data.command("generate")
def data_generate(
    to: Annotated[Path, typer.Option(help="Folder to write.")],
    tokens: Annotated[int, typer.Option(min=2, max=10**12, help="Training tokens.")] = 5_000_000,
    validation_tokens: Annotated[
        int, typer.Option(min=2, max=10**12, help="Held-out tokens.")
    ] = 262_144,
    words: Annotated[int, typer.Option(min=2, max=2**20, help="Size of the vocabulary.")] = 2048,
    classes: Annotated[int, typer.Option(min=1, max=2**14, help="Markov word classes.")] = 64,
    topics: Annotated[int, typer.Option(min=1, max=2**14, help="Topics.")] = 16,
    seed: Annotated[int, typer.Option(min=0, max=2**63, help="Of the language and the text.")] = 0,
) -> None:
    """Generate a topical language of known entropy rate."""
    from tst_study.data.preparation.generated_language import LanguageParameters, generate

    language = LanguageParameters(words, classes, topics, seed=seed)
    _say_prepared(to, generate(to, tokens, validation_tokens, language))


@data.command("adopt")
def data_adopt(
    files: Annotated[list[Path], typer.Argument(help="Token files (.bin) of one folder.")],
    vocabulary_size: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="Of what made the ids.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The tokenizer.json that made them, if there is one.")
    ] = None,
    end_of_document: Annotated[
        int | None, typer.Option(min=0, help="The id that ends a document.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of files without .idx, such as nanoGPT's: uint16, int32, …")
    ] = None,
) -> None:
    """Write the manifest of token files made elsewhere: Megatron's, nanoGPT's."""
    from tst_study.data.preparation.adopt import adopt

    made = adopt(
        files,
        vocabulary_size,
        tokenizer=tokenizer,
        end_of_document=end_of_document,
        dtype=dtype,
    )
    _say_prepared(files[0].parent, made)


@data.command("verify")
def data_verify(
    folder: Annotated[list[Path], typer.Argument(help="Prepared folders.")],
) -> None:
    """Compare every byte of prepared folders with their manifests. (Training compares a sample.)"""
    from tst_study.data.integrity import verify

    for one in folder:
        _say_prepared(one, verify(one), ", every byte as it was prepared")


def main() -> NoReturn:
    """Entry point: what is wrong with the input is one line and status 2, a bug one line and
    status 1."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        status = _answered(arguments)
    except OtherRankError as error:
        _end(f"{error}", 3, debug)
    except UserError as error:
        _end(f"error: {_rank()}{error}", 2, debug)
    except KeyboardInterrupt:
        _end("stopped", 130, debug)
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            # What the system refuses of a path: a folder that is a file, a loop, no permission.
            reason = f"{os.fsdecode(error.filename)}: {error.strerror}; name another place"
            _end(f"error: {_rank()}{reason}", 2, debug)
        if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):
            _end(f"error: {_rank()}{error}; name another place", 2, debug)  # `Path.resolve`'s own
        if isinstance(error, MemoryError):
            said = f"memory ran out ({error})" if str(error) else "memory ran out"
            _end(f"error: {_rank()}{said}; ask for less, or on a machine with more", 2, debug)
        text = f"{type(error).__name__}: {error}"
        _end(f"error: {_rank()}{text} (--debug shows where)", 1, debug)
    sys.exit(status)


def _answered(arguments: list[str]) -> int:
    """Run a command; its exit status. Raises `UserError` for bad arguments."""
    for argument in arguments:
        if not is_whole(argument):
            raise UserError(f"argument {argument!r}: is not UTF-8; rename what it names")
    try:
        status = app(args=arguments, prog_name="tst-study", standalone_mode=False)
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            return 2
        raise UserError(f"{error.format_message()} (--help shows what there is)") from None
    return status if isinstance(status, int) else 0


def _rank() -> str:
    """Whose error it is, where there are several processes."""
    rank = os.environ.get("RANK")
    return f"rank {rank}: " if rank and os.environ.get("WORLD_SIZE", "1") != "1" else ""


def _end(line: str, status: int, debug: bool) -> NoReturn:
    """One line on the screen, whatever a file or an argument has put into it."""
    if debug:
        raise
    print(printable(" ".join(line.split())), file=sys.stderr)
    sys.exit(status)


def _without_processes(arguments: list[str]) -> list[str]:
    """The same command for one rank: `--processes 4` and `--processes=4` are left out."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and not argument.startswith("--processes"):
            kept.append(argument)
        skip = argument == "--processes"
    return kept


def _run_folder(config: Config) -> Path:
    from tst_study.data.run_data import fingerprints
    from tst_study.run.identity import fingerprint, run_id

    identity = fingerprint(config, fingerprints(config))
    return Path("runs") / config.study / run_id(config, identity)


def _say_prepared(folder: Path, manifest: Manifest, more: str = "") -> None:
    for split, record in manifest.splits.items():
        held = f"{record.tokens:,} tokens in {record.documents:,} documents"
        print(f"{folder}: {split}: {held}{more}")
