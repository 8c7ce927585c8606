"""The campaign's grids, question by question, as `docs/research/plan-of-runs.md` has them.

All stand in one study, so that they share baselines and trunks; a run's name begins with the grid
that asked for it first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from analysis.verdict.question import Arm, Question
from experiments.corpora import BooksPart
from experiments.studies.grid import Choice, Part, against_baseline, grid
from experiments.studies.scales import SMALL_MAIN
from experiments.studies.setting import BASELINE, Setting
from tst_study.config.schema import Superposition
from tst_study.config.superposition_setting import SuperpositionSetting

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


PLAN = "cc7af1a583962df88561e0f838538f2eae78915b"
"""The commit that first held the plan; what came into it later has its own."""
NEIGHBOURS_PLAN = "c1e38ddf40481f77ebc1a0db424e0317952bf9db"
LOWEST_RATE_PLAN = "abfbb9ff776e4c71fd677672dbb87e93af579338"
OUTPUT_ONLY_PLAN = "483855e746eb35193e7196077a82c0854de79f8e"


def questions(setting: Setting, first_seed: int) -> list[Question]:
    """What `docs/research/plan-of-runs.md` asks of each grid, by its paired t-test: the intervals
    of all questions of a grid hold together (Bonferroni)."""
    eight = tuple(range(first_seed, first_seed + SEEDS_OF_LENGTHS))
    four, others = eight[:SEEDS_OF_GRIDS], eight[SEEDS_OF_GRIDS:]
    text = setting.corpora[0].name
    usual: dict[str, Any] = {"corpus": text, "learning_rate": setting.learning_rate}
    usual |= {"hidden_size": _hidden(setting), "seed": four}
    at_length = usual | {"steps": STEPS}

    def baseline(where: dict[str, Any], name: str = "the baseline") -> Arm:
        return Arm(name=name, setting="baseline", where=where)

    def of(one: Superposition, where: dict[str, Any]) -> Arm:
        label = label_of(one, where["steps"])
        return Arm(name=label, setting=label, where=where)

    def asked(
        family: str, name: str, arm: Arm, against: Arm | None = None, registered: str = PLAN
    ) -> Question:
        return Question(
            name=name,
            arm=arm,
            against=against or baseline(arm.where),
            family=family,
            primary=family == "primary",
            method="paired",
            registered=registered,
        )

    def in_grid(family: str, ones: Iterable[Superposition]) -> list[Question]:
        return [asked(family, label_of(one, STEPS), of(one, at_length)) for one in ones]

    main = of(SMALL_MAIN, at_length | {"seed": eight})
    last_four = at_length | {"seed": others}
    ratio = (SMALL_MAIN.step_ratio,)
    sizes = {model: replace(setting, model=model) for model in (SMALLER, setting.model, LARGER)}
    ablated = [
        (one, SMALL_MAIN.model_copy(update={"bag_size": one.bag_size})) for one in _ablations()
    ]
    return [
        asked("primary", f"{main.name} at {STEPS:,} steps", main),
        asked(
            "equal data",
            f"{main.name} at {STEPS:,} steps",
            main,
            baseline(
                usual | {"seed": eight, "steps": EQUAL_DATA_STEPS},
                f"the baseline of {EQUAL_DATA_STEPS:,} steps, which reads as much text",
            ),
        ),
        *(
            asked(
                "lengths",
                f"{steps:,} steps",
                of(SMALL_MAIN, usual | {"seed": eight, "steps": steps}),
            )
            for steps in sorted((*LENGTHS, HELD_OUT_STEPS))
        ),
        *(
            asked(
                "rates",
                f"learning rate {rate:g}",
                of(SMALL_MAIN, at_length | {"learning_rate": rate}),
                registered=LOWEST_RATE_PLAN if rate == LOWEST_RATE else NEIGHBOURS_PLAN,
            )
            for rate in sorted((*RATES, LOWEST_RATE, setting.learning_rate))
        ),
        *in_grid("bag sizes", grid(sorted((*BAG_SIZES, SMALL_MAIN.bag_size)), ratio)),
        *in_grid("step ratios", grid((SMALL_MAIN.bag_size,), sorted((*STEP_RATIOS, *ratio)))),
        *(
            asked("parts", label_of(one, STEPS), of(one, at_length), of(plain, at_length))
            for one, plain in ablated
        ),
        asked(
            "output only",
            "against the baseline",
            of(OUTPUT_ONLY, last_four),
            None,
            OUTPUT_ONLY_PLAN,
        ),
        asked(
            "output only",
            "against superposition",
            of(OUTPUT_ONLY, last_four),
            of(SMALL_MAIN, last_four),
            OUTPUT_ONLY_PLAN,
        ),
        *(
            asked(
                "sizes",
                model,
                of(
                    SMALL_MAIN,
                    {
                        "corpus": text,
                        "hidden_size": _hidden(sized),
                        "steps": SIZES_STEPS,
                        "seed": four,
                    },
                ),
            )
            for model, sized in sizes.items()
        ),
        *(
            asked(
                "little text",
                label_of(one, STEPS),
                of(one, at_length | {"corpus": LITTLE_TEXT.name}),
            )
            for one in (SMALL_MAIN, OUTPUT_ONLY)
        ),
    ]


def label_of(one: Superposition, steps: int) -> str:
    """As the run table names a setting of so many steps."""
    values = {"superposition": one.model_dump(), "schedule": {"steps": steps}}
    return SuperpositionSetting.from_config(values).label


def _hidden(setting: Setting) -> int:
    return setting.config("campaign").model.hidden_size
