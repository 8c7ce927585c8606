"""Study `gate`, the pilot sweep of the first campaign: at which set-up is the baseline at its best,
and why do some seeds end with a clearly higher loss than the others?

First, two learning rates are each tried with two lengths of decay. Then the best of these four
set-ups is changed in one thing at a time: more and smaller attention heads, or normed queries and
keys, the latter also at twice the learning rate. Every set-up is trained with and without
superposition. This shows, before a larger study is paid for, how much the difference between the
two varies over seeds. The sweep is registered as G0 in `docs/research/plan-of-runs.md`."""

from tst_study.experiments.studies.grid import Declared, Part, Tuning, against_baseline, choice
from tst_study.experiments.studies.scales import SMALL_MAIN, Scale
from tst_study.experiments.studies.setting import BASELINE, Setting

STEPS = {"desktop": 8_000}
SEEDS = {"desktop": range(3, 9)}
"""Seeds by scale; other scales have their own."""
RATES = (1e-3, 2e-3)
DECAY_RATIOS = (0.1, 0.3)
"""Shares of the steps over which the learning rate decays."""


def parts(scale: Scale) -> list[Tuning]:
    """Return the choice among rates and decays, followed by the changes to the best set-up."""
    steps = STEPS.get(scale.name, scale.setting.steps)
    first_tried = {"schedule.decay_ratio": 0.1, "model.qk_norm": False, "data.held_out": "spread"}
    setting = scale.setting.changed("", {**first_tried, "schedule.steps": steps})
    seeds = SEEDS.get(scale.name, scale.seeds)
    candidates = tuple(
        setting.with_rate(rate).changed(f"decay{ratio:g}", {"schedule.decay_ratio": ratio})
        for rate in RATES
        for ratio in DECAY_RATIOS
    )

    def variants(best: Setting) -> list[Part]:
        # Four heads of size 16 take the place of laptop-64's two of 32: the same weights and FLOPs.
        heads = {"attention_heads": 4, "key_value_heads": 4, "head_size": 16}
        more_heads = best.changed("4heads", {f"model.{key}": n for key, n in heads.items()})
        normed = best.changed("qknorm", {"model.qk_norm": True})
        faster = normed.with_rate(2 * normed.learning_rate)
        return [
            against_baseline(variant, (SMALL_MAIN,), seeds)
            for variant in (more_heads, normed, faster)
        ]

    return [choice(candidates, variants, (BASELINE, SMALL_MAIN), seeds)]


STUDY = Declared(
    "Where the baseline is at its best",
    "Which rate, decay, heads and norm give baselines of one length low losses; no claim about "
    "superposition.",
    parts,
    scales=("smoke", "quick", "laptop", "desktop"),
)
