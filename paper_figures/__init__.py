"""Makes tables and figures (the paper's and further ones) and two pages, all of them from published
numbers and from runs (`tst-study figures`). It does not need torch.

`catalogue` lists the tables and figures. The modules of `paper/`, `extensions/` and `study/` make
them, and `build` writes them. The names of the tables and figures are repeated here, so that the
command line's help and completion need not import those modules."""

PAPER = (*(f"table{i}" for i in range(1, 29)), *(f"figure{i}" for i in range(1, 12)))
EXTENSIONS = ("law_of_superposition", "loss_against_compute")
STUDY = (
    "data_constrained",
    "effects",
    "gain_over_training",
    "loss_curves",
    "overview",
    "primary_answers",
)
NAMES = (*PAPER, *EXTENSIONS, *STUDY)
"""Every table and figure, in the order in which they are made. Each section of `reproduction.md`
keeps this order."""
FOLDERS = ("paper", "extensions", "study")
"""The subpackages whose modules make tables and figures. Each is also a group that `--only`
accepts."""
PAGES = ("report", "reproduction")
"""The names by which `--only` asks for the pages `report.html` and `reproduction.md`."""
