"""Tables and figures: published numbers and run folders → pictures, tables, a report. No torch.

`catalogue` lists them; `paper/`, `extensions/` and `study/` make them; `build` writes them. Their
names stand here, so that help and completion need not load them.
"""

PAPER = (*(f"table{i}" for i in range(1, 29)), *(f"figure{i}" for i in range(1, 12)))
EXTENSIONS = ("law_of_superposition", "loss_against_compute")
STUDY = ("data_constrained", "effects", "gain_over_training", "loss_curves", "overview")
NAMES = (*PAPER, *EXTENSIONS, *STUDY)
"""Every table and figure, in the order of pages."""
FOLDERS = ("paper", "extensions", "study")
PAGES = ("report", "reproduction")
