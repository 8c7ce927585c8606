"""How the targets of a bag are weighted: uniform, power law, exponential, first token (Figure 9),
and the mutual information of tokens by distance, which the paper names beside it."""

from experiments.studies.grid import Part, against_baseline, grid
from experiments.studies.input_output import STEPS
from experiments.studies.paper_settings import DENSE_270M
from experiments.studies.scales import Scale
from tst_study.superposition.weighting import NAMED_WEIGHTINGS

TITLE = "Weights of the targets of a bag"
CLAIMS = "Whether near tokens should count for more, at a small and at a large bag."
BAG_SIZES = (4, 16)
STEP_RATIO = 0.5
"""Figure 6's, whose uniform curve (3.011 at s = 4) is Figure 9's as well."""


def parts(scale: Scale) -> list[Part]:
    setting = DENSE_270M.with_steps(STEPS) if scale.is_paper else scale.setting
    arms = [
        arm
        for s in BAG_SIZES
        for weighting in NAMED_WEIGHTINGS
        for arm in grid((s,), (STEP_RATIO,), weighting=weighting)
    ]
    return [against_baseline(setting, arms, scale.seeds)]
