"""The pilot sweep of the campaign: what makes a baseline lag, and where is it at its best?

First two rates with two decays each; then, at the set-up of these four that is best, one change at
a time: more and smaller heads, or normed queries and keys, the latter at twice the rate as well.
Both arms throughout, so that the spread of a pair's difference is known before a study is paid for
(docs/research/plan-of-runs.md, G0).
"""

from dataclasses import replace

from tst_study.experiments.studies.grid import Declared, Part, Tuning, against_baseline, choice
from tst_study.experiments.studies.scales import SMALL_MAIN, Scale
from tst_study.experiments.studies.setting import BASELINE, Setting

STEPS = {"desktop": 8_000}
SEEDS = 6
RATES = (1e-3, 2e-3)
DECAY_RATIOS = (0.1, 0.3)


def parts(scale: Scale) -> list[Tuning]:
    steps = STEPS.get(scale.name, scale.setting.steps)
    setting = replace(scale.setting.with_steps(steps), logged_as=None, evaluations=4, changes=())
    seeds = scale.seeds
    if scale.name == "desktop":
        seeds = range(seeds.start, seeds.start + SEEDS)
    candidates = tuple(
        setting.with_rate(rate).changed(f"decay{ratio:g}", f"schedule.decay_ratio={ratio}")
        for rate in RATES
        for ratio in DECAY_RATIOS
    )

    def variants(best: Setting) -> list[Part]:
        heads = 2 * 2  # of laptop-64's two heads of 32, four of 16: the same weights and FLOPs
        more_heads = best.changed(
            f"{heads}heads",
            f"model.attention_heads={heads}",
            f"model.key_value_heads={heads}",
            "model.head_size=16",
        )
        normed = best.changed("qknorm", "model.qk_norm=true")
        faster = normed.with_rate(2 * normed.learning_rate)
        return [
            against_baseline(variant, (SMALL_MAIN,), seeds)
            for variant in (more_heads, normed, faster)
        ]

    return [choice(candidates, variants, (BASELINE, SMALL_MAIN), seeds)]


STUDY = Declared(
    "Where the baseline is at its best",
    "Which rate, decay, heads and norm make baselines of one length good and alike; no claim about "
    "superposition.",
    parts,
    scales=("smoke", "quick", "laptop", "desktop"),
)
