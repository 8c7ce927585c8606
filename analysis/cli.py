"""The verb that answers questions about runs."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tst_study.command_line import RESULTS, verb

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
        list[str], typer.Argument(help="Logs of other trainers, or folders of them; NAME=PATH.")
    ],
    to: Annotated[Path | None, typer.Option(help="Archive to write into.")] = None,
    template: Annotated[
        Path | None, typer.Option(help="Write a runs.csv to fill in, and nothing else.")
    ] = None,
    facts: Annotated[Path | None, typer.Option(help="The runs.csv, filled in.")] = None,
    given: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A fact of all runs.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=KEY", help="What the log calls one of our columns."),
    ] = None,
    unit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[COLUMN=]UNIT",
            help="Of the losses: nats, bits, bits-per-byte or perplexity; nats by default.",
        ),
    ] = None,
    arm_from: Annotated[
        str | None, typer.Option(help="`folder`: a run's folder is called after its arm.")
    ] = None,
    steps_from: Annotated[int, typer.Option(help="What the log calls its first step: 1 or 0.")] = 1,
) -> None:
    """Turn logs of other trainers, or tables of finished runs, into an archive."""
    from tst_study.analysis.tables.archive import add_to_archive
    from tst_study.analysis.tables.imports import import_logs, pairs, write_template
    from tst_study.analysis.wording import number
    from tst_study.errors import UserError
    from tst_study.text import printable

    if (to is None) is (template is None):
        raise UserError("import: give either --to ARCHIVE or --template FILE")
    columns = pairs(column, "--column")
    if template is not None:
        count = write_template(template, sources, columns, arm_from)
        print(f"{template}: a row for each of {number(count, 'run')}; fill it in for --facts")
    if to is not None:
        found = import_logs(
            sources,
            pairs(given, "--set"),
            facts,
            columns,
            unit or ["nats"],
            arm_from=arm_from,
            steps_from=steps_from,
        )
        for line in found.problems:
            print(printable(line))
        added = add_to_archive(to, found)
        print(
            f"{to}: {number(len(added.written), 'run')} written"
            + f", {len(added.replaced)} of them in place of earlier ones, {len(added.kept)} kept"
            * bool(added.replaced or added.kept)
        )


@verb(
    verbs,
    RESULTS,
    "tst-study advise --params 1B --tokens 100B --text 200B --device H100 --price 2.5",
    "tst-study advise --config run.toml",
)
def advise(
    params: Annotated[str | None, typer.Option(help="Parameters, such as 270M or 1e9.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Tokens that a baseline would read.")] = None,
    active: Annotated[
        str | None, typer.Option(help="Parameters active for a token, of a mixture of experts.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Tokens of text that there are.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="A run.toml, in place of --params and --tokens.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, max=2**20, help="GPUs of the run.")] = None,
    device: Annotated[str | None, typer.Option(help="Which ones, such as H100.")] = None,
    price: Annotated[float | None, typer.Option(min=0.0, max=1e6, help="Of a GPU-hour.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False,
) -> None:
    """Say whether to superpose a planned run, how, what it brings and costs, and how sure it is."""
    from tst_study.analysis.advice.advise import advise, advise_config
    from tst_study.errors import UserError
    from tst_study.text import amount

    more: dict[str, Any] = {"gpus": gpus, "device": device, "price": price}
    more["text"] = amount(text, "--text") if text else None
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
            help="comparison, matched, bag-size, law, compute, chinchilla or mutual-information."
        ),
    ] = "comparison",
    runs: Annotated[
        list[Path] | None, typer.Option(help="Folder of runs, or archive (repeatable).")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="The paper's numbers in place of runs.")
    ] = False,
    at: Annotated[
        str | None, typer.Option(metavar="PARAMS,TOKENS", help="Where `law` is to recommend.")
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="Token file (mutual-information), without .bin.")
    ] = None,
    form: Annotated[
        str | None, typer.Option(help="Of loss over size, for `compute`: parabola or akima.")
    ] = None,
    huber: Annotated[
        float | None,
        typer.Option(min=1e-12, help="Delta of `chinchilla`'s loss on log L; 0.001 by default."),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="JSON file to write the answer into.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer as JSON, and nothing else.")
    ] = False,
) -> None:
    """Say what runs, or the published numbers, show: one question, with intervals."""
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
    if as_json:
        print(answer.to_json())
    else:
        for line in answer.lines():
            print(line)
    if to is not None:
        answer.write_json(to)
