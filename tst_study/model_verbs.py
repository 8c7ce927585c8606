"""The verbs for a model after its training: export, import, evaluate.

Errors that need no torch come before torch is imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tst_study.errors import UserError

TrainedRunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
AfterStep = Annotated[
    int | None, typer.Option(help="The checkpoint after this many steps; by default the last.")
]
TokenizerFile = Annotated[
    Path | None,
    typer.Option(help="The run's tokenizer.json, where its corpus is not on this machine."),
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
    from tst_study.huggingface.tokenizer_files import tokenizer_of_run
    from tst_study.trained_run import open_run

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
        raise UserError(f"{to}: is there already; name a new file")
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(to_toml(config), encoding="utf8")
    print(f"{to}: start it with `tst-study train {to}`")


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
        Path | None,
        typer.Option(
            help="Folder of tasks of your own, in lm-eval's YAML. They can run code on this "
            "machine: use none that you do not trust."
        ),
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


def register(app: typer.Typer) -> None:
    app.command()(export)
    app.command("import")(import_model)
    app.command()(evaluate)
