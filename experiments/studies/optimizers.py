"""Superposition under the paper's AdamW and under Muon, each at its baseline's best rate."""

from typing import get_args

from experiments.studies.grid import Choice, Part, against_baseline, main_of
from experiments.studies.scales import Scale
from experiments.studies.setting import Setting
from tst_study.configuration.optimizer_kinds import OptimizerName

TITLE = "Superposition under AdamW and under Muon"
CLAIMS = "Whether the gain is one over AdamW alone, or holds for an optimizer of another kind."
RATE_FACTORS = (0.5, 1.0, 2.0)
"""Of the set-up's own rate; updates of both optimizers are of one size."""


def parts(scale: Scale) -> list[Choice]:
    def both_arms(best: Setting) -> list[Part]:
        return [against_baseline(best, (main_of(scale.is_paper),), scale.seeds)]

    def candidates(kind: OptimizerName) -> tuple[Setting, ...]:
        setting = scale.setting.changed(kind, f"optimizer.kind={kind}")
        return tuple(setting.with_rate(x * setting.learning_rate) for x in RATE_FACTORS)

    first = scale.seeds[:1]
    return [Choice(candidates(kind), both_arms, seeds=first) for kind in get_args(OptimizerName)]
