"""The verb that answers questions about runs."""

from pathlib import Path
from typing import Annotated

import typer

from tst_study.command_line import RESULTS, verb

verbs = typer.Typer()


@verb(
    verbs,
    RESULTS,
    "tst-study analyse --runs runs/laptop-quick",
    "tst-study analyse law --published --at 1e9,2e10",
)
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
