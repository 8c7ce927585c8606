"""Study `what-does-the-work`, the second campaign: which part of superposition brings the gain, and
does something simpler bring it as well?

`docs/research/plan-of-runs-2.md` registers the questions, the predictions and the rules. A pilot
sweep comes first: at which batch size is the baseline at its best? The best set-up of the sweep
becomes a second baseline of the study."""

import math
from collections.abc import Sequence
from typing import Any

from tst_study.analysis.verdict.question import Question
from tst_study.experiments.studies.grid import Declared, Part, Tuning, arm, choice
from tst_study.experiments.studies.scales import SMALL_MAIN, Scale, main_with
from tst_study.experiments.studies.setting import BASELINE, Setting
from tst_study.superposition.steps import superposed_steps

STEPS = {"laptop": 20_000, "desktop": 20_000}
"""Steps of the study's runs, by scale; other scales have their own. Runs of the pilot sweep have
two fifths as many."""
SEEDS = {"laptop": range(11, 14), "desktop": range(11, 23)}
PILOT_SEEDS = {"laptop": range(23, 24), "desktop": range(23, 27)}
"""Seeds of the pilot sweep. They differ from `SEEDS`, so that no result of a run of the study is
known before the study begins."""
PILOT_SHARE = 0.4
"""Length of the pilot sweep's runs, as a share of the study's."""
BATCH_FACTORS = (0.5, 2.0)
"""Batch sizes that the pilot sweep tries, as multiples of the usual one."""
SMOOTHING = 0.1414
"""ε of label smoothing. With a vocabulary of 1,024, a target smoothed by it has an entropy of log
4, which is that of a bag of four different tokens."""
FALLING_WEIGHTS = ((1.0, 0.5, 0.25), (1.0, 0.5, 0.0), (1.0, 0.0, 0.0))
"""Weights of the next three tokens at the beginning, the middle and the end of the superposed
steps, with linear interpolation between. The weight of the third token falls to zero first, then
that of the second. modded-nanogpt's record of 2025-12-22 has such weights."""


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
"""Ranges in which the gains over the baseline, in nats per token, were expected before the first
run."""
FAMILY_1, FAMILY_2 = "every arm against the baseline", "superposition against its parts"


def parts(scale: Scale) -> Sequence[Part | Tuning]:
    """Return the pilot sweep, after which the second baseline is trained, and the study's arms."""
    seeds = SEEDS.get(scale.name, scale.seeds)
    pilot_seeds = PILOT_SEEDS.get(scale.name, scale.seeds)
    setting = _setting(scale)
    smoothing = {"epsilon": SMOOTHING, "last_step": _superposed(setting)}
    smoothed = setting.changed("", {"label_smoothing": smoothing})

    def at_best_batch(best: Setting) -> list[Part]:
        whole = best.changed("", {"schedule.steps": round(best.steps / PILOT_SHARE)})
        return [Part((whole.in_grid("batch"),), (BASELINE,), seeds)]

    return [
        choice(_pilot_sweep(setting), at_best_batch, (BASELINE, SMALL_MAIN), pilot_seeds, "pilot"),
        Part((setting,), (BASELINE, *ARMS.values()), seeds),
        Part((smoothed,), (BASELINE,), seeds),
    ]


def questions(scale: Scale) -> list[Question]:
    """Return the questions. Primary: superposition with power-law weights against the baseline.
    Family 1: every arm against the baseline. Family 2: superposition against output only, with
    uniform and with power-law weights, and against label smoothing."""
    setting = _setting(scale)
    where: dict[str, Any] = {"steps": setting.steps, "sequences": setting.sequences}
    others = [setting.with_batch(round(factor * setting.sequences)) for factor in BATCH_FACTORS]
    elsewhere: dict[str, Any] = {
        "steps": tuple(other.steps for other in others),
        "sequences": tuple(other.sequences for other in others),
    }
    plain, smoothed = {"role": "baseline"}, {"label_smoothing.epsilon": SMOOTHING}
    arms = {name: arm(name, where, phase) for name, phase in ARMS.items()}
    arms |= {
        name: arm(name, selected, BASELINE)
        for name, selected in (
            ("label smoothing", where | smoothed),
            ("baseline", where | plain),
            ("baseline at its best batch", elsewhere | plain),
        )
    }

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
    setting = scale.setting.changed("", {"schedule.steps": steps, "data.held_out": "spread"})
    return setting.in_grid("arms")


def _superposed(setting: Setting) -> int:
    return superposed_steps(setting.steps, SMALL_MAIN.bag_size, SMALL_MAIN.step_ratio)


def _pilot_sweep(setting: Setting) -> tuple[Setting, ...]:
    """Return the set-ups to choose from. The usual batch size comes first, so that it wins a tie.
    Each of `BATCH_FACTORS` is tried twice: at the usual learning rate, and at that rate times the
    square root of the factor."""
    short = setting.with_steps(round(PILOT_SHARE * setting.steps)).in_grid("gate")
    tried = [short]
    for factor in BATCH_FACTORS:
        other = short.with_batch(round(factor * short.sequences))
        tag = f"batch{other.sequences}"
        rate = round(other.learning_rate * math.sqrt(factor), 7)
        scaled = other.changed(f"{tag}-scaled", {"optimizer.learning_rate": rate})
        tried += [other.changed(tag, {}), scaled]
    return tuple(tried)


STUDY = Declared(
    "Which part of superposition does the work",
    "Which of bags in, bags out, their weights, soft targets or look-ahead brings the gain, and "
    "whether a better batch does.",
    parts,
    scales=("smoke", "quick", "laptop", "desktop", "one-gpu"),
    questions=questions,
)
