"""Power-law weights of the targets, 1/i, over (s, r): Table 7."""

from experiments.studies.grid import Part, against_baseline, grid
from experiments.studies.paper_settings import DENSE_600M
from experiments.studies.scales import Scale

TITLE = "Power-law weights over bag size and step ratio"
CLAIMS = "Whether weights 1/i flatten the loss over s; uniform weights are `bag-grid`'s."


def parts(scale: Scale) -> list[Part]:
    """At scale `paper` with r = 1.0 at every s, of which the paper prints s = 2 alone."""
    if scale.is_paper:
        arms = grid(range(2, 14), scale.step_ratios, weighting="power_law")
        return [against_baseline(DENSE_600M, arms)]
    arms = grid(scale.bag_sizes, scale.step_ratios, weighting="power_law")
    return [against_baseline(scale.setting, arms, scale.seeds)]
