"""The verb that draws."""

from pathlib import Path
from typing import Annotated

import typer

from tst_study.command_line import RESULTS, verb

verbs = typer.Typer()


@verb(
    verbs,
    RESULTS,
    "tst-study figures --to figures",
    "tst-study figures --runs runs/laptop-quick --only figure4 --only report",
)
def figures(
    runs: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of runs (repeatable); without it, the published numbers alone."),
    ] = None,
    to: Annotated[
        Path, typer.Option(help="Folder to write figures, tables and report into.")
    ] = Path("figures"),
    only: Annotated[
        list[str] | None,
        typer.Option(help="table4, figure4, report, tables, extensions, study, … (repeatable)."),
    ] = None,
    for_print: Annotated[
        bool,
        typer.Option(
            "--for-print",
            help="Write only what a paper includes: PDFs in column widths with embedded fonts and "
            "without titles, and LaTeX tables.",
        ),
    ] = False,
) -> None:
    """Draw the paper's tables and figures, those it lacks, and the report."""
    from tst_study.paper_figures.build import build

    for line in build(runs, to, only=only, for_print=for_print).lines():
        print(line)
