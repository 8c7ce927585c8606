"""How the targets of a bag are weighted: uniform, power law, exponential, first token (Figure 9),
and the mutual information of tokens by distance, which the paper names beside it."""

from experiments.studies.grid import Part, against_baseline
from experiments.studies.input_output import STEPS
from experiments.studies.paper_settings import DENSE_270M
from experiments.studies.scales import Scale
from tst_study.config import Superposition

TITLE = "Weights of the targets of a bag"
CLAIMS = "Whether near tokens should count for more, at a small and at a large bag."
BAG_SIZES = (4, 16)
STEP_RATIO = 0.5
"""Figure 6's, whose uniform curve (3.011 at s = 4) is Figure 9's as well."""
WEIGHTINGS = ("uniform", "power_law", "exponential", "first_token", "mutual_information")


def parts(scale: Scale) -> list[Part]:
    setting = DENSE_270M.with_steps(STEPS) if scale.is_paper else scale.setting
    arms = [
        Superposition.model_validate(
            {"bag_size": s, "step_ratio": STEP_RATIO, "weighting": weighting}
        )
        for s in BAG_SIZES
        for weighting in WEIGHTINGS
    ]
    return [against_baseline(setting, arms, scale.seeds)]
