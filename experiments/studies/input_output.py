"""Which side of superposition helps: bags as input, as target, or both (Figure 6)."""

from experiments.studies.grid import Part, against_baseline
from experiments.studies.paper_settings import DENSE_270M
from experiments.studies.scales import Scale
from tst_study.config.schema import Superposition

TITLE = "Bags as input, as target, or both"
CLAIMS = "Which of the two sides brings the gain, at one s and r."
STEPS = 40_000
"""Figure 6's; it names no model, and its baseline (about 3.086) is in no table. Taken: 270M."""
ARM = Superposition(bag_size=4, step_ratio=0.5)


def parts(scale: Scale) -> list[Part]:
    setting = DENSE_270M.with_steps(STEPS) if scale.is_paper else scale.setting
    one_sided = [ARM.model_copy(update={"mode": mode}) for mode in ("input_only", "output_only")]
    return [against_baseline(setting, (ARM, *one_sided), scale.seeds)]
