"""The verb that draws."""

from pathlib import Path
from typing import Annotated

import typer

from tst_study.command_line import RESULTS, verb
from tst_study.waiting import waiting

verbs = typer.Typer()

OWN = ("overview", "effects", "loss_curves", "gain_over_training", "data_constrained")
EXTENSIONS = ("law_of_superposition", "loss_against_compute")
PAPER = (*(f"table{i}" for i in range(1, 29)), *(f"figure{i}" for i in range(1, 12)))
GROUPS = ("paper", "extensions", "study", "report", "reproduction")
NAMES = (*OWN, *EXTENSIONS, *PAPER, *GROUPS)
"""All that `--only` takes, listed here so that help and completion need not load the figures."""


def completed(begun: str) -> list[str]:
    return [name for name in NAMES if name.startswith(begun)]


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
            autocompletion=completed,
            help="Names (repeatable). A study's own figures: "
            f"{', '.join(OWN)}; beyond the paper: {', '.join(EXTENSIONS)}; the paper's: table1 to "
            f"table28, figure1 to figure11; whole groups: {', '.join(GROUPS[:3])}; pages: "
            f"{', '.join(GROUPS[3:])}.",
        ),
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
    """Draw the paper's tables and figures, further ones, and the report."""
    from tst_study.paper_figures.build import build

    with waiting("reading the runs") as say:
        built = build(runs, to, only=only, for_print=for_print, say=say)
    print(*built.lines(), sep="\n")
