"""Equal FLOPs, equal loss, equal data: one superposed run against three baselines (Figure 3).

Lengths of one baseline share their stable phase, so the three cost little more than the longest.
"""

from experiments.studies.grid import Part, against_baseline, main_of
from experiments.studies.paper_settings import DENSE_3B
from experiments.studies.scales import Scale
from experiments.studies.setting import BASELINE

TITLE = "Equal FLOPs, equal loss, equal data"
CLAIMS = "What a baseline must spend to reach the superposed run's loss, and to read its text."
EQUAL_LOSS = 1.8
"""Times the superposed run's steps: the paper's 36,000 of 20,000."""


def parts(scale: Scale) -> list[Part]:
    setting = DENSE_3B if scale.is_paper else scale.setting
    main = main_of(scale.is_paper)
    lengths = (EQUAL_LOSS, 1 + main.step_ratio * (main.bag_size - 1))
    longer = tuple(setting.with_steps(round(setting.steps * length)) for length in lengths)
    return [
        against_baseline(setting, (main,), scale.seeds),
        Part(longer, (BASELINE,), scale.seeds),
    ]
