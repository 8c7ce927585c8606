"""Simulated coverage and width of the intervals that decide: the default beside paired t-tests.

    python -m benchmarks.verdict_coverage [--made 2000] [--to FILE.json]

Several arms are compared with one baseline whose true gain over each is zero.
`docs/research/coverage.md` shows the table. The method `moderated-1` was chosen by it before any
campaign was judged by it."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.coverage import command_line
from tst_study.analysis.statistics import critical_t
from tst_study.analysis.summary import summarise
from tst_study.analysis.tables.source import read_tables
from tst_study.analysis.verdict import intervals
from tst_study.analysis.verdict.intervals import Difference, moderated, paired_difference
from tst_study.analysis.verdict.planned import arm_losses

RECORD = Path(__file__).parent / "records" / "verdict_coverage.json"
CAMPAIGN = Path(__file__).parents[1] / "docs" / "records" / "what-does-the-work"
SEEDS = (2, 3, 4, 8, 12)
CONTRASTS = (1, 2, 3, 9, 30)
MEASURED = "as in the second campaign"
SPREADS: dict[str, Callable[[int], np.ndarray]] = {
    "equal": np.ones,
    "baseline × 3": lambda arms: np.where(np.arange(arms) == 0, 3.0, 1.0),
    "one arm × 3": lambda arms: np.where(np.arange(arms) == 1, 3.0, 1.0),
    "one arm × 10": lambda arms: np.where(np.arange(arms) == 1, 10.0, 1.0),
    "every other arm × 10": lambda arms: np.where(np.arange(arms) % 2, 10.0, 1.0),
    "t4 tails": np.ones,
    "incomplete": np.ones,
    "unpaired": np.ones,
}
"""Standard deviation of each arm in units of `DEVIATION`, the baseline first. The last three differ
otherwise: in the noise's distribution, in missing seeds, in arms that share no seeds (`Case`)."""
DEVIATION, SHARED = 5.5, 0.64
"""Standard deviation of a loss over seeds, 10⁻³ nats, and the share of its variance that all runs
of a seed have in common."""
SPIKE, EFFECT = 5_000.0, 20.0
"""Excess loss of a spiked run, and the true gain of the first arm beside it, 10⁻³ nats."""


@dataclass(frozen=True)
class Case:
    seeds: int
    contrasts: int
    spread: str

    @property
    def name(self) -> str:
        return f"{self.seeds} seeds, {self.contrasts} contrasts, {self.spread}"

    def losses(self, made: int) -> np.ndarray:
        """Losses in 10⁻³ nats, shape (made, arms, seeds); the same for a case every time."""
        random = np.random.default_rng([*self.name.encode()])
        arms = self.contrasts + 1
        if self.spread == MEASURED:
            covariance = np.cov(_measured()[:arms]) * 1e6
        else:
            covariance = np.full((arms, arms), SHARED * DEVIATION**2)
            np.fill_diagonal(covariance, DEVIATION**2)
            covariance *= np.outer(*2 * [SPREADS[self.spread](arms)])
        root = np.linalg.cholesky(covariance + 1e-9 * np.eye(arms))
        drawn = random.standard_normal((made, self.seeds, arms)) @ root.T
        if self.spread == "t4 tails":
            drawn /= np.sqrt(random.chisquare(4, drawn.shape) / 4) * np.sqrt(2)
        if self.spread == "unpaired":
            drawn = DEVIATION * random.standard_normal(drawn.shape)
        return drawn.transpose(0, 2, 1)

    def family(self, losses: np.ndarray) -> list[Difference]:
        """Return each arm's contrast with the baseline. `losses`: one data set, shape (arms,
        seeds), the baseline first."""
        if self.spread == "unpaired":
            series = [_without_seeds(arm, str(place)) for place, arm in enumerate(losses)]
            return [intervals.difference(arm, series[0]) for arm in series[1:]]
        kept = [slice(None)] * len(losses)
        if self.spread == "incomplete":  # arms have one half of the seeds or the other, in turn
            half = self.seeds // 2
            kept = [slice(half, None) if arm % 2 else slice(half) for arm in range(len(losses))]
        return [
            paired_difference((losses[0] - arm)[own].tolist())
            for arm, own in zip(losses[1:], kept[1:], strict=True)
        ]

    def measured(self, made: int) -> dict[str, Any]:
        """Return by method the coverage of the family and of its worst single contrast, and the
        median, 95th percentile and largest half-width in 10⁻³ nats."""
        families = [self.family(data) for data in self.losses(made)]
        plain = np.array([_halves(family) for family in families])
        shrunk = np.array([_halves(moderated(family)) for family in families])
        gains = np.abs([[arm.gain for arm in family] for family in families])
        row: dict[str, Any] = {"case": self.name, "made": made}
        for name, halves in (("moderated", shrunk), ("paired", plain)):
            missed = gains > halves
            row[name] = {
                "coverage": round(1 - float(missed.any(axis=1).mean()), 4),
                "worst contrast": round(1 - float(missed.mean(axis=0).max()), 4),
                **dict(zip(("median", "95%", "widest"), _spread(halves), strict=True)),
            }
        widest = (shrunk.max(axis=1) / plain.max(axis=1)).max()
        return {**row, "widest, of the widest paired": round(float(widest), 3)}

    def spiked(self, made: int) -> dict[str, Any]:
        """Return how much a spike in one run of the last arm widens the first arm's interval, and
        how often that arm's gain is still found."""
        losses = self.losses(made)
        losses[:, 1] -= EFFECT
        before = [moderated(self.family(data)) for data in losses]
        losses[:, -1, 0] += SPIKE
        after = [moderated(self.family(data)) for data in losses]
        halves = np.array([[_halves(family)[0] for family in sets] for sets in (before, after)])
        ratio = halves[1] / halves[0]
        gains = np.array([family[0].gain for family in after])
        return {
            "case": f"{self.name}, a spike in another arm",
            "made": made,
            "wider, median": round(float(np.median(ratio)), 3),
            "wider, most": round(float(ratio.max()), 3),
            "found": round(float((gains > halves[1]).mean()), 4),
        }


def _without_seeds(losses: np.ndarray, arm: str) -> pd.Series:
    return pd.Series(losses, [f"{intervals.UNPAIRED}{arm}-{i}" for i in range(len(losses))])


def _halves(family: Sequence[Difference]) -> list[float]:
    """Half-widths that allow for the whole family."""
    return [critical_t(arm.freedom, len(family)) * arm.error for arm in family]


def _spread(halves: np.ndarray) -> list[float]:
    return [round(float(half), 1) for half in (*np.quantile(halves, [0.5, 0.95]), halves.max())]


@functools.cache
def _measured() -> np.ndarray:
    """Final losses of the second campaign's ten arms over twelve seeds, the baseline first."""
    summary = summarise(read_tables(CAMPAIGN))
    return arm_losses(summary.comparison.eligible, summary.questions).to_numpy().T


def cases() -> list[Case]:
    made = itertools.product(SEEDS, CONTRASTS, (MEASURED, *SPREADS))
    return [
        Case(seeds, contrasts, spread)
        for seeds, contrasts, spread in made
        if (contrasts <= 9 or spread not in (MEASURED, "unpaired"))
        and (seeds >= 8 or spread != "incomplete")
    ]


def main() -> None:
    options = command_line(__doc__, 2000, RECORD)
    intervals.FEWEST_SEEDS = 2  # to show what two seeds would give
    rows = []
    for case in cases():
        rows.append(case.measured(options.made))
        if case.spread == "equal" and case.contrasts > 1:
            rows.append(case.spiked(options.made))
        print(json.dumps(rows[-1]), flush=True)
    options.to.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    main()
