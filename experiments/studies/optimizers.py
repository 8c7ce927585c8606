"""Superposition under the paper's AdamW and under Muon, each at its baseline's best rate."""

from experiments.studies.grid import Choice, Part, against_baseline, main_of
from experiments.studies.scales import Scale
from experiments.studies.setting import Setting
from tst_study.config.optimizer_kinds import OptimizerName

TITLE = "Superposition under AdamW and under Muon"
CLAIMS = "Whether the gain is one over AdamW alone, or holds for an optimizer of another kind."
RATES: dict[OptimizerName, tuple[float, ...]] = {
    "adamw": (0.5, 1.0, 2.0),
    "muon": (0.5, 1.0, 2.0),  # its updates are scaled to the size of AdamW's
}
"""Candidates, as multiples of the set-up's own rate, which suits AdamW. An optimizer that is not
named here is not swept: another's rates say nothing about it."""


def parts(scale: Scale) -> list[Choice]:
    def both_arms(best: Setting) -> list[Part]:
        return [against_baseline(best, (main_of(scale.is_paper),), scale.seeds)]

    def candidates(kind: OptimizerName) -> tuple[Setting, ...]:
        setting = scale.setting.changed(kind, f"optimizer.kind={kind}")
        return tuple(setting.with_rate(x * setting.learning_rate) for x in RATES[kind])

    first = scale.seeds[:1]
    return [Choice(candidates(kind), both_arms, seeds=first) for kind in RATES]
