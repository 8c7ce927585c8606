"""Study `laptop`: when does superposition beat a baseline of equal FLOPs, on two cores?

Runs are trained on two kinds of text, which are never mixed. One is real prose, whose verdict
counts. The other is a generated language with topics, on which a run of half a minute can show how
the method works. In that language the next words depend on a topic that changes slowly, and the
mean of a bag reveals the topic. Such text suits superposition, so that a gain there is a
demonstration under chosen conditions, and no evidence about real text."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tst_study.analysis.verdict.question import Question
from tst_study.experiments.corpora import TopicalLanguage
from tst_study.experiments.studies import campaign
from tst_study.experiments.studies.campaign import STEPS
from tst_study.experiments.studies.grid import Declared, Part, Tuning, against_baseline, grid
from tst_study.experiments.studies.scales import SMALL_MAIN, Scale

SHORT_STEPS = {"smoke": 300, "quick": 600}
"""Steps of the runs on prose, by scale. `laptop` and `desktop` have the lengths of the first
campaign. `quick` is as short as it can be: superposition loses on prose by far more than its seeds
differ, and would do so at twice the length, too."""
GENERATED_STEPS = {"smoke": 300, "quick": 1_000}
"""Steps of the runs on the generated language, by scale; 3,000 at the other scales."""
GENERATED_BAG_SIZES = {"smoke": (4,), "quick": (4,), "laptop": (4, 16), "desktop": (2, 4, 8, 16)}
GENERATED_SEEDS = {
    "smoke": range(2),
    "quick": range(4),
    "laptop": range(3, 8),
    "desktop": range(3, 11),
}
"""Seeds on the generated language, by scale. The standard deviation of a paired difference is about
0.02 nats. So the five seeds of `laptop`, with intervals that allow for two settings (Bonferroni),
detect a gain of 0.041 nats with 80% power, and the eight seeds of `desktop`, with four settings, a
gain of 0.031 nats. These two scales begin at seed 3, because seeds 0 to 2 were looked at before the
numbers of seeds were fixed."""
GENERATED_RATE = 1.5e-3
"""Learning rate on the generated language, found in an earlier pilot; this study does not tune
it."""
GENERATED_RATIO = 0.3
"""Step ratio r on the generated language: the middle of the range 0.2 to 0.4 that the paper
recommends."""
GENERATED_TEXT = "generated language"
"""Name of the generated text in the run table."""
GENERATED_PLAN = "9a37bae02e3d4a35fa59f02a953e84318fb8eaec"
"""The commit whose plan has the eight seeds on the generated language."""


def parts(scale: Scale) -> Sequence[Part | Tuning]:
    """Return the runs on prose, then those on the generated language.

    The longer runs come first, so that the short ones can fill the gaps at the end. On prose,
    `desktop` is the first campaign (docs/research/plan-of-runs.md). `laptop` trains the main pair
    of that campaign, at its full length, with its first seeds."""
    return [*_prose(scale), _generated(scale)]


def questions(scale: Scale) -> Sequence[Question]:
    """Return the questions of `desktop`; the other scales have none.

    These are the questions of the first campaign (docs/research/plan-of-runs.md) and, on the
    generated language, each s against the baseline.
    """
    if scale.name != "desktop":
        return []
    generated = _generated(scale)
    (setting,), (_, *superposed) = generated.settings, generated.arms
    where: dict[str, Any] = {"corpus": GENERATED_TEXT, "steps": setting.steps}
    where |= {"seed": tuple(generated.seeds)}
    about = partial(campaign.asked, setting, "generated language", registered=GENERATED_PLAN)
    return [
        *campaign.questions(scale.setting, scale.seeds.start),
        *(about(each, where, f"s = {each.bag_size}") for each in superposed),
    ]


def _prose(scale: Scale) -> Sequence[Part | Tuning]:
    if scale.name == "desktop":
        return campaign.campaign(scale.setting, scale.seeds.start)
    if scale.name == "laptop":
        headline = scale.setting.in_grid("lengths").with_steps(STEPS)
        return [against_baseline(headline, (SMALL_MAIN,), scale.seeds)]
    setting = scale.setting.with_steps(SHORT_STEPS[scale.name])
    return [against_baseline(setting, (SMALL_MAIN,), range(3))]


def _generated(scale: Scale) -> Part:
    language = TopicalLanguage()
    if scale.name in GENERATED_STEPS:
        language = TopicalLanguage(tokens=1_000_000, validation_tokens=65_536)
    steps = GENERATED_STEPS.get(scale.name, 3_000)
    changes = {
        "model.vocabulary_size": language.words,
        "batch.sequences": 4,
        "schedule.steps": steps,
        "schedule.warmup_steps": round(0.05 * steps),
        "optimizer.learning_rate": GENERATED_RATE,
        "data.validation_tokens": 32_768,
        "execution.evaluate_every": steps // 2,
    }
    setting = scale.setting.in_grid("generated").with_text(language).changed("", changes)
    superposed = grid(GENERATED_BAG_SIZES[scale.name], (GENERATED_RATIO,))
    return against_baseline(setting, superposed, GENERATED_SEEDS[scale.name])


STUDY = Declared(
    "Token superposition on two cores",
    "Superposition against the baseline at equal FLOPs on prose; the generated language shows the "
    "mechanism.",
    parts,
    scales=("smoke", "quick", "laptop", "desktop"),
    questions=questions,
)
