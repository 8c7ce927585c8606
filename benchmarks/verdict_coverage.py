"""Which method gives the verdicts: simulated coverage and power of simultaneous intervals.

    python -m benchmarks.verdict_coverage [--made 2000] [--to FILE.json] [--only TEXT]

Several arms are held against one baseline. A loss is what all runs of its seed share, a share of
the variance, and what it has of its own. `docs/analysis.md` has the table; the default of
`analysis.verdict` was chosen by it before it was applied to any campaign.
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from tst_study.analysis.verdict.intervals import LEVEL, Design, exceeded

RECORD = Path(__file__).parent / "records" / "verdict_coverage.json"
SHARES = (0.0, 0.5, 0.9)
NOISE = ("equal", "one arm three times", "baseline three times", "t4 tails")
SECOND = "as in the second campaign"
SPREAD = {
    "one arm three times": [1.0, 3.0],
    "baseline three times": [3.0],
    # Deviations over seeds in docs/findings.md, by that of the least.
    SECOND: [4.7, 2.1, 1.0, 1.0, 2.9, 3.1, 12.8, 2.9, 4.6, 4.4],
}
"""Deviation of each arm's own part, the baseline's first; of all that follow 1."""
DESIGNS = ((4, 1), (12, 1), (3, 6), (4, 2), (4, 6), (4, 10), (8, 6), (12, 2), (12, 6), (12, 10))
"""Seeds, and arms held against the baseline."""
METHODS = {
    "pooled": (False, False),
    "blocks": (True, False),
    "own variances": (False, True),
    "blocks, own variances": (True, True),
}
EFFECT = 4.0
"""Of the arm whose power is told, in standard errors of a mean paired difference."""


@dataclass(frozen=True)
class Case:
    seeds: int
    arms: int
    share: float
    noise: str
    incomplete: bool
    """Arms but the baseline have half of the seeds: the first half and the second by turns."""

    @property
    def name(self) -> str:
        missing = ", incomplete" if self.incomplete else ""
        return f"{self.seeds} seeds, {self.arms} arms, {self.noise}{missing}, share {self.share:g}"

    def design(self, blocks: bool = False, own: bool = False) -> Design:
        arm, seed = np.divmod(np.arange((self.arms + 1) * self.seeds), self.seeds)
        if self.incomplete:
            kept = (arm == 0) | ((seed < self.seeds // 2) == (arm % 2 == 1))
            arm, seed = arm[kept], seed[kept]
        contrasts = np.hstack([-np.ones((self.arms, 1)), np.eye(self.arms)])
        return Design(arm, seed, contrasts, blocks, own)

    def losses(self, made: int) -> np.ndarray:
        """(made, losses), all arms equal in truth; always the same of one case."""
        random = np.random.default_rng([*self.name.encode()])
        design = self.design()
        shape = (made, len(design.arm))
        own = random.standard_normal(shape)
        if self.noise == "t4 tails":
            own = random.standard_t(4, shape) / np.sqrt(2)
        spread = SPREAD.get(self.noise, [])
        own *= np.array([*spread, *[1.0] * (self.arms + 1 - len(spread))])[design.arm]
        shared = random.standard_normal((made, self.seeds))[:, design.seed]
        return np.sqrt(self.share) * shared + np.sqrt(1 - self.share) * own

    def measured(self, made: int) -> dict[str, object]:
        """Of each method the share of data sets whose intervals hold every truth, and the share of
        a quarter of them that show the effect of the last arm."""
        losses = self.losses(made)
        effect = EFFECT * np.sqrt(2 * (1 - self.share) / self.seeds)
        row: dict[str, object] = {"case": self.name, "made": made}
        for name, (blocks, own) in METHODS.items():
            estimates = self.design(blocks, own).estimates(losses)
            sizes = np.abs(estimates[0]) / estimates[1]
            covered = ~_shown(sizes, *estimates[2:])
            few = slice(made // 4)
            moved = np.abs(estimates[0][few] + effect)[:, -1:] / estimates[1][few, -1:]
            powered = _shown(moved, estimates[2][few, -1:], estimates[3][few])
            row[name] = [round(float(covered.mean()), 3), round(float(powered.mean()), 3)]
        row["paired, Bonferroni"] = self._paired(losses, effect)
        return row

    def _paired(self, losses: np.ndarray, effect: float) -> list[float]:
        """Each arm by the differences of its own seeds, as the first campaign registered."""
        design, covered = self.design(), np.ones(len(losses), dtype=bool)
        shown = 0.0
        for arm in range(1, self.arms + 1):
            seeds = design.seed[design.arm == arm]
            differences = losses[:, design.arm == arm] - losses[:, seeds]
            count = len(seeds)
            error = differences.std(axis=1, ddof=1) / np.sqrt(count)
            half = error * stats.t.isf((1 - LEVEL) / 2 / self.arms, count - 1)
            covered &= np.abs(differences.mean(axis=1)) <= half
            shown = float((np.abs(differences.mean(axis=1) + effect) > half).mean())
        return [round(float(covered.mean()), 3), round(shown, 3)]


def _shown(sizes: np.ndarray, freedom: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    """Of each data set whether any of its |t| lies beyond the joint quantile, which is computed
    only where one comparison alone and Bonferroni's bound disagree."""
    lone = 2 * stats.t.sf(sizes, freedom)
    sure = (lone * correlation.shape[-1] < 1 - LEVEL).any(axis=1)
    for row, arm in np.argwhere((lone < 1 - LEVEL) & ~sure[:, None]):
        chance = exceeded(sizes[row, arm], correlation[row], freedom[row, arm])
        sure[row] |= chance < 1 - LEVEL
    return sure


def cases() -> list[Case]:
    whole = [
        Case(*design, share, noise, incomplete=False)
        for design, noise, share in itertools.product(DESIGNS, NOISE, SHARES)
    ]
    parts = itertools.product(((8, 6),), NOISE, SHARES)
    whole += [Case(*design, share, noise, True) for design, noise, share in parts]
    return whole + [Case(12, 9, share, SECOND, incomplete=False) for share in SHARES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--made", type=int, default=2000)
    parser.add_argument("--to", type=Path, default=RECORD)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    rows = []
    for case in cases():
        if options.only in case.name:
            rows.append(case.measured(options.made))
            print(json.dumps(rows[-1]), flush=True)
    options.to.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    main()
