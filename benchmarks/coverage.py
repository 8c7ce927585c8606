"""How often the intervals of `analysis` hold a truth that is known, at 2, 3, 5 and 10 seeds.

    python -m benchmarks.coverage [--made 400] [--only multiplier] [--to FILE.csv]

Data sets are made from a law, with the noise of runs: what a seed's runs share and what each has
of its own. Every interval comes from a public function. `docs/analysis.md` shows the numbers that
this writes; the tests run the same circumstances with a tolerance from the binomial.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.fits.bag_size import optimum
from analysis.fits.scaling.compute_multiplier import compute_multiplier
from analysis.fits.scaling.frontier import isoflop
from analysis.fits.scaling.laws import Base, fit_chinchilla
from analysis.tables.columns import finished
from analysis.verdict.comparison import compare
from analysis.verdict.length_curve import speed_up
from tst_study.errors import UserError

Random = np.random.Generator
Shown = tuple[float | None, float | None, float]
"""Low, high (None: open) and the truth. Both open: nothing was claimed."""
SEEDS = (2, 3, 5, 10)
RECORD = Path(__file__).parent / "records" / "coverage.csv"
LUCK = 0.01
"""Nats that all runs of a seed share; a pair of runs does not see them."""
LAW = Base(np.log(1.8), np.log(480.0), np.log(2085.0), 0.35, 0.37)
EXPONENT = LAW.beta / (LAW.alpha + LAW.beta)
BAGS = (2, 3, 4, 5, 6, 8, 12, 16)


@dataclass(frozen=True)
class Circumstance:
    """One kind of interval where it is used: `of(random, seeds)` yields what one data set shows."""

    interval: str
    where: str
    of: Callable[[Random, int], Iterator[Shown]]
    seeds: tuple[int, ...] = SEEDS

    def measured(self, seeds: int, made: int) -> dict[str, Any]:
        """Over `made` data sets: the share of intervals that hold the truth, and of data sets
        that show none. Data sets of one circumstance and number of seeds are always the same."""
        random = np.random.default_rng([seeds, *self.interval.encode(), *self.where.encode()])
        held: list[bool] = []
        silent = 0
        for _ in range(made):
            shown = list(self.of(random, seeds))
            claims = [row for row in shown if row[0] is not None or row[1] is not None]
            silent += not claims
            held += [
                (low is None or low <= truth) and (high is None or truth <= high)
                for low, high, truth in claims
            ]
        return {
            "interval": self.interval,
            "where": self.where,
            "seeds": seeds,
            "made": made,
            "covered": round(float(np.mean(held)), 3) if held else None,
            "silent": round(silent / made, 3),
        }


def _multiplier(
    lengths: tuple[float, ...], shrinking: bool = False
) -> Callable[[Random, int], Iterator[Shown]]:
    """Baseline and a method worth 1.5 times the compute (or 2 falling to 1.3), E + A C^−α."""

    def of(random: Random, seeds: int, noise: float = 0.004) -> Iterator[Shown]:
        def loss(compute: Any) -> Any:
            return 1.8 + 1.6 * np.asarray(compute) ** -0.35

        def worth(compute: Any) -> Any:
            return 1.3 + 0.7 * np.asarray(compute) ** -0.5 if shrinking else 1.5 + 0 * compute

        luck = LUCK * random.standard_normal(seeds)
        computes = np.array(lengths)
        arms = []
        for gained in (np.ones_like(computes), worth(computes)):
            losses = loss(computes * gained) + luck[:, None]
            losses = losses + noise * random.standard_normal(losses.shape)
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
        try:
            table = compute_multiplier(*arms, losses=3)
        except UserError:
            return
        for row in table.to_dict("records"):
            of_method = np.interp(-row["loss"], -reached, fine)
            yield _end(row["low"]), _end(row["high"]), float(worth(of_method))

    return of


def _equal_loss(lengths: tuple[int, ...]) -> Callable[[Random, int], Iterator[Shown]]:
    """A setting at 1,000 steps that is worth 1.5 times its steps."""

    def of(random: Random, seeds: int, noise: float = 0.004) -> Iterator[Shown]:
        rows = []
        for seed in range(seeds):
            luck = LUCK * random.standard_normal()
            for steps, worth in (*((steps, 1.0) for steps in lengths), (1000, 1.5)):
                loss = 1.8 + 1.6 * (worth * steps / 1000) ** -0.35 + luck
                loss += noise * random.standard_normal()
                rows.append({"steps": steps, "seed": seed, "loss": loss, "worth": worth})
        table = pd.DataFrame(rows)
        found = speed_up(table[table["worth"] == 1], table[table["worth"] > 1])
        yield _end(found["low"]), _end(found["high"]), 1.5

    return of


def _optimum(
    truth: str, bags: tuple[int, ...] = BAGS, noise: float = 0.002
) -> Callable[[Random, int], Iterator[Shown]]:
    """Gains of several s whose best is 6, each held against one baseline of its seed."""

    def loss(bag: float) -> float:
        if truth == "parabola":
            return 3.1 + 0.03 * float(np.log(bag / 6.0)) ** 2
        return 3.0 + 0.02 * (6.0 / bag + float(np.log(bag)))

    def of(random: Random, seeds: int) -> Iterator[Shown]:
        baselines = noise * random.standard_normal(seeds)
        losses = np.array([loss(bag) for bag in bags])[:, None] - baselines
        found = optimum(bags, losses + noise * random.standard_normal(losses.shape))
        yield found.low, found.high, 6.0

    return of


def _isoflop(
    budgets: int, sizes: int = 10, shared: float = 0.0
) -> Callable[[Random, int], Iterator[Shown]]:
    """Runs of `sizes` sizes at every budget; `shared`: what the runs of a size share, in log L."""

    def of(random: Random, seeds: int) -> Iterator[Shown]:
        points = lattice(random, budgets, sizes, shared)
        try:
            found = isoflop(points)
        except UserError:
            return
        low, high = found.params_interval or (None, None)
        yield low, high, EXPONENT

    return of


def lattice(
    random: Random, budgets: int, sizes: int, shared: float, noise: float = 0.001
) -> pd.DataFrame:
    """params, tokens, flops, loss on a grid of sizes and FLOPs budgets."""
    flops = np.repeat(np.geomspace(1e19, 1e22, budgets), sizes)
    params = np.tile(np.geomspace(1e8, 2e10, sizes), budgets)
    tokens = flops / 6 / params
    error = np.tile(shared * random.standard_normal(sizes), budgets)
    error = error + noise * random.standard_normal(len(flops))
    loss = LAW.loss(params, tokens) * np.exp(error)
    points = pd.DataFrame({"params": params, "tokens": tokens, "flops": flops, "loss": loss})
    return points.assign(model=points["params"]) if shared else points


def _parametric(
    sizes: int, lengths: int, shared: float
) -> Callable[[Random, int], Iterator[Shown]]:
    """Sizes by lengths: checkpoints of one model per size, which share an error, or (`shared` 0)
    every one a model of its own."""

    def of(random: Random, seeds: int) -> Iterator[Shown]:
        params = np.repeat(np.geomspace(5e7, 1e10, sizes), lengths)
        tokens = np.tile(np.geomspace(1e9, 3e11, lengths), sizes)
        error = np.repeat(shared * random.standard_normal(sizes), lengths)
        error = error + 0.001 * random.standard_normal(len(params))
        loss = LAW.loss(params, tokens) * np.exp(error)
        points = pd.DataFrame(
            {"params": params, "tokens": tokens, "flops": 6 * params * tokens, "loss": loss}
        )
        model = points["params"] if shared else points.index
        try:
            found = fit_chinchilla(points.assign(model=model), 100)
        except UserError:
            return
        (row,) = found.allocation([1e21]).to_dict("records")
        yield _end(row["params_exponent_low"]), _end(row["params_exponent_high"]), EXPONENT

    return of


def gains(random: Random, seeds: int, settings: int, gain: float) -> pd.DataFrame:
    """Runs of `settings` settings that all gain `gain`, and of their baseline."""
    rows = []
    for seed in range(seeds):
        luck = LUCK * random.standard_normal()
        for bag in range(1, settings + 2):
            loss = 3.3 - (gain if bag > 1 else 0) + luck + 0.004 * random.standard_normal()
            superposed = 300 * (bag > 1)
            own = {"bag_size": bag, "superposed_steps": superposed, "step_ratio": superposed / 1000}
            known = {"seed": seed, "nats_per_token": loss, "annealed": True, "learning_rate": 1e-3}
            known |= dict.fromkeys(("group", "family", "corpus", "eval_set"), "made")
            known |= dict.fromkeys(("run_id", "folder", "fingerprint"), f"s{bag}-seed{seed}")
            tokens = {"raw_tokens": 1000 + superposed * (bag - 1), "latent_tokens": 1000}
            rows.append(finished(1000, own, **known, **tokens, parameters=1, flops=6000))
    table = pd.DataFrame(rows)
    return table.astype(dict.fromkeys(("training_seconds", "device_count"), float))


def _gains(settings: int, best: bool = False) -> Callable[[Random, int], Iterator[Shown]]:
    """The interval of every setting, or of the one that came out best."""

    def of(random: Random, seeds: int) -> Iterator[Shown]:
        table = compare(gains(random, seeds, settings, 0.01)).table
        if best:
            table = table.nlargest(1, "gain")
        for row in table.to_dict("records"):
            yield _end(row["low"]), _end(row["high"]), 0.01

    return of


def _end(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def circumstances() -> list[Circumstance]:
    one = (1,)
    return [
        Circumstance("multiplier", "4 lengths, each twice the last", _multiplier((1, 2, 4, 8))),
        Circumstance("multiplier", "3 lengths, each five times the last", _multiplier((1, 5, 25))),
        Circumstance("multiplier", "2 lengths, one twice the other", _multiplier((1, 2))),
        Circumstance("multiplier", "2 lengths, one five times the other", _multiplier((1, 5))),
        Circumstance(
            "multiplier", "4 lengths, worth 2 falling to 1.5", _multiplier((1, 2, 4, 8), True)
        ),
        Circumstance("equal loss", "baselines of 3 lengths", _equal_loss((500, 1000, 2000))),
        Circumstance("equal loss", "baselines of 2 lengths", _equal_loss((1000, 3000))),
        Circumstance("best s", "parabola is true", _optimum("parabola"), (1, *SEEDS)),
        Circumstance("best s", "asymmetric form is true", _optimum("asymmetric"), (1, *SEEDS)),
        Circumstance("best s", "4 values of s", _optimum("parabola", (2, 4, 8, 16)), (1, *SEEDS)),
        Circumstance("gain", "one setting", _gains(1)),
        Circumstance("gain", "the best of ten settings", _gains(10, best=True)),
        Circumstance("IsoFLOP", "3 budgets", _isoflop(3), one),
        Circumstance("IsoFLOP", "7 budgets", _isoflop(7), one),
        Circumstance("IsoFLOP", "7 budgets, rows by model", _isoflop(7, 10, 0.001), one),
        Circumstance("parametric", "80 models of one row", _parametric(10, 8, 0.0), one),
        Circumstance("parametric", "8 models of 8 rows", _parametric(8, 8, 0.002), one),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--made", type=int, default=400)
    parser.add_argument("--only", default="")
    parser.add_argument("--to", type=Path, default=RECORD)
    options = parser.parse_args()
    rows = []
    for circumstance in circumstances():
        if options.only in f"{circumstance.interval}, {circumstance.where}":
            for seeds in circumstance.seeds:
                rows.append(circumstance.measured(seeds, options.made))
                print(rows[-1], flush=True)
    pd.DataFrame(rows).to_csv(options.to, index=False)


if __name__ == "__main__":
    main()
