"""The command `tst-study figures`."""

from pathlib import Path
from typing import Annotated

import typer

from tst_study.command_line import RESULTS, look_for_garbage_rarely, verb
from tst_study.paper_figures import EXTENSIONS, FOLDERS, PAGES, STUDY
from tst_study.waiting import waiting

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
        typer.Option(
            help=f"Names (repeatable). A study's own figures: {', '.join(STUDY)}; beyond the "
            f"paper: {', '.join(EXTENSIONS)}; the paper's: table1 to table28, figure1 to "
            f"figure11; whole groups: {', '.join(FOLDERS)}; pages: "
            f"{', '.join(PAGES)}."
        ),
    ] = None,
) -> None:
    """Draw the paper's tables and figures, further ones, and the report.

    For a paper there are LaTeX tables, and PDFs without titles."""
    from tst_study.paper_figures.build import build

    look_for_garbage_rarely()
    with waiting("reading the runs") as say:
        built = build(runs, to, only=only, say=say)
    print(*built.lines(), sep="\n")
