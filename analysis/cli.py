"""The verbs that read other trainers' logs, advise on a planned run, and judge runs."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tst_study.command_line import RESULTS, verb
from tst_study.text import amount, announced, printable, screen_width, wrapped

verbs = typer.Typer()


@verb(
    verbs,
    RESULTS,
    "tst-study import logs/ --template runs.csv",
    "tst-study import logs/ --facts runs.csv --set seed=0 --to imported",
    name="import",
)
def import_(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="LOGS",
            help="Logs of other trainers, or folders of logs. NAME=PATH names the run.",
        ),
    ],
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the runs into this archive.")
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Only write a runs.csv, with the facts to fill in."),
    ] = None,
    facts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read facts from a filled-in runs.csv.")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a fact of all runs. Repeatable."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=KEY",
            help="Name the key under which the logs hold a column. Repeatable.",
        ),
    ] = None,
    unit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[COLUMN=]UNIT",
            help="Unit of the losses: nats (default), bits, bits-per-byte or perplexity.",
        ),
    ] = None,
    arm_from: Annotated[
        str | None,
        typer.Option(
            metavar="folder",
            help="Name each run's arm after the folder that holds the run.",
        ),
    ] = None,
    steps_from: Annotated[
        int, typer.Option(metavar="0|1", help="Number of the first step in the logs.")
    ] = 1,
) -> None:
    """Turn logs of other trainers, or tables of finished runs, into an archive."""
    from tst_study.errors import UserError

    with announced("Reading the logs"):
        from tst_study.analysis.tables.archive import add_to_archive
        from tst_study.analysis.tables.imports import import_logs, pairs, write_template
        from tst_study.analysis.wording import number

        columns = pairs(column, "--column")
        if template is not None and to is None:
            count = write_template(template, sources, columns, arm_from)
            said = [f"{template}: a row for each of {number(count, 'run')}; fill it in for --facts"]
        elif to is not None and template is None:
            runs = import_logs(
                sources,
                pairs(given, "--set"),
                facts,
                columns,
                unit or ["nats"],
                arm_from=arm_from,
                steps_from=steps_from,
            )
            added = add_to_archive(to, runs)
            written = f"{to}: {number(len(added.written), 'run')} written"
            if added.replaced or added.kept:
                written += f", {len(added.replaced)} of them in place of earlier ones"
                written += f", {len(added.kept)} kept"
            said = [*map(printable, runs.problems), written]
        else:
            raise UserError("import: give either --to ARCHIVE or --template FILE")
    print(*wrapped(said, screen_width()), sep="\n")


@verb(
    verbs,
    RESULTS,
    "tst-study advise --params 1B --tokens 100B --text 200B --device H100 --price 2.5",
    "tst-study advise --config run.toml",
)
def advise(
    params: Annotated[
        str | None, typer.Option(metavar="COUNT", help="Parameters of the model, such as 270M.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(metavar="COUNT", help="Tokens that a baseline would read.")
    ] = None,
    active: Annotated[
        str | None,
        typer.Option(
            metavar="COUNT", help="Parameters active for one token, in a mixture of experts."
        ),
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="COUNT", help="Tokens of text that are available.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read the run from a run.toml, not from --params."),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(metavar="COUNT", min=1, max=2**20, help="GPUs that the run uses.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Kind of GPU, such as H100.")
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(metavar="PRICE", min=0.0, max=1e6, help="Price of one GPU-hour, for costs."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Say whether to superpose a planned run, how, and what it gains and costs."""
    from tst_study.errors import UserError

    more: dict[str, Any] = {"gpus": gpus, "device": device, "price": price}
    more["text"] = amount(text, "--text") if text else None
    with announced("Comparing the planned run with the published runs and ours"):
        from tst_study.analysis.advice.advise import advise, advise_config

        if config is not None and params is tokens is active is None:
            found = advise_config(config, **more)
        elif config is None and params and tokens:
            more["active"] = amount(active, "--active") if active else None
            found = advise(amount(params, "--params"), amount(tokens, "--tokens"), **more)
        else:
            raise UserError("advise: give --params and --tokens, such as 1B and 100B, or --config")
    if as_json:
        print(json.dumps(found.data, indent=1, ensure_ascii=False))
    else:
        print(*found.lines(), sep="\n")


@verb(
    verbs,
    RESULTS,
    "tst-study analyse --runs runs/laptop-quick",
    "tst-study analyse law --published --at 5e8,1e11",
)
def analyse(
    question: Annotated[
        str,
        typer.Argument(
            help="One of comparison, matched, bag-size, law, compute, chinchilla and "
            "mutual-information."
        ),
    ] = "comparison",
    runs: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="Folder of runs, or an archive. Repeatable."),
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Use the paper's numbers in place of runs.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="PARAMS,TOKENS", help="Size and length at which `law` recommends s and r."
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="PREFIX", help="Token file for `mutual-information`, without its .bin."
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            metavar="FORM",
            help="Curve that `compute` fits to loss over size: parabola (default) or akima.",
        ),
    ] = None,
    huber: Annotated[
        float | None,
        typer.Option(
            metavar="DELTA",
            min=1e-12,
            help="Delta of the Huber loss on log L that `chinchilla` minimises. 0.001 by default.",
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the answer into a JSON file, too.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer as JSON and nothing else.")
    ] = False,
) -> None:
    """Answer one question about runs, or about the published numbers, with intervals."""
    with announced(f"Reading the runs and answering {question!r}"):
        from tst_study.analysis.questions import ask

        answer = ask(
            question,
            runs or None,
            of_published=published,
            at=at,
            tokens=tokens,
            form=form,
            huber=huber,
        )
    print(answer.to_json() if as_json else answer)
    if to is not None:
        answer.write_json(to)
