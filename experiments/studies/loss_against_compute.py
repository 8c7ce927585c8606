"""Loss against compute: sizes × lengths, baseline and superposition, for laws of scaling."""

from dataclasses import replace

from experiments.studies.grid import Part, main_of
from experiments.studies.paper_settings import DENSE_3B, DENSE_270M, DENSE_600M
from experiments.studies.scales import Scale
from experiments.studies.setting import BASELINE, Setting

TITLE = "Loss against compute"
CLAIMS = "How much more compute a baseline needs for the same loss, over sizes and lengths."
LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Of the set-up's own steps; lengths of one baseline share their stable phase."""
SMALL_MODELS = {"laptop-64": 1.0, "laptop-128": 0.5, "laptop-256": 0.25}
"""Learning rate over that of laptop-64: width doubles and it halves."""


def parts(scale: Scale) -> list[Part]:
    settings = [
        setting.with_steps(round(setting.steps * length))
        for setting in _sizes(scale)
        for length in LENGTHS
    ]
    return [Part(tuple(settings), (BASELINE, main_of(scale.is_paper)), scale.seeds)]


def _sizes(scale: Scale) -> list[Setting]:
    if scale.is_paper:
        return [DENSE_270M, DENSE_600M, DENSE_3B]
    one = scale.setting
    if one.model != "laptop-64":
        return [one, replace(one, model="600m", learning_rate=one.learning_rate / 2)]
    return [
        replace(one, model=model, learning_rate=one.learning_rate * factor)
        for model, factor in SMALL_MODELS.items()
    ]
