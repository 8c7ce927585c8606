"""Simulated coverage and width of the intervals that decide verdicts on gains.

    python -m benchmarks.verdict_coverage [--made 10000] [--to FILE.json]

The default method, `moderated-1`, is set beside paired t-tests. In each case one or more arms are
compared with one baseline. Their true gains over it are zero, except where the power to find a gain
is measured (`Case.spiked`). `docs/research/coverage.md` shows the table of results. `moderated-1`
was chosen from such a table when the results of two campaigns were known by other methods, and
before it judged them itself."""

import functools
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.coverage import command_line
from tst_study.analysis.statistics import critical_t
from tst_study.analysis.summary import summarise
from tst_study.analysis.tables.source import read_tables
from tst_study.analysis.verdict import intervals
from tst_study.analysis.verdict.planned import arm_losses

RECORD = Path(__file__).parent / "records" / "verdict_coverage.json"
CAMPAIGN = Path(__file__).parents[1] / "docs" / "records" / "what-does-the-work"
"""The archive of the second campaign."""
SEEDS = (2, 3, 4, 8, 12, 20)
"""The package itself gives no interval for two seeds."""
CONTRASTS = (1, 2, 3, 9, 30)
"""The sizes of a family: how many arms are compared with the baseline. Each comparison is a
contrast."""
MEASURED = "as in the second campaign"
"""The name of the spread in which the losses of arms vary together as in the second campaign."""
SPREADS: dict[str, Callable[[int], np.ndarray]] = {
    "equal": np.ones,
    "baseline × 3": lambda arms: np.where(np.arange(arms) == 0, 3.0, 1.0),
    "one arm × 3": lambda arms: np.where(np.arange(arms) == 1, 3.0, 1.0),
    "one arm × 10": lambda arms: np.where(np.arange(arms) == 1, 10.0, 1.0),
    "every other arm × 10": lambda arms: np.where(np.arange(arms) % 2, 10.0, 1.0),
    "baseline and one arm ÷ 20": lambda arms: np.where(np.arange(arms) < 2, 0.05, 1.0),
    "t4 tails": np.ones,
    "uneven": np.ones,
    "incomplete": np.ones,
    "unpaired": np.ones,
}
"""The other spreads. Each function takes the number of arms, the baseline included, and returns the
standard deviation of each arm's losses in units of `DEVIATION`, the baseline's first.

Under the last four names all arms have equal deviations, and something else is special: the noise
follows Student's t with four degrees of freedom, every third arm has three seeds alone, each arm
but the baseline lacks half of the seeds, or the arms have no seeds in common."""
DEVIATION, SHARED = 5.5, 0.64
"""Standard deviation of a loss over seeds, in 10⁻³ nats, and the share of its variance that all
runs of a seed have in common."""
SPIKE, EFFECT = 5_000.0, 20.0
"""The amount that `Case.spiked` adds to the loss of one run of the last arm, and the true gain that
it gives to the first arm after the baseline, both in 10⁻³ nats."""


@dataclass(frozen=True)
class Case:
    """One simulated situation: the number of seeds, the number of arms that are compared with the
    baseline (contrasts), and how their losses scatter (`MEASURED`, or a key of `SPREADS`)."""

    seeds: int
    contrasts: int
    spread: str

    @property
    def name(self) -> str:
        return f"{self.seeds} seeds, {self.contrasts} contrasts, {self.spread}"

    def losses(self, made: int) -> np.ndarray:
        """Draw `made` data sets of losses in 10⁻³ nats, shape (made, arms, seeds). Arm 0 is the
        baseline. Calls with the same case and the same `made` draw the same data sets."""
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

    def families(self, losses: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the gains of all arms over the baseline, and their `variance`, `freedom` and
        `size` as `Difference` has them, each of shape (made, contrasts)."""
        if self.spread == "unpaired":
            means, variances = losses.mean(axis=2), losses.var(axis=2, ddof=1)
            pairs = np.stack(np.broadcast_arrays(variances[:, 1:], variances[:, :1]), axis=-1)
            counts = np.array([self.seeds, self.seeds])
            return means[:, :1] - means[:, 1:], *intervals.two_samples(pairs, counts)
        kept = np.ones(losses.shape[1:], bool)
        if self.spread == "incomplete":  # arms have the second half of the seeds or the first
            half = self.seeds // 2
            kept[1::2, :half] = kept[2::2, half:] = False
        if self.spread == "uneven":
            kept[::3, 3:] = False
        pairs = np.where(kept, losses[:, :1] - losses, np.nan)[:, 1:]
        size = np.broadcast_to(kept[1:].sum(axis=1), pairs.shape[:2]).astype(float)
        return np.nanmean(pairs, axis=2), np.nanvar(pairs, axis=2, ddof=1), size - 1, size

    def measured(self, made: int) -> dict[str, Any]:
        """Simulate `made` data sets, and return a row with the results of each method.

        They are the coverage of the family (the share of data sets in which all intervals hold
        zero), the coverage of its worst single contrast, and the median, 95th percentile and
        maximum of the half-widths in 10⁻³ nats. The row also has the largest ratios, over data
        sets, of the widest moderated interval to the widest paired one, and of any moderated
        interval to the paired one of its contrast.
        """
        gains, *own = self.families(self.losses(made))
        plain, shrunk = _halves(*own), _moderated(*own)
        row: dict[str, Any] = {"case": self.name, "made": made}
        for name, halves in (("moderated", shrunk), ("paired", plain)):
            missed = np.abs(gains) > halves
            row[name] = {
                "coverage": round(1 - float(missed.any(axis=1).mean()), 4),
                "worst contrast": round(1 - float(missed.mean(axis=0).max()), 4),
                **dict(zip(("median", "95%", "widest"), _spread(halves), strict=True)),
            }
        widest = (shrunk.max(axis=1) / plain.max(axis=1)).max()
        row |= {"widest, of the widest paired": round(float(widest), 3)}
        return {**row, "widest, of its own paired": round(float((shrunk / plain).max()), 3)}

    def spiked(self, made: int) -> dict[str, Any]:
        """Return by what factor a spike in one run of the last arm widens the interval of arm 1 (in
        the median and at most), and the share of data sets in which that interval still lies above
        zero. Here arm 1 has a true gain, `EFFECT`."""
        losses = self.losses(made)
        losses[:, 1] -= EFFECT
        _, *own = self.families(losses)
        before = _moderated(*own)[:, 0]
        losses[:, -1, 0] += SPIKE
        gains, *own = self.families(losses)
        after = _moderated(*own)[:, 0]
        ratio = after / before
        return {
            "case": f"{self.name}, a spike in another arm",
            "made": made,
            "wider, median": round(float(np.median(ratio)), 3),
            "wider, most": round(float(ratio.max()), 3),
            "found": round(float((gains[:, 0] > after).mean()), 4),
        }


def _halves(variance: np.ndarray, freedom: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return the half-widths of the intervals of families, with Bonferroni's allowance for all of
    each."""
    halves: np.ndarray = critical_t(freedom, variance.shape[1]) * np.sqrt(variance / size)
    return halves


def _moderated(variance: np.ndarray, freedom: np.ndarray, size: np.ndarray) -> np.ndarray:
    own = intervals.shared(variance, freedom, size, variance.shape[1])
    return _halves(*own, size)


def _spread(halves: np.ndarray) -> list[float]:
    return [round(float(half), 1) for half in (*np.quantile(halves, [0.5, 0.95]), halves.max())]


@functools.cache
def _measured() -> np.ndarray:
    """Return the final losses of the second campaign in nats: a row for each of its ten arms, the
    baseline first, and a column for each of twelve seeds."""
    summary = summarise(read_tables(CAMPAIGN))
    return arm_losses(summary.comparison.eligible, summary.questions).to_numpy().T


def cases() -> list[Case]:
    """Return all cases. 30 contrasts are left out for `MEASURED`, as the campaign has fewer arms,
    and for "unpaired"; fewer than eight seeds are left out for "incomplete" and "uneven", and 20
    seeds for all but these two."""
    made = itertools.product(SEEDS, CONTRASTS, (MEASURED, *SPREADS))
    return [
        Case(seeds, contrasts, spread)
        for seeds, contrasts, spread in made
        if (contrasts <= 9 or spread not in (MEASURED, "unpaired"))
        and (seeds >= 8 if spread in ("incomplete", "uneven") else seeds <= 12)
    ]


def main() -> None:
    options = command_line(__doc__, 10_000, RECORD)
    rows = []
    for case in cases():
        rows.append(case.measured(options.made))
        if case.spread == "equal" and case.contrasts > 1:
            rows.append(case.spiked(options.made))
        print(json.dumps(rows[-1]), flush=True)
    options.to.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    main()
