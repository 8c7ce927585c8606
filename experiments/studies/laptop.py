"""The laptop study: when does superposition beat a matched-FLOPs baseline, on two cores?

Two kinds of text, and they are not mixed: real prose, whose verdict counts, and a generated topical
language, on which the mechanism shows in half a minute per run. Text whose next words depend on a
slow topic is what superposition is made for, as the sum of a bag tells the topic: a demonstration
under chosen conditions, not evidence about real text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments.corpora import Recipe, TopicalLanguage
from experiments.studies.grid import SMALL_MAIN, Choice, Part, against_baseline, grid
from experiments.studies.scales import Scale
from experiments.studies.setting import BASELINE, Setting
from tst_study.config import Superposition

TITLE = "Token superposition on two cores"
CLAIMS = (
    "Superposition against the baseline at equal FLOPs on prose; the generated language shows the "
    "mechanism."
)
SCALES = ("smoke", "quick", "laptop", "desktop")

PROSE_STEPS = {"smoke": 300, "quick": 3_000, "laptop": 20_000, "desktop": 20_000}
PROSE_SEEDS = {"smoke": 2, "quick": 2, "laptop": 3, "desktop": 3}
RATE_FACTORS = (0.5, 1.0, 2.0)
SWEEP_STEPS = {"smoke": 150, "laptop": 5_000, "desktop": 5_000}
"""Of the baselines that choose the rate; `quick` has no time for them and takes the set-up's."""
GENERATED_STEPS = {"smoke": 300, "quick": 1_500}
GENERATED_RATE = 1.5e-3
"""A pilot's; not swept here."""
GENERATED_RATIO = 0.3
"""The middle of the range 0.2 … 0.4 that the paper recommends."""
ABLATIONS = (
    {"mode": "output_only"},
    {"mode": "input_only"},
    {"reinitialize_at_switch": True},
    {"optimizer_at_switch": "reset"},
    {"weighting": "power_law"},
)


def parts(scale: Scale) -> Sequence[Part | Choice]:
    """Prose first: its runs are the longer ones, and the short ones fill the gaps."""
    return [_prose(scale), _generated(scale)]


def _prose(scale: Scale) -> Part | Choice:
    setting = scale.setting.with_steps(PROSE_STEPS[scale.name])
    seeds = range(PROSE_SEEDS[scale.name])

    def compared(best: Setting) -> list[Part]:
        at_length = best.with_steps(setting.steps)
        pairs = [against_baseline(at_length, (SMALL_MAIN,), seeds)]
        return pairs + (_desktop(at_length, seeds) if scale.name == "desktop" else [])

    if scale.name not in SWEEP_STEPS:
        return against_baseline(setting, (SMALL_MAIN,), seeds)
    short = setting.with_steps(SWEEP_STEPS[scale.name])
    rates = tuple(short.with_rate(factor * short.learning_rate) for factor in RATE_FACTORS)
    return Choice(rates, compared)


def _desktop(setting: Setting, seeds: range) -> list[Part]:
    """`laptop` and more: lengths, then s, r and ablations at 8,000 steps."""
    lengths = tuple(setting.with_steps(steps) for steps in (1_500, 3_000, 8_000, 40_000))
    arms = [
        *grid((2, 3, 6, 8, 16), (SMALL_MAIN.step_ratio,)),
        *grid((SMALL_MAIN.bag_size,), (0.1, 0.4, 0.6)),
        *(Superposition.model_validate({**SMALL_MAIN.model_dump(), **one}) for one in ABLATIONS),
    ]
    return [
        Part(lengths, (BASELINE, SMALL_MAIN), seeds),
        Part((setting.with_steps(8_000),), tuple(arms), seeds),
    ]


def _generated(scale: Scale) -> Part:
    smoke = scale.name == "smoke"
    language = TopicalLanguage(tokens=1_000_000, validation_tokens=65_536)
    corpus: Recipe = language if smoke else TopicalLanguage()
    steps = GENERATED_STEPS.get(scale.name, 3_000)
    setting = replace(
        scale.setting.changed("generated", f"model.vocabulary_size={language.words}"),
        corpora=(corpus,),
        sequences=4,
        steps=steps,
        warmup_steps=round(0.05 * steps),
        learning_rate=GENERATED_RATE,
        validation_tokens=32_768,
        evaluations=2,
    )
    bag_sizes = (4,) if smoke else (2, 4, 8, 16)
    seeds = range(2 if smoke else 3)
    return against_baseline(setting, grid(bag_sizes, (GENERATED_RATIO,)), seeds)
