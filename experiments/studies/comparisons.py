"""Studies that train every combination of some set-ups, arms and seeds (`optimizers` chooses
learning rates first). Most of them ask the paper's questions; some, such as `optimizers` and
`seed-noise`, ask our own.

At scale `paper`, the paper's questions have the paper's own set-ups, arms and lengths. Where the
paper does not state something, such as the model of Figure 6 or the learning rates of Figure 7, it
is assumed, and a docstring below says so. The docstrings of the private functions name the tables
and figures of the paper that their runs are for.
"""

from tst_study.config.schema import SuperposedPhase
from tst_study.experiments.studies.grid import (
    Declared,
    Part,
    Tuning,
    against_baseline,
    choice,
    grid,
)
from tst_study.experiments.studies.scales import (
    DENSE_3B,
    DENSE_270M,
    DENSE_270M_LONG,
    DENSE_600M,
    Scale,
)
from tst_study.experiments.studies.setting import BASELINE, Setting
from tst_study.superposition.weighting import NAMED_WEIGHTINGS


def _bag_grid(scale: Scale) -> list[Part]:
    """Tables 4 to 6, Figures 4, 5 and 8."""
    if scale.is_paper:
        return [
            against_baseline(setting, grid(range(2, bag_sizes), scale.step_ratios))
            for setting, bag_sizes in ((DENSE_270M, 17), (DENSE_270M_LONG, 14), (DENSE_600M, 14))
        ]
    arms = grid(scale.bag_sizes, scale.step_ratios)
    return [against_baseline(scale.setting, arms, scale.seeds)]


def _power_law(scale: Scale) -> list[Part]:
    """Table 7 and Figure 11. At scale `paper` every s is also run at r = 1, for which Table 7
    prints s = 2 alone."""
    bag_sizes = range(2, 14) if scale.is_paper else scale.bag_sizes
    arms = grid(bag_sizes, scale.step_ratios, weighting="power_law")
    return [against_baseline(scale.setting_of(DENSE_600M), arms, scale.seeds)]


def _headline(scale: Scale) -> list[Part]:
    """The dense runs of Table 1, or one pair of arms at a smaller scale. Table 1's mixture of
    experts is the study `mixture-10b-a1b`."""
    if not scale.is_paper:
        return [against_baseline(scale.setting, (scale.main,), scale.seeds)]
    pairs = (DENSE_270M, DENSE_270M_LONG, DENSE_600M, DENSE_3B)
    return [Part(pairs, (BASELINE, scale.main)), _longer_baselines(scale)]


EQUAL_LOSS = 1.8
"""The number of steps in which a baseline should reach the superposed run's loss, as a multiple of
that run's steps. In the paper these are 36,000 and 20,000 steps."""


def _equal_cost(scale: Scale) -> list[Part]:
    """Figure 3. The three baselines differ only in length and share the steps before the learning
    rate decays, so that together they cost little more than the longest."""
    pair = against_baseline(scale.setting_of(DENSE_3B), (scale.main,), scale.seeds)
    return [pair, _longer_baselines(scale)]


def _longer_baselines(scale: Scale) -> Part:
    """Return the two longer baselines of Figure 3 (with 3B parameters at scale `paper`): one that
    should reach the superposed run's loss, and one that reads as much text as that run."""
    setting, main = scale.setting_of(DENSE_3B), scale.main
    lengths = (EQUAL_LOSS, 1 + main.step_ratio * (main.bag_size - 1))
    longer = tuple(setting.with_steps(round(setting.steps * length)) for length in lengths)
    return Part(longer, (BASELINE,), scale.seeds)


FIGURE_6 = DENSE_270M.with_steps(40_000)
"""The set-up of Figure 6. The figure does not name its model, and the loss of its baseline (about
3.086) is in no table; we assume 270M."""
FIGURE_6_ARM = SuperposedPhase(bag_size=4, step_ratio=0.5)


def _input_output(scale: Scale) -> list[Part]:
    """Figure 6."""
    modes = ("full", "input_only", "output_only")
    arms = [FIGURE_6_ARM.model_copy(update={"mode": mode}) for mode in modes]
    return [against_baseline(scale.setting_of(FIGURE_6), arms, scale.seeds)]


def _weightings(scale: Scale) -> list[Part]:
    """Figure 9. Its model and step ratio are taken to be Figure 6's, because both figures show the
    same curve for uniform weights at s = 4, which ends at 3.011. One weighting is added that the
    paper names but Figure 9 does not show: by the mutual information of tokens at each distance."""
    arms = [
        arm
        for s in (4, 16)
        for weighting in NAMED_WEIGHTINGS
        for arm in grid((s,), (FIGURE_6_ARM.step_ratio,), weighting=weighting)
    ]
    return [against_baseline(scale.setting_of(FIGURE_6), arms, scale.seeds)]


def _reinitialise(scale: Scale) -> list[Part]:
    """Table 2: does recovery need what superposition taught the embedding and the head? The two
    superposed arms share one prefix run."""
    arms = (scale.main, scale.main.model_copy(update={"reinitialize_at_switch": True}))
    return [against_baseline(scale.setting_of(DENSE_3B), arms, scale.seeds)]


OPTIMIZERS = ("adamw", "muon")
RATE_FACTORS = (0.5, 1.0, 2.0)
"""Candidate learning rates, as multiples of the set-up's rate. That rate suits AdamW, and Muon's
updates are scaled to the size of AdamW's."""


def _optimizers(scale: Scale) -> list[Tuning]:
    """Both arms under each optimizer, at the learning rate that is best for its baseline."""

    def both_arms(best: Setting) -> list[Part]:
        return [against_baseline(best, (scale.main,), scale.seeds)]

    choices = []
    for kind in OPTIMIZERS:
        setting = scale.setting.changed(kind, {"optimizer.kind": kind})
        if kind == "muon":  # which needs whole matrices on each rank
            setting = setting.changed("", {"execution.parallel.optimizer": "replicated"})
        candidates = [setting.with_rate(x * setting.learning_rate) for x in RATE_FACTORS]
        choices.append(choice(candidates, both_arms, seeds=scale.seeds[:1]))
    return choices


def _learning_rates(scale: Scale) -> list[Part]:
    """Figure 7: is one learning rate right for both arms? The figure does not print its rates; we
    assume multiples of the set-up's rate."""
    setting = scale.setting_of(DENSE_270M_LONG)
    factors = (0.25, 0.5, 1.0, 2.0, 4.0)
    settings = tuple(setting.with_rate(factor * setting.learning_rate) for factor in factors)
    return [Part(settings, (BASELINE, scale.main), scale.seeds)]


LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Lengths, as multiples of the set-up's steps. Baselines that differ only in length share the steps
before the learning rate decays."""
SMALL_MODELS = {"laptop-64": 1.0, "laptop-128": 0.5, "laptop-256": 0.25}
"""Models with their learning rates, as multiples of the one of laptop-64: the rate halves as the
width doubles."""


def _loss_against_compute(scale: Scale) -> list[Part]:
    """Both arms at every combination of model size and length, for fitting scaling laws."""
    setting = scale.setting
    if scale.is_paper:
        sizes = [DENSE_270M, DENSE_600M, DENSE_3B]
    elif setting["model.preset"] != "laptop-64":
        sizes = [setting, _sized(setting, "600m", 0.5)]
    else:
        sizes = [_sized(setting, model, factor) for model, factor in SMALL_MODELS.items()]
    settings = [size.with_steps(round(size.steps * length)) for size in sizes for length in LENGTHS]
    return [Part(tuple(settings), (BASELINE, scale.main), scale.seeds)]


def _sized(setting: Setting, model: str, factor: float) -> Setting:
    rate = setting.learning_rate * factor
    return setting.changed("", {"model.preset": model, "optimizer.learning_rate": rate})


PAIRS = {"smoke": 2, "quick": 4, "laptop": 8, "desktop": 16, "one-gpu": 5, "paper": 5}
"""Number of seeds of `seed-noise` by scale. Each seed gives one pair of runs."""


def _seed_noise(scale: Scale) -> list[Part]:
    seeds = range(scale.seeds.start, scale.seeds.start + PAIRS[scale.name])
    return [against_baseline(scale.setting, (scale.main,), seeds)]


STUDIES = {
    "bag-grid": Declared(
        "Bag size and step ratio",
        "Which s and r are best at one size and length; all r of one s share a prefix run.",
        _bag_grid,
    ),
    "power-law": Declared(
        "Power-law weights over bag size and step ratio",
        "Whether weights 1/i flatten the loss over s; uniform weights are `bag-grid`'s.",
        _power_law,
    ),
    "headline": Declared(
        "Superposition against the baseline",
        "Whether superposition beats a baseline of the same FLOPs, and by how much.",
        _headline,
    ),
    "equal-cost": Declared(
        "Equal FLOPs, equal loss, equal data",
        "What a baseline must spend to reach the superposed run's loss, and to read its text.",
        _equal_cost,
    ),
    "input-output": Declared(
        "Bags as input, as target, or both",
        "Which of the two sides brings the gain, at one s and r.",
        _input_output,
    ),
    "weightings": Declared(
        "Weights of the targets of a bag",
        "Whether near tokens should count for more, at a small and at a large bag.",
        _weightings,
    ),
    "reinitialise": Declared(
        "Embedding and head re-initialised at the switch",
        "Whether the gain survives new embeddings; both arms share their prefix run.",
        _reinitialise,
    ),
    "optimizers": Declared(
        "Superposition under AdamW and under Muon",
        "Whether the gain holds with AdamW alone, or also with an optimizer of another kind.",
        _optimizers,
    ),
    "learning-rates": Declared(
        "Learning rates of both arms",
        "Where the best rate of each arm lies, and what a rate tuned on the baseline costs.",
        _learning_rates,
    ),
    "loss-against-compute": Declared(
        "Loss against compute",
        "How much more compute a baseline needs for the same loss, over sizes and lengths.",
        _loss_against_compute,
    ),
    "seed-noise": Declared(
        "Noise of seeds",
        "The deviation of a loss and of a paired gain over seeds: what other gains must exceed.",
        _seed_noise,
    ),
}
