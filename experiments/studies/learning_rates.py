"""Learning rates of baseline and superposition (Figure 7): is one rate right for both?"""

from experiments.studies.grid import Part, main_of
from experiments.studies.paper_settings import DENSE_270M_LONG
from experiments.studies.scales import Scale
from experiments.studies.setting import BASELINE

TITLE = "Learning rates of both arms"
CLAIMS = "Where the best rate of each arm lies, and what a rate tuned on the baseline costs."
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Of the set-up's own rate; the paper's figure does not print its rates."""


def parts(scale: Scale) -> list[Part]:
    setting = DENSE_270M_LONG if scale.is_paper else scale.setting
    settings = tuple(setting.with_rate(factor * setting.learning_rate) for factor in FACTORS)
    return [Part(settings, (BASELINE, main_of(scale.is_paper)), scale.seeds)]
