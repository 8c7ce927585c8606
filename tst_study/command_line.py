"""`tst-study …`: one verb per thing a researcher does in a day.

Every import beyond typer stands inside the command that needs it: `--help` must answer at once,
and only `train`, `export` and `evaluate` may import torch.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from tst_study.errors import UserError

if TYPE_CHECKING:
    from tst_study.config import Config

app = typer.Typer(
    help="Token Superposition Training: prepare data, train, run studies, draw their figures.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="Make token files.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data, name="data")

StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="Name of a study: laptop.")]
ScaleName = Annotated[str, typer.Option(help="Scale of the study: smoke, quick, laptop, desktop.")]
TrainedRunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
AfterStep = Annotated[
    int | None, typer.Option(help="The checkpoint after this many steps; by default the last.")
]
TokenizerFile = Annotated[
    Path | None,
    typer.Option(help="The run's tokenizer.json, where its corpus is not on this machine."),
]
RunsFolder = Annotated[
    Path | None, typer.Option("--runs", help="Its runs' folder; runs/STUDY-SCALE by default.")
]


@app.callback()
def _every_command(
    debug: Annotated[bool, typer.Option(help="Show tracebacks (may stand anywhere).")] = False,
) -> None:
    pass


@app.command()
def train(
    config_file: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="The run's configuration.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. model.hidden_size=256."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Run folder; runs/<study>/<run id> by default.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved config and its cost, and stop.")
    ] = False,
) -> None:
    """Train one run, or go on with it from its last checkpoint."""
    from tst_study import config, run_lock

    resolved = config.load(config_file, overrides or [])
    if dry_run:
        from tst_study.dry_run import describe

        print(describe(resolved))
        return
    folder = folder or _run_folder(resolved)
    # Of the ranks that torchrun starts, one holds the run and speaks for all.
    first = os.environ.get("RANK", "0") == "0"
    with run_lock.hold(folder) if first else nullcontext():
        from tst_study.train import train as train_run

        state = train_run(resolved, folder)
    if first:
        print(f"{state}: {folder}")
    if state != "done":
        raise typer.Exit(1)


@app.command()
def export(
    run: TrainedRunFolder,
    to: Annotated[Path, typer.Option(help="Folder to write; it must not exist yet.")],
    step: AfterStep = None,
    tokenizer: TokenizerFile = None,
    allow_superposition_checkpoint: Annotated[
        bool,
        typer.Option(
            "--allow-superposition-checkpoint",
            help="Export a checkpoint from inside the superposition phase, no language model.",
        ),
    ] = False,
) -> None:
    """Write a run's checkpoint as an ordinary Hugging Face model."""
    from tst_study.huggingface.tokenizer_files import tokenizer_of_run
    from tst_study.trained_run import open_run

    opened = open_run(run, step)
    found = tokenizer_of_run(opened, tokenizer)

    from tst_study.huggingface.export import export as write_export

    made = write_export(
        opened, to, found, allow_superposition_checkpoint=allow_superposition_checkpoint
    )
    print(f"step {opened.step} of {run}: {made}")


@app.command("import")
def import_model(
    model: Annotated[Path, typer.Argument(metavar="DIR", help="A Hugging Face model's folder.")],
    to: Annotated[Path, typer.Option(help="The run's configuration to write (TOML).")],
    config_file: Annotated[
        Path | None, typer.Option("--config", help="All but the model: data, batch, …, in TOML.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As of `train`.")
    ] = None,
) -> None:
    """Write the configuration of a run that starts from a Hugging Face model."""
    from tst_study.config_toml import to_toml
    from tst_study.huggingface.import_model import config_from_model

    config = config_from_model(model, config_file, overrides or [])
    if to.exists():
        raise UserError(f"{to}: is there already; name a new file")
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(to_toml(config), encoding="utf8")
    print(f"{to}: start it with `tst-study train {to}`")


@app.command()
def evaluate(
    run: TrainedRunFolder,
    step: AfterStep = None,
    held_out: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="Held-out text; by default the run's own."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=2, help="Held-out tokens of each; by default the run's.")
    ] = None,
    context: Annotated[
        bool, typer.Option("--context", help="Also word order, copying and long contexts.")
    ] = False,
    tasks: Annotated[
        str | None,
        typer.Option(help="Also these tasks of lm-eval, by commas; `paper` are the paper's."),
    ] = None,
    task_data: Annotated[
        Path | None, typer.Option(help="Folder of the tasks' data sets, for want of a network.")
    ] = None,
    task_definitions: Annotated[
        Path | None, typer.Option(help="Folder of tasks of your own, in lm-eval's YAML.")
    ] = None,
    shots: Annotated[int, typer.Option(min=0, help="Solved examples before a question.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first questions of each task.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=2, help="Longest context; by default that of training.")
    ] = None,
    tokenizer: TokenizerFile = None,
    exported: Annotated[
        Path | None,
        typer.Option("--export", help="Put the tasks to this export instead of the checkpoint."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Measure a trained run; what is found is added to its evals.jsonl."""
    from tst_study import run_lock
    from tst_study.trained_run import open_run

    opened = open_run(run, step)

    from tst_study.evaluate_run import Wanted, evaluate_run

    wanted = Wanted(
        held_out=held_out or [],
        tokens=tokens,
        context=context,
        tasks=tasks,
        task_data=task_data,
        task_definitions=task_definitions,
        shots=shots,
        limit=limit,
        max_length=max_length,
        tokenizer=tokenizer,
        export=exported,
        device=device,
    )
    with run_lock.hold(run):
        for line in evaluate_run(opened, wanted):
            print(line)


@app.command()
def plan(study: StudyName, scale: ScaleName = "quick", runs: RunsFolder = None) -> None:
    """List the runs of a study, what they cost and which are done."""
    from experiments.plan_table import lines
    from experiments.study import load

    chosen = load(study, scale)
    for line in lines(chosen, runs or chosen.folder):
        print(line)


@app.command()
def submit(
    study: StudyName,
    scale: ScaleName = "quick",
    launcher: Annotated[str, typer.Option(help="Where the runs are trained: local.")] = "local",
    parallel: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; by default what the cores hold.")
    ] = None,
    runs: RunsFolder = None,
) -> None:
    """Run a study: data, runs, figures, report. What is done is skipped."""
    from experiments.study import load
    from experiments.submit import submit_locally

    if launcher != "local":
        raise UserError(f"--launcher {launcher}: not known; there is: local")
    chosen = load(study, scale)
    raise typer.Exit(submit_locally(chosen, runs or chosen.folder, parallel))


@app.command()
def status(
    study: Annotated[str, typer.Argument(metavar="STUDY|DIR", help="A study or runs' folder.")],
    scale: ScaleName = "quick",
) -> None:
    """Show how far the runs of a study, or of any folder of runs, are."""
    from rich.console import Console

    from experiments.status import rows_below, table, totals
    from experiments.study import STUDIES, load

    root = load(study, scale).folder if study in STUDIES else Path(study)
    rows = rows_below(root)
    console = Console()
    console.print(table(rows, str(root)))
    print(totals(rows))


@app.command()
def figures(
    runs: Annotated[Path, typer.Option(help="Folder of runs.")],
    to: Annotated[Path, typer.Option(help="Folder to write figures, tables and report into.")],
    only: Annotated[
        list[str] | None, typer.Option(help="Draw these alone, by name (repeatable).")
    ] = None,
) -> None:
    """Draw figures, tables and the report from run folders."""
    from paper_figures.build import build

    built = build(runs, to, only=only)
    for gap in built.missing:
        print(f"{gap.title}: {gap.sentence}")
    print(f"{len(built.pictures)} pictures in {to}, {len(built.written)} files new")


@app.command()
def analyse(runs: Annotated[Path, typer.Option(help="Folder of runs.")]) -> None:
    """Say what the runs show: comparisons at equal FLOPs, with intervals."""
    from analysis.summary import summarise

    for line in summarise(runs).lines():
        print(line)


@data.command("prepare")
def data_prepare(
    source: Annotated[
        list[str],
        typer.Option(
            help="Text, JSONL (.gz, .xz, .zst), a folder, a Hugging Face dataset, or books."
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
        int | None, typer.Option(min=1, help="Stop after about so many bytes of text.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; one per core by default.")
    ] = None,
) -> None:
    """Turn text into token files. Goes on where an interrupted call left off."""
    from tst_study.data.prepare import prepare

    made = prepare(
        source,
        to,
        tokenizer,
        validation=validation or [],
        validation_share=validation_share,
        text_field=text_field,
        end_of_document=end_of_document,
        limit_bytes=limit_bytes,
        workers=workers,
    )
    _say_prepared(made.folder)


@data.command("generate")
def data_generate(
    to: Annotated[Path, typer.Option(help="Folder to write.")],
    tokens: Annotated[int, typer.Option(min=2, help="Training tokens.")] = 5_000_000,
    validation_tokens: Annotated[int, typer.Option(min=2, help="Held-out tokens.")] = 262_144,
    words: Annotated[int, typer.Option(min=2, help="Size of the vocabulary.")] = 2048,
    classes: Annotated[int, typer.Option(min=1, help="Markov word classes.")] = 64,
    topics: Annotated[int, typer.Option(min=1, help="Topics.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Of the language and the text.")] = 0,
) -> None:
    """Generate a topical language of known entropy rate."""
    from tst_study.data.generated_language import generate

    generate(to, tokens, validation_tokens, words=words, classes=classes, topics=topics, seed=seed)
    _say_prepared(to)


def main() -> NoReturn:
    """Entry point: a `UserError` is one line and status 2, a bug one line and status 1."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        app(args=arguments, prog_name="tst-study")
    except UserError as error:
        _end(f"error: {error}", 2, debug)
    except KeyboardInterrupt:
        _end("stopped", 130, debug)
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except Exception as error:
        text = " ".join(str(error).split())
        _end(f"error: {type(error).__name__}: {text} (--debug shows where)", 1, debug)
    sys.exit(0)


def _end(line: str, status: int, debug: bool) -> NoReturn:
    if debug:
        raise
    print(line, file=sys.stderr)
    sys.exit(status)


def _run_folder(config: Config) -> Path:
    from tst_study.data.of_config import fingerprints
    from tst_study.run_identity import fingerprint, run_id

    identity = fingerprint(config, fingerprints(config))
    return Path("runs") / config.study / run_id(config, identity)


def _say_prepared(folder: Path) -> None:
    from tst_study.data.manifest import read_manifest

    for split, record in read_manifest(folder).splits.items():
        print(f"{folder}: {split}: {record.tokens:,} tokens in {record.documents:,} documents")


if __name__ == "__main__":
    main()
