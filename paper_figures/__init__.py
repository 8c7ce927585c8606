"""Tables, figures and two pages, drawn from published numbers and from runs, without torch.

`catalogue` lists the tables and figures, the modules of `paper/`, `extensions/` and `study/` make
them, and `build` writes them. Their names are repeated here, so that the command line's help and
completion need not import those modules.
"""

PAPER = (*(f"table{i}" for i in range(1, 29)), *(f"figure{i}" for i in range(1, 12)))
EXTENSIONS = ("law_of_superposition", "loss_against_compute")
STUDY = (
    *("data_constrained", "effects", "gain_against_size"),
    *("gain_over_training", "loss_curves", "overview"),
)
NAMES = (*PAPER, *EXTENSIONS, *STUDY)
"""Every table and figure, in the order in which they are made and `reproduction.md` has them."""
FOLDERS = ("paper", "extensions", "study")
"""The subpackages of makers; each is also the name of a group for `--only`."""
PAGES = ("report", "reproduction")
"""Names for `--only` of `report.html` and `reproduction.md`."""
