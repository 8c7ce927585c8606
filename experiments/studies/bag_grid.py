"""Bag size × step ratio: final loss over (s, r), as in Tables 4 to 6 and Figures 4, 5, 8 and 11."""

from experiments.studies.grid import Part, against_baseline, grid
from experiments.studies.paper_settings import DENSE_270M, DENSE_270M_LONG, DENSE_600M
from experiments.studies.scales import Scale

TITLE = "Bag size and step ratio"
CLAIMS = "Which s and r are best at one size and length; all r of one s share a trunk."


def parts(scale: Scale) -> list[Part]:
    if scale.is_paper:
        return [
            against_baseline(DENSE_270M, grid(range(2, 17), scale.step_ratios)),
            against_baseline(DENSE_270M_LONG, grid(range(2, 14), scale.step_ratios)),
            against_baseline(DENSE_600M, grid(range(2, 14), scale.step_ratios)),
        ]
    arms = grid(scale.bag_sizes, scale.step_ratios)
    return [against_baseline(scale.setting, arms, scale.seeds)]
