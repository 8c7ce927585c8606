"""The headline comparison at equal FLOPs: Table 1's dense runs.

The mixture's runs of that table are a study of their own (`mixture-10b-a1b`).
"""

from experiments.studies.grid import PAPER_MAIN, Part, against_baseline, main_of
from experiments.studies.paper_settings import (
    DENSE_3B,
    DENSE_270M,
    DENSE_270M_LONG,
    DENSE_600M,
    EQUAL_DATA_STEPS,
    EQUAL_LOSS_STEPS,
)
from experiments.studies.scales import Scale
from experiments.studies.setting import BASELINE

TITLE = "Superposition against the baseline"
CLAIMS = "Whether superposition beats a baseline of the same FLOPs, and by how much."


def parts(scale: Scale) -> list[Part]:
    if not scale.is_paper:
        arm = main_of(is_paper=False)
        return [against_baseline(scale.setting, (arm,), scale.seeds)]
    pairs = (DENSE_270M, DENSE_270M_LONG, DENSE_600M, DENSE_3B)
    longer = (DENSE_3B.with_steps(EQUAL_LOSS_STEPS), DENSE_3B.with_steps(EQUAL_DATA_STEPS))
    return [Part(pairs, (BASELINE, PAPER_MAIN)), Part(longer, (BASELINE,))]
