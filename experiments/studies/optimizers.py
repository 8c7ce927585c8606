"""Study `optimizers`: does the gain hold under AdamW alone, or also under Muon?"""

from tst_study.experiments.studies.grid import Declared, Part, Tuning, against_baseline, choice
from tst_study.experiments.studies.scales import Scale
from tst_study.experiments.studies.setting import Setting

OPTIMIZERS = ("adamw", "muon")
RATE_FACTORS = (0.5, 1.0, 2.0)
"""Candidate learning rates, as multiples of the set-up's rate. That rate suits AdamW, and Muon's
updates are scaled to the size of AdamW's."""


def parts(scale: Scale) -> list[Tuning]:
    """Both arms under each optimizer, at the learning rate that is best for its baseline."""

    def both_arms(best: Setting) -> list[Part]:
        return [against_baseline(best, (scale.main,), scale.seeds)]

    choices = []
    for kind in OPTIMIZERS:
        setting = scale.setting.changed(kind, {"optimizer.kind": kind})
        if kind == "muon":  # which needs whole matrices on each rank
            setting = setting.changed("", {"execution.parallel.optimizer": "replicated"})
        candidates = [setting.with_rate(x * setting.learning_rate) for x in RATE_FACTORS]
        choices.append(choice(candidates, both_arms, seeds=scale.seeds[:1]))
    return choices


STUDY = Declared(
    "Superposition under AdamW and under Muon",
    "Whether the gain holds with AdamW alone, or also with an optimizer of another kind.",
    parts,
)
