"""The campaign's grids, question by question, as `docs/research/plan-of-runs.md` has them.

All stand in one study, so that they share baselines and trunks; a run's name begins with the grid
that asked for it first.
"""

from collections.abc import Sequence
from dataclasses import replace

from experiments.corpora import BooksPart
from experiments.studies.grid import SMALL_MAIN, Choice, Part, against_baseline, grid
from experiments.studies.setting import BASELINE, Setting
from tst_study.config import Superposition

STEPS = 20_000
"""Of every grid but the lengths and the sizes."""
LENGTHS = (STEPS, 10_000, 5_000)
HELD_OUT_STEPS = 28_000
"""The length that laws have to predict; superposed, it reads the bundled books once."""
EQUAL_DATA_STEPS = 35_000
"""A baseline of this many steps reads what a superposed run of 20,000 reads, 1 + r(s − 1) times."""
SEEDS_OF_LENGTHS, SEEDS_OF_GRIDS = 8, 4
RATES = (1e-3, 4e-3)
"""Beside the gate's."""
LOWEST_RATE = 5e-4
"""The superposed arm was best at 1e-3, so the plan asks for the next one."""

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
OUTPUT_ONLY = Superposition.model_validate({**SMALL_MAIN.model_dump(), "mode": "output_only"})
LITTLE_TEXT = BooksPart(9)


def campaign(setting: Setting, first_seed: int) -> list[Part | Choice]:
    """Every grid at the gate's set-up; what laws have to predict comes after what they are fitted
    to."""
    eight = range(first_seed, first_seed + SEEDS_OF_LENGTHS)
    four, other_four = eight[:SEEDS_OF_GRIDS], eight[SEEDS_OF_GRIDS:]
    at_length, main = setting.with_steps(STEPS), SMALL_MAIN
    bag_sizes = grid(BAG_SIZES, (main.step_ratio,))
    step_ratios = grid((main.bag_size,), STEP_RATIOS)
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
        _little_text(setting, four),
        Part((rates[-1],), (BASELINE, main), four),
        Part((at_length.in_grid("output-only"),), (OUTPUT_ONLY,), other_four),
    ]


def _lengths(
    setting: Setting, lengths: Sequence[int], arms: tuple[Superposition, ...], seeds: range
) -> Part:
    of_grid = setting.in_grid("lengths")
    return Part(tuple(of_grid.with_steps(steps) for steps in lengths), arms, seeds)


def _ablations() -> list[Superposition]:
    """All at the main setting; of bags of 16, those that the paper's figures show there."""
    main = SMALL_MAIN.model_dump()
    small = [Superposition.model_validate({**main, **one}) for one in ABLATIONS]
    large = [
        Superposition.model_validate({**main, "bag_size": 16, **one}) for one in ABLATIONS[-2:]
    ]
    return [*small, *large]


def _size(setting: Setting, model: str, seeds: range) -> Choice:
    """The rate is chosen on this size's baseline, in short runs."""
    of_size = replace(setting, model=model).in_grid(f"sizes-{model}")
    short = of_size.with_steps(SWEEP_STEPS)
    rates = tuple(short.with_rate(factor * short.learning_rate) for factor in RATE_FACTORS)

    def compared(best: Setting) -> list[Part]:
        return [against_baseline(best.with_steps(SIZES_STEPS), (SMALL_MAIN,), seeds)]

    return Choice(rates, compared, seeds=seeds[:2])


def _little_text(setting: Setting, seeds: range) -> Part:
    little = setting.in_grid("little-text").with_steps(STEPS).with_corpus(LITTLE_TEXT, "9MB")
    return against_baseline(little, (SMALL_MAIN, OUTPUT_ONLY), seeds)
