"""The second campaign: which part of superposition does the work, and does anything simpler, too?

docs/research/plan-of-runs-2.md registers the questions, the predictions and the rules. First a
pilot sweep: at which batch is the baseline at its best? Its winner is a second baseline of the
study."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tst_study.analysis.verdict.question import Arm, Question
from tst_study.experiments.studies.grid import Declared, Part, Tuning, choice
from tst_study.experiments.studies.scales import SMALL_MAIN, Scale, main_with
from tst_study.experiments.studies.setting import BASELINE, Setting
from tst_study.superposition.steps import superposed_steps

STEPS = {"laptop": 20_000, "desktop": 20_000}
"""Steps of the study, where they are not the scale's. The pilot sweep takes two fifths of them."""
SEEDS = {"laptop": range(11, 14), "desktop": range(11, 23)}
PILOT_SEEDS = {"laptop": range(23, 24), "desktop": range(23, 27)}
"""Fresh ones: the study's own are not looked at before it begins."""
PILOT_SHARE = 0.4
BATCH_FACTORS = (0.5, 2.0)
EVALUATIONS = 16
SMOOTHING = 0.1414
"""ε: at 1,024 words a smoothed target has the entropy of a bag of four different tokens, log 4."""
FALLING_WEIGHTS = ((1.0, 0.5, 0.25), (1.0, 0.5, 0.0), (1.0, 0.0, 0.0))
"""Weights of the next three tokens: first the third one's falls to zero, then the second one's
(modded-nanogpt's record of 2025-12-22 has such weights)."""


ARMS = {
    "superposition": SMALL_MAIN,
    "superposition, power law": main_with(weighting="power_law"),
    "output only": main_with(mode="output_only"),
    "output only, power law": main_with(mode="output_only", weighting="power_law"),
    "input only": main_with(mode="input_only"),
    "shuffled targets": main_with(shuffle_targets=True),
    "falling look-ahead": main_with(bag_size=3, mode="output_only", weighting=FALLING_WEIGHTS),
}
PREDICTED = {
    "superposition": (0.004, 0.018),
    "superposition, power law": (0.015, 0.032),
    "output only": (0.012, 0.030),
    "output only, power law": (0.010, 0.032),
    "input only": (0.005, 0.025),
    "shuffled targets": (-0.060, -0.005),
    "falling look-ahead": (0.005, 0.025),
    "label smoothing": (-0.010, 0.005),
    "baseline at its best batch": (0.000, 0.030),
}
"""Ranges in which the gains over the baseline were expected, in nats, before the first run."""
FAMILY_1, FAMILY_2 = "every arm against the baseline", "superposition against its parts"


def parts(scale: Scale) -> Sequence[Part | Tuning]:
    seeds = SEEDS.get(scale.name, scale.seeds)
    pilot_seeds = PILOT_SEEDS.get(scale.name, scale.seeds)
    setting = _setting(scale)
    smoothed = setting.changed(
        "",
        f"label_smoothing.epsilon={SMOOTHING}",
        f"label_smoothing.last_step={_superposed(setting)}",
    )

    def at_best_batch(best: Setting) -> list[Part]:
        whole = replace(best, steps=round(best.steps / PILOT_SHARE), evaluations=EVALUATIONS)
        return [Part((whole.in_grid("batch"),), (BASELINE,), seeds)]

    return [
        choice(_pilot_sweep(setting), at_best_batch, (BASELINE, SMALL_MAIN), pilot_seeds),
        Part((setting,), (BASELINE, *ARMS.values()), seeds),
        Part((smoothed,), (BASELINE,), seeds),
    ]


def questions(scale: Scale) -> list[Question]:
    """Primary: power-law weights. Family 1: every arm against the baseline. Family 2: the whole
    method against its parts and against smoothing."""
    setting = _setting(scale)
    where: dict[str, Any] = {"steps": setting.steps, "sequences": setting.sequences}
    others = [setting.with_batch(round(factor * setting.sequences)) for factor in BATCH_FACTORS]
    elsewhere: dict[str, Any] = {
        "steps": tuple(other.steps for other in others),
        "sequences": tuple(other.sequences for other in others),
    }
    smoothed = f"label smoothing {SMOOTHING} in steps 1 to {_superposed(setting)}"
    settings = {name: setting.label(arm) for name, arm in ARMS.items()}
    settings |= {"label smoothing": smoothed, "baseline": "baseline"}
    arms = {name: Arm(name=name, setting=label, where=where) for name, label in settings.items()}
    best = "baseline at its best batch"
    arms[best] = Arm(name=best, setting="baseline", where=elsewhere)

    def asked(name: str, against: str, family: str, predicted: tuple[float, float]) -> Question:
        return Question(
            name=f"{name} against {against}",
            arm=arms[name],
            against=arms[against],
            family=family,
            primary=family == "primary",
            method="simultaneous",
            predicted=predicted,
        )

    main = "superposition, power law"
    return [
        asked(main, "baseline", "primary", PREDICTED[main]),
        *(asked(name, "baseline", FAMILY_1, gain) for name, gain in PREDICTED.items()),
        asked("superposition", "output only", FAMILY_2, (-0.018, 0.002)),
        asked(main, "output only, power law", FAMILY_2, (-0.010, 0.010)),
        asked("superposition", "label smoothing", FAMILY_2, (0.005, 0.025)),
    ]


def _setting(scale: Scale) -> Setting:
    steps = STEPS.get(scale.name, scale.setting.steps)
    return replace(
        scale.setting.changed("", 'data.held_out="spread"'),
        steps=steps,
        evaluations=EVALUATIONS,
        grid="arms",
    )


def _superposed(setting: Setting) -> int:
    return superposed_steps(setting.steps, SMALL_MAIN.bag_size, SMALL_MAIN.step_ratio)


def _pilot_sweep(setting: Setting) -> tuple[Setting, ...]:
    """The usual batch first, which wins a tie; other batches at the same rate, and at one that goes
    with the root of the batch."""
    short = replace(setting, steps=round(PILOT_SHARE * setting.steps), evaluations=4, grid="gate")
    tried = [short]
    for factor in BATCH_FACTORS:
        other = short.with_batch(round(factor * short.sequences))
        tag = f"batch{other.sequences}"
        scaled = replace(other, learning_rate=round(other.learning_rate * math.sqrt(factor), 7))
        tried += [other.changed(tag), scaled.changed(f"{tag}-scaled")]
    return tuple(tried)


STUDY = Declared(
    "Which part of superposition does the work",
    "Which of bags in, bags out, their weights, soft targets or look-ahead brings the gain, and "
    "whether a better batch does.",
    parts,
    scales=("smoke", "quick", "laptop", "desktop", "one-gpu"),
    questions=questions,
)
