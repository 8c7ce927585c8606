"""Simulates how often the intervals of `analysis` hold the truth, with 1 to 10 seeds.

    python -m benchmarks.coverage [--made 200] [--to FILE.csv]

Data sets are made from curves that are known, with random noise. Every interval comes from a public
function. `docs/research/coverage.md` shows the numbers of the record that this writes (200 data
sets for each case). The slow tests run the same cases, and tolerate what the binomial distribution
allows. `verdict_coverage` does this for the gains of families of arms."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tst_study.analysis.fits.bag_size import optimum
from tst_study.analysis.fits.scaling.compute_multiplier import compute_multiplier
from tst_study.analysis.fits.scaling.frontier import isoflop
from tst_study.analysis.fits.scaling.laws import Base, fit_chinchilla
from tst_study.analysis.tables.columns import finished
from tst_study.analysis.verdict.comparison import compare
from tst_study.analysis.verdict.decide import Contrast, decide
from tst_study.analysis.verdict.documents import documents_of
from tst_study.analysis.verdict.length_curve import speed_up
from tst_study.analysis.verdict.question import Arm, Question
from tst_study.errors import UserError

Random = np.random.Generator
Shown = Iterator[tuple[Any, Any, float]]
"""The intervals of one data set: low, high and truth. An open end is None or NaN; if both ends are
open, the interval makes no claim."""
SEEDS = (2, 3, 5, 10)
RECORD = Path(__file__).parent / "records" / "coverage.csv"
LUCK = 0.01
"""Standard deviation of the noise that all runs of a seed share, in nats per token. It cancels in a
paired difference."""
NOISE = 0.002
"""Standard deviation of the noise that each run has alone, in nats per token."""
LAW = Base(np.log(1.8), np.log(480.0), np.log(2085.0), 0.35, 0.37)
"""Chinchilla's law, L(N, D), from which runs of several sizes and lengths are made."""
EXPONENT = LAW.beta / (LAW.alpha + LAW.beta)
"""The exponent with which, by this law, the optimal size grows with compute."""
BAGS = (2, 3, 4, 5, 6, 8, 12, 16)
"""The values of s that a simulated curve over s has."""


@dataclass(frozen=True)
class Circumstance:
    """One kind of interval in one situation. `of(random, seeds)` makes a data set and yields its
    intervals, or raises `UserError` if the analysis refuses the data."""

    interval: str
    where: str
    of: Callable[[Random, int], Shown]
    seeds: tuple[int, ...] = SEEDS

    def measured(self, seeds: int, made: int) -> dict[str, Any]:
        """Make `made` data sets, the same at every call. Return the share of intervals that hold
        the truth (None if there is no interval), and the share of data sets without an interval."""
        random = np.random.default_rng([seeds, *self.interval.encode(), *self.where.encode()])
        held: list[bool] = []
        silent = 0
        for _ in range(made):
            try:
                shown = np.array(list(self.of(random, seeds)), dtype=float).reshape(-1, 3)
            except UserError:
                shown = np.empty((0, 3))
            low, high, truth = shown[~np.isnan(shown[:, :2]).all(axis=1)].T
            silent += not len(truth)
            held += list(~(low > truth) & ~(high < truth))
        return {
            "interval": self.interval,
            "where": self.where,
            "seeds": seeds,
            "made": made,
            "covered": round(float(np.mean(held)), 3) if held else None,
            "silent": round(silent / made, 3),
        }


def _multiplier(
    lengths: tuple[float, ...], random: Random, seeds: int, shrinking: bool = False
) -> Shown:
    """The compute multipliers of a method that reaches, with compute C, the loss of a baseline with
    1.5 C. With `shrinking` this factor is 2 at C = 1, and falls towards 1.3 as C grows. The loss of
    the baseline is E + A C^−α."""

    def loss(compute: Any) -> Any:
        return 1.8 + 1.6 * np.asarray(compute) ** -0.35

    def worth(compute: Any) -> Any:
        return 1.3 + 0.7 * np.asarray(compute) ** -0.5 if shrinking else 1.5 + 0 * compute

    luck = LUCK * random.standard_normal(seeds)
    computes = np.array(lengths)
    arms = []
    for gained in (np.ones_like(computes), worth(computes)):
        losses = loss(computes * gained) + luck[:, None]
        losses = losses + NOISE * random.standard_normal(losses.shape)
        arms.append(
            pd.DataFrame(
                {
                    "flops": np.tile(computes, seeds),
                    "seed": np.repeat(np.arange(seeds), len(computes)),
                    "loss": losses.ravel(),
                }
            )
        )
    fine = np.geomspace(computes[0], computes[-1] * 3, 4000)
    reached = loss(fine * worth(fine))
    for row in compute_multiplier(*arms, losses=3).to_dict("records"):
        of_method = np.interp(-row["loss"], -reached, fine)
        yield row["low"], row["high"], float(worth(of_method))


def _equal_loss(lengths: tuple[int, ...], random: Random, seeds: int, bend: float = 0.0) -> Shown:
    """Ratio of steps at equal loss, for a setting whose loss after 1,000 steps is that of the
    baseline after 1,500. With `bend`, the curve is no power law."""
    rows = []
    for seed in range(seeds):
        luck = LUCK * random.standard_normal()
        for steps, worth in (*((steps, 1.0) for steps in lengths), (1000, 1.5)):
            done = worth * steps / 1000
            loss = 1.8 + 1.6 * done**-0.35 + bend * np.exp(-done) + luck
            loss += NOISE * random.standard_normal()
            rows.append({"steps": steps, "seed": seed, "loss": loss, "worth": worth})
    table = pd.DataFrame(rows)
    steps_ratio = speed_up(table[table["worth"] == 1], table[table["worth"] > 1])
    yield steps_ratio["low"], steps_ratio["high"], 1.5


def _parabola(bag: float) -> float:
    return 3.1 + 0.03 * float(np.log(bag / 6.0)) ** 2


def _asymmetric(bag: float) -> float:
    return 3.0 + 0.02 * (6.0 / bag + float(np.log(bag)))


def _optimum(
    loss: Callable[[float], float], random: Random, seeds: int, bags: tuple[int, ...] = BAGS
) -> Shown:
    """Best s of a curve whose true best s is 6. All s of a seed are compared with one baseline,
    whose noise they share."""
    baselines = NOISE * random.standard_normal(seeds)
    losses = np.array([loss(bag) for bag in bags])[:, None] - baselines
    best = optimum(bags, losses + NOISE * random.standard_normal(losses.shape))
    yield best.low, best.high, 6.0


def _isoflop(budgets: int, random: Random, seeds: int, shared: float = 0.0) -> Shown:
    """Exponent of the optimal size, by IsoFLOP curves: ten sizes at each compute budget."""
    flops = np.repeat(np.geomspace(1e19, 1e22, budgets), 10)
    params = np.tile(np.geomspace(1e8, 2e10, 10), budgets)
    frontier = isoflop(_grid(random, params, flops / 6 / params, flops, shared))
    low, high = frontier.params_interval or (None, None)
    yield low, high, EXPONENT


def _parametric(sizes: int, shared: float, random: Random, seeds: int) -> Shown:
    """Exponent of the optimal size, by the parametric fit: several sizes at eight lengths each."""
    params = np.repeat(np.geomspace(5e7, 1e10, sizes), 8)
    tokens = np.tile(np.geomspace(1e9, 3e11, 8), sizes)
    points = _grid(random, params, tokens, 6 * params * tokens, shared)
    (row,) = fit_chinchilla(points, 100).allocation([1e21]).to_dict("records")
    yield row["params_exponent_low"], row["params_exponent_high"], EXPONENT


def _grid(random: Random, params: Any, tokens: Any, flops: Any, shared: float) -> pd.DataFrame:
    """Return runs whose losses are those of `LAW` with noise. `shared`: standard deviation of an
    error in log L that all rows of one size share, as checkpoints of one model do. If it is 0,
    every row counts as a model of its own."""
    sizes, size = np.unique(params, return_inverse=True)
    error = (shared * random.standard_normal(len(sizes)))[size]
    error = error + 0.001 * random.standard_normal(len(params))
    loss = LAW.loss(params, tokens) * np.exp(error)
    model = size if shared else np.arange(len(params))
    return pd.DataFrame(
        {"params": params, "tokens": tokens, "flops": flops, "loss": loss, "model": model}
    )


def _gains(settings: int, random: Random, seeds: int) -> Shown:
    """Gain of the setting that came out best, where the true gain of each is 0.01 nats."""
    table = compare(gains(random, seeds, settings, 0.01)).table
    for row in table.nlargest(1, "gain").to_dict("records"):
        yield row["low"], row["high"], 0.01


def _documents(sizes: tuple[float, ...], apart: float, random: Random, seeds: int) -> Shown:
    """Gain over seeds and held-out documents: 0.01 nats in the mean over all documents there are.
    `sizes`: the documents' relative numbers of tokens; `apart`: the standard deviation of their
    gains, in nats. Each run has `NOISE` of its own on each document."""
    tokens, parts = np.array(sizes), 0.01 + apart * random.standard_normal(len(sizes))
    luck, blocks = LUCK * random.standard_normal((seeds, 1)), [f"seed {n}" for n in range(seeds)]
    arms = []
    for gained in (parts, 0 * parts):
        own = NOISE * random.standard_normal((seeds, 1)) - gained
        losses = 3.3 + luck + own + NOISE * random.standard_normal((seeds, len(sizes)))
        cells = [np.array([loss, tokens]) for loss in losses]
        means = losses @ tokens / tokens.sum()
        arms.append(pd.DataFrame({"block": blocks, "loss": means, "documents": cells}))
    own, against = (pd.Series(arm["loss"].to_numpy(), blocks) for arm in arms)
    contrast = Contrast("made", own, against, 0, 0, (), documents=documents_of(*arms))
    for row in decide([contrast]).to_dict("records"):
        yield row["documents_low"], row["documents_high"], 0.01


def _worthwhile(questions: int, random: Random, seeds: int) -> Shown:
    """Upper end of the gain that came out lowest in a family of `questions`, where each is the
    smallest worth having, 0.01 nats. Below that, `no worthwhile gain` is claimed wrongly."""
    baseline = NOISE * random.standard_normal(seeds)
    contrasts = []
    for number in range(questions):
        own = NOISE * random.standard_normal(seeds) - 0.01
        side = Arm(name=f"arm {number}")
        asked = Question(name=side.name, arm=side, against=side, family="made", smallest_gain=0.01)
        losses, against = (
            pd.Series(values, [f"seed {seed}" for seed in range(seeds)])
            for values in (own, baseline)
        )
        contrasts.append(Contrast(asked.name, losses, against, 0, 0, (), asked=asked))
    table = decide(contrasts)
    lowest = table["high"].astype(float).min()
    assert table["verdict"].eq("no worthwhile gain").any() <= (lowest < 0.01)
    yield None, lowest, 0.01


def gains(random: Random, seeds: int, settings: int, gain: float) -> pd.DataFrame:
    """Return a run table of one baseline and a number of `settings`, each with a true gain of
    `gain` nats."""
    rows = []
    for seed in range(seeds):
        luck = LUCK * random.standard_normal()
        for bag in range(1, settings + 2):
            loss = 3.3 - (gain if bag > 1 else 0) + luck + NOISE * random.standard_normal()
            superposed = 300 * (bag > 1)
            own = {"bag_size": bag, "superposed_steps": superposed, "step_ratio": superposed / 1000}
            known = {"seed": seed, "nats_per_token": loss, "annealed": True, "learning_rate": 1e-3}
            known |= dict.fromkeys(("group", "family", "corpus", "eval_set"), "made")
            known |= dict.fromkeys(("run_id", "folder", "fingerprint"), f"s{bag}-seed{seed}")
            tokens = {"raw_tokens": 1000 + superposed * (bag - 1), "latent_tokens": 1000}
            rows.append(finished(1000, own, **known, **tokens, parameters=1, flops=6000))
    table = pd.DataFrame(rows)
    return table.astype(dict.fromkeys(("training_seconds", "device_count"), float))


def circumstances() -> list[Circumstance]:
    """Return all cases, in the order of the table in `docs/research/coverage.md`."""
    doubled, few = (1, 2, 4, 8), (2, 4, 8, 16)
    far = (200, 1000, 5000)
    uneven = (11, 2, 6, 10, 2, 3, 1, 14, 1, 3, 4, 1, 12, 3, 2)  # as the second campaign's books
    many = uneven * 6 + uneven[:10]
    also_one, only_one, no_two = (1, *SEEDS), (1,), SEEDS[1:]
    rows: list[tuple[Any, ...]] = [
        ("multiplier", "4 lengths, each twice the last", partial(_multiplier, doubled)),
        ("multiplier", "3 lengths, each five times the last", partial(_multiplier, (1, 5, 25))),
        ("multiplier", "2 lengths, one twice the other", partial(_multiplier, (1, 2))),
        ("multiplier", "2 lengths, one five times the other", partial(_multiplier, (1, 5))),
        (
            "multiplier",
            "4 lengths, worth 2 falling to 1.5",
            partial(_multiplier, doubled, shrinking=True),
        ),
        ("equal loss", "baselines of 3 lengths", partial(_equal_loss, (500, 1000, 2000)), no_two),
        ("equal loss", "3 lengths, each five times the last", partial(_equal_loss, far), no_two),
        (
            "equal loss",
            "the same, on a curve that bends",
            partial(_equal_loss, far, bend=0.3),
            no_two,
        ),
        ("equal loss", "baselines of 2 lengths", partial(_equal_loss, (1000, 3000)), no_two),
        ("best s", "parabola is true", partial(_optimum, _parabola), also_one),
        ("best s", "asymmetric form is true", partial(_optimum, _asymmetric), also_one),
        ("best s", "4 values of s", partial(_optimum, _parabola, bags=few), also_one),
        ("gain", "one setting", partial(_gains, 1)),
        ("gain", "the best of ten settings", partial(_gains, 10)),
        ("gain, documents", "5 alike", partial(_documents, (1,) * 5, 0.005), no_two),
        ("gain, documents", "15 of 1 to 14 parts", partial(_documents, uneven, 0.005), no_two),
        ("gain, documents", "15, all alike in gain", partial(_documents, uneven, 0.0), no_two),
        ("gain, documents", "100 of 1 to 14 parts", partial(_documents, many, 0.02), no_two),
        ("no worthwhile gain", "one question", partial(_worthwhile, 1), no_two),
        ("no worthwhile gain", "a family of ten", partial(_worthwhile, 10), no_two),
        ("IsoFLOP", "3 budgets", partial(_isoflop, 3), only_one),
        ("IsoFLOP", "7 budgets", partial(_isoflop, 7), only_one),
        ("IsoFLOP", "7 budgets, rows by model", partial(_isoflop, 7, shared=0.001), only_one),
        ("parametric", "80 models of one row", partial(_parametric, 10, 0.0), only_one),
        ("parametric", "8 models of 8 rows", partial(_parametric, 8, 0.002), only_one),
    ]
    return [Circumstance(*row) for row in rows]


def command_line(words: str | None, made: int, record: Path) -> argparse.Namespace:
    """Read from the command line how many data sets to make for each case, and where to write the
    results. `words` is the description for `--help`; the other arguments are the defaults."""
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("--made", type=int, default=made)
    parser.add_argument("--to", type=Path, default=record)
    return parser.parse_args()


def main() -> None:
    options = command_line(__doc__, 200, RECORD)
    rows = []
    for circumstance in circumstances():
        for seeds in circumstance.seeds:
            rows.append(circumstance.measured(seeds, options.made))
            print(rows[-1], flush=True)
    pd.DataFrame(rows).to_csv(options.to, index=False)


if __name__ == "__main__":
    main()
