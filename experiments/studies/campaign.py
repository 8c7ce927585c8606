"""The first campaign: its grids of runs and its questions, as registered in
`docs/research/plan-of-runs.md`. The study `laptop` at scale `desktop` consists of these runs, which
read real text, and of runs on a generated language.

All grids are in one study, so that they have baselines and shared prefix runs in common. A run's
name begins with the name of the first grid that asks for it."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tst_study.analysis.verdict.question import Question
from tst_study.config.schema import SuperposedPhase
from tst_study.experiments.corpora import Books
from tst_study.experiments.studies.grid import Part, Tuning, against_baseline, arm, choice, grid
from tst_study.experiments.studies.scales import SMALL_MAIN, main_with
from tst_study.experiments.studies.setting import BASELINE, Setting

STEPS = 20_000
"""Steps of the runs in every grid except those that vary the length or the model size."""
LENGTHS = (STEPS, 10_000, 5_000)
HELD_OUT_STEPS = 28_000
"""The length at which the gain is to be predicted from the shorter runs. A superposed run of this
length reads the bundled books about once."""
EQUAL_DATA_STEPS = 35_000
"""Steps in which a baseline reads as much text as a superposed run of the main setting reads in
20,000: 1 + r(s − 1) = 1.75 times as many."""
SEEDS_OF_LENGTHS, SEEDS_OF_GRIDS = 8, 4
"""Numbers of seeds: 8 in the grid of lengths, and 4 in each of the others."""
RATES = (1e-3, 4e-3)
"""Learning rates that are tried beside 2e-3, which the pilot sweep (`gate`) chose."""
LOWEST_RATE = 5e-4
"""A learning rate that was added later: the superposed arm was best at 1e-3, the lowest rate tried,
and for that case the plan asks for a lower one."""

BAG_SIZES = (2, 3, 6, 8, 12, 16)
STEP_RATIOS = (0.1, 0.4, 0.6)
ABLATIONS: tuple[dict[str, object], ...] = (
    {"reinitialize_at_switch": True},
    {"optimizer_at_switch": "reset"},
    {"mode": "input_only"},
    {"mode": "output_only"},
    {"weighting": "power_law"},
)
SMALLER, LARGER, SIZES_STEPS, SWEEP_STEPS = "laptop-32", "laptop-128", 10_000, 5_000
RATE_FACTORS = (0.5, 1.0, 2.0)
OUTPUT_ONLY = main_with(mode="output_only")
LITTLE_TEXT = Books(megabytes=9)


def campaign(setting: Setting, first_seed: int) -> list[Part | Tuning]:
    """Return every grid, most urgent first.

    `setting`: the set-up that the pilot sweep chose. Runs whose gains are to be predicted, the
    longest and those of the larger model, come after the runs from which they are predicted.
    """
    eight = range(first_seed, first_seed + SEEDS_OF_LENGTHS)
    four, other_four = eight[:SEEDS_OF_GRIDS], eight[SEEDS_OF_GRIDS:]
    at_length, main = setting.with_steps(STEPS), SMALL_MAIN
    bag_sizes = grid(BAG_SIZES, (main.step_ratio,))
    step_ratios = grid((main.bag_size,), STEP_RATIOS)
    little = setting.in_grid("little-text").with_steps(STEPS).with_text(LITTLE_TEXT)
    little = little.changed("9MB", {})
    rates = [at_length.in_grid("rates").with_rate(rate) for rate in (*RATES, LOWEST_RATE)]
    return [
        _lengths(setting, LENGTHS, (BASELINE, main), eight),
        Part(tuple(rates[:-1]), (BASELINE, main), four),
        Part((at_length.in_grid("step-ratios"),), tuple(step_ratios), four),
        Part((at_length.in_grid("bag-sizes"),), tuple(bag_sizes), four),
        _size(setting, SMALLER, four),
        _lengths(setting, (HELD_OUT_STEPS,), (BASELINE, main), eight),
        _lengths(setting, (EQUAL_DATA_STEPS,), (BASELINE,), eight),
        _size(setting, LARGER, four),
        Part((at_length.in_grid("ablations"),), tuple(_ablations()), four),
        against_baseline(little, (main, OUTPUT_ONLY), four),
        Part((rates[-1],), (BASELINE, main), four),
        Part((at_length.in_grid("output-only"),), (OUTPUT_ONLY,), other_four),
    ]


def _lengths(
    setting: Setting, lengths: Sequence[int], arms: tuple[SuperposedPhase, ...], seeds: range
) -> Part:
    of_grid = setting.in_grid("lengths")
    return Part(tuple(of_grid.with_steps(steps) for steps in lengths), arms, seeds)


def _ablations() -> list[SuperposedPhase]:
    """Return all of `ABLATIONS` at the main setting, and the last two of them at s = 16 as well."""
    small = [main_with(**change) for change in ABLATIONS]
    return [*small, *(main_with(bag_size=16, **change) for change in ABLATIONS[-2:])]


def _size(setting: Setting, model: str, seeds: range) -> Tuning:
    """Return the grid of one model size. Its learning rate is the one at which the baseline of this
    size is best in short runs."""
    of_size = _of_model(setting, model).in_grid(f"sizes-{model}")
    short = of_size.with_steps(SWEEP_STEPS)
    rates = tuple(short.with_rate(factor * short.learning_rate) for factor in RATE_FACTORS)

    def compared(best: Setting) -> list[Part]:
        return [against_baseline(best.with_steps(SIZES_STEPS), (SMALL_MAIN,), seeds)]

    return choice(rates, compared, seeds=seeds[:2])


def _of_model(setting: Setting, model: str) -> Setting:
    return setting.changed("", {"model.preset": model})


PLAN = "cc7af1a583962df88561e0f838538f2eae78915b"
"""The commit that first held the plan. Questions that were added later name one of the commits
below, each of which added its questions to the plan."""
NEIGHBOURS_PLAN = "c1e38ddf40481f77ebc1a0db424e0317952bf9db"
LOWEST_RATE_PLAN = "abfbb9ff776e4c71fd677672dbb87e93af579338"
OUTPUT_ONLY_PLAN = "483855e746eb35193e7196077a82c0854de79f8e"


def asked(
    setting: Setting,
    family: str,
    superposition: SuperposedPhase,
    where: Mapping[str, Any],
    name: str = "",
    against: SuperposedPhase = BASELINE,
    registered: str = PLAN,
) -> Question:
    """Return the question whether one superposition is better than another (by default, than the
    baseline) among the runs that `where` selects. Without a name it has the superposition's."""
    label = setting.label(superposition)
    other = "the baseline" if against == BASELINE else setting.label(against)
    return Question(
        name=name or label,
        arm=arm(label, where, superposition),
        against=arm(other, where, against),
        family=family,
        primary=family == "primary",
        method="paired",
        registered=registered,
    )


def questions(setting: Setting, first_seed: int) -> list[Question]:
    """Return the questions of `docs/research/plan-of-runs.md`. They are answered by paired t-tests.
    The intervals hold jointly for all questions of a family (Bonferroni)."""
    eight = tuple(range(first_seed, first_seed + SEEDS_OF_LENGTHS))
    four, others = eight[:SEEDS_OF_GRIDS], eight[SEEDS_OF_GRIDS:]
    usual: dict[str, Any] = {"corpus": setting.text, "seed": four, "steps": STEPS}
    usual |= {"learning_rate": setting.learning_rate, "hidden_size": setting.hidden_size}
    at_eight, last_four, main = usual | {"seed": eight}, usual | {"seed": others}, SMALL_MAIN
    about = partial(asked, setting)
    primary = about("primary", main, at_eight, f"{setting.label(main)} at {STEPS:,} steps")
    words = f"the baseline of {EQUAL_DATA_STEPS:,} steps, which reads as much text"
    longer = arm(words, at_eight | {"steps": EQUAL_DATA_STEPS}, BASELINE)
    equal_data = {"against": longer, "family": "equal data", "primary": False}
    asked_for = [primary, primary.model_copy(update=equal_data)]
    for steps in sorted((*LENGTHS, HELD_OUT_STEPS)):
        asked_for.append(about("lengths", main, at_eight | {"steps": steps}, f"{steps:,} steps"))
    for rate in sorted((*RATES, LOWEST_RATE, setting.learning_rate)):
        plan = LOWEST_RATE_PLAN if rate == LOWEST_RATE else NEIGHBOURS_PLAN
        where, name = usual | {"learning_rate": rate}, f"learning rate {rate:g}"
        asked_for.append(about("rates", main, where, name, registered=plan))
    for superposition in grid(sorted((*BAG_SIZES, main.bag_size)), (main.step_ratio,)):
        asked_for.append(about("bag sizes", superposition, usual))
    for superposition in grid((main.bag_size,), sorted((*STEP_RATIOS, main.step_ratio))):
        asked_for.append(about("step ratios", superposition, usual))
    for superposition in _ablations():
        plain = main_with(bag_size=superposition.bag_size)
        asked_for.append(about("parts", superposition, usual, against=plain))
    for against, name in ((BASELINE, "against the baseline"), (main, "against superposition")):
        asked_for.append(
            about("output only", OUTPUT_ONLY, last_four, name, against, OUTPUT_ONLY_PLAN)
        )
    for model in (SMALLER, setting["model.preset"], LARGER):
        where = usual | {"steps": SIZES_STEPS}
        where |= {"hidden_size": _of_model(setting, model).hidden_size}
        del where["learning_rate"]  # each size has a learning rate of its own
        asked_for.append(about("sizes", main, where, model))
    on_little = usual | {"corpus": LITTLE_TEXT.name}
    return [*asked_for, *(about("little text", each, on_little) for each in (main, OUTPUT_ONLY))]
