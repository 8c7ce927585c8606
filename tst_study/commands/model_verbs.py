"""The verbs for a model after its training: export, import, evaluate.

Errors that need no torch come before torch is imported.
"""

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from tst_study.atomic_files import written_atomically
from tst_study.errors import UserError
from tst_study.evaluation.options import EvaluationOptions, TokenizerFile, takes_options

TrainedRunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
AfterStep = Annotated[
    int | None, typer.Option(help="The checkpoint after this many steps; by default the last.")
]


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
    from tst_study.checkpoints.trained_run import open_run
    from tst_study.huggingface.tokenizer_files import tokenizer_of_run

    opened = open_run(run, step)
    found = tokenizer_of_run(opened, tokenizer)

    from tst_study.huggingface.export import export as write_export

    made = write_export(
        opened, to, found, allow_superposition_checkpoint=allow_superposition_checkpoint
    )
    print(f"step {opened.step} of {run}: {made}")


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
    from tst_study.config import to_toml
    from tst_study.huggingface.import_model import config_from_model

    config = config_from_model(model, config_file, overrides or [])
    if to.exists():
        raise UserError(f"{to}: already exists; name a new file")
    to.parent.mkdir(parents=True, exist_ok=True)
    with written_atomically(to) as file:
        file.write(to_toml(config).encode())
    print(f"{to}: start it with `tst-study train {quote(str(to))}`")


@takes_options(EvaluationOptions)
def evaluate(run: TrainedRunFolder, step: AfterStep = None, **options: Any) -> None:
    """Measure a trained run; what is found is added to its evals.jsonl."""
    from tst_study.checkpoints.trained_run import open_run
    from tst_study.run import lock as run_lock

    opened = open_run(run, step)

    from tst_study.evaluation.run import evaluate_run

    with run_lock.hold(run):
        for line in evaluate_run(opened, EvaluationOptions(**options)):
            print(line)


def register(app: typer.Typer) -> None:
    app.command()(export)
    app.command("import")(import_model)
    app.command()(evaluate)
