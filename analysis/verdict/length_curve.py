"""The loss of an arm as a curve over the length of training, and the length at which it reaches a
given loss. `matched` and `fits.scaling.compute_multiplier` use it to compare arms at equal loss.

Between the lengths that were run, log(L − E) is taken to be linear in the log of the length, which
makes the loss L a power law above a floor E. With three lengths or more, E is fitted. With two
lengths, which say nothing about the curvature, and where neighbouring lengths are far apart
(`WIDE`), results are computed for five floors, from zero to the one at which the exponent would be
1, and the interval spans those of all of them. The interval for
a given floor holds the lengths at which a t-test of the seeds' paired differences shows no
difference. It is valid for few seeds, too, and an end is open where the curve is too flat to tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy

from tst_study.analysis.checks import Floats
from tst_study.analysis.statistics import critical_t
from tst_study.analysis.verdict.intervals import FEW, paired_difference
from tst_study.errors import UserError

WIDE = 3.0
"""Ratio of neighbouring lengths up to which a fitted power law may stand alone between them. With
five-fold gaps, a curve that bends is covered in 2% of simulated cases by one form, and in all of
them by the span of forms."""
Ratio = tuple[float, float | None, float | None]
"""Log of a ratio of lengths, and the ends of its 95% interval; None for an open end."""


@dataclass(frozen=True)
class LengthCurve:
    """Final losses of annealed runs of one arm at several lengths, all with the same seeds."""

    x: Floats
    """Logs of the lengths (steps or FLOPs), rising, shape (lengths,)."""
    losses: Floats
    """Nats per token, shape (seeds, lengths); their means over the seeds fall with length."""
    note: str = ""
    """A note about lengths that were left out, if any."""

    @classmethod
    def of(cls, table: pd.DataFrame, name: str) -> LengthCurve:
        """Make a curve from a table of losses by length (index, rising) and seed (columns), without
        gaps. `name` is the name of the arm in messages.

        The curve ends before the first length whose mean loss is not below that of the length
        before it, because a loss must belong to one length only; `note` then says so. Raises
        `UserError` if fewer than two lengths are left."""
        means = table.mean(axis=1).to_numpy()
        falling = int(np.argmax(np.append(np.diff(means) >= 0, True))) + 1
        if len(means) < 2:
            raise UserError(f"the {name} has one length only; two or more are needed")
        if falling < 2:
            raise UserError(f"longer runs of the {name} are no better: a loss fits several lengths")
        note = ""
        if falling < len(means):
            last, next_ = (float(table.index[place]) for place in (falling - 1, falling))
            note = f"the {name} from {next_:,.6g} on is left out: no better than at {last:,.6g}"
        x = np.log(table.index.to_numpy(dtype=float))
        return cls(x[:falling], table.to_numpy(dtype=float).T[:, :falling], note)

    @property
    def means(self) -> Floats:
        """Mean loss at each length, over the seeds, shape (lengths,)."""
        means: Floats = self.losses.mean(axis=0)
        return means

    def place(self, loss: float, floor: float) -> float:
        """Return the log length at which the mean curve reaches `loss`. The first and last pieces
        of the curve are extended beyond its ends."""
        heights = np.log(self.means - floor)
        height = np.log(loss - floor)
        i = int(np.clip(np.searchsorted(-heights, -height) - 1, 0, len(heights) - 2))
        share = (heights[i] - height) / (heights[i] - heights[i + 1])
        return float(self.x[i] + share * (self.x[i + 1] - self.x[i]))

    def at(self, place: float, floor: float) -> Floats:
        """Return the loss of every seed at a log length, shape (seeds,).

        It is the mean curve there, plus the seed's deviations from that curve at the two nearest
        lengths, which are interpolated and scaled with the curve's height above the floor.
        """
        i = int(np.clip(np.searchsorted(self.x, place) - 1, 0, len(self.x) - 2))
        share = (place - self.x[i]) / (self.x[i + 1] - self.x[i])
        above = self.means[i : i + 2] - floor
        beyond = np.exp((1 - share) * np.log(above[0]) + share * np.log(above[1]))
        weights = np.array([1 - share, share]) * beyond / above
        own: Floats = floor + beyond + (self.losses - self.means)[:, i : i + 2] @ weights
        return own

    def reached(self, losses: Floats, floor: float, origin: float, comparisons: int = 1) -> Ratio:
        """Return the log of a ratio of lengths, with its 95% interval. The ratio is the length at
        which the mean curve reaches the mean of `losses` (one for each seed), divided by the length
        exp(`origin`).

        Both ends are None if the paired differences do not vary, as with one seed. Otherwise each
        end is searched for up to a limit beyond the curve. On either side the limit is as far
        outside the outermost length as that length is from its neighbour on the curve. An end is
        None if the t-test shows no difference even at its limit."""
        best = self.place(float(losses.mean()), floor)
        if not paired_difference((self.at(best, floor) - losses).tolist()).varies:
            return best - origin, None, None
        critical = critical_t(len(losses) - 1, comparisons)

        def shown(place: float, sign: float) -> float:
            difference = self.at(place, floor) - losses
            error = float(difference.std(ddof=1)) / np.sqrt(len(losses))
            return float(sign * difference.mean() - critical * error)

        ends: list[float | None] = []
        first, last = 2 * self.x[0] - self.x[1], 2 * self.x[-1] - self.x[-2]
        for limit, sign in ((min(first, best), 1.0), (max(last, best), -1.0)):
            bounded = shown(limit, sign) > 0
            end = float(scipy.optimize.brentq(shown, limit, best, (sign,))) if bounded else None
            ends.append(None if end is None else end - origin)
        return best - origin, ends[0], ends[1]


def hull(found: list[Ratio]) -> tuple[float, float | None, float | None]:
    """Return the first of these ratios (not its log), with an interval that spans the intervals of
    all. An end that is open in any of them is None."""
    lows = [low for _, low, _ in found if low is not None]
    highs = [high for _, _, high in found if high is not None]
    return (
        math.exp(found[0][0]),
        math.exp(min(lows)) if len(lows) == len(found) else None,
        math.exp(max(highs)) if len(highs) == len(found) else None,
    )


def floors(curves: list[LengthCurve]) -> Floats:
    """Return the floors (nats per token) for which results are to be computed. The result for the
    first floor is the estimate.

    If a curve has three lengths or more, one floor is fitted to all curves together, because they
    are over the same held-out text; it is the only one unless neighbouring lengths are more than
    `WIDE` apart. Then the form of the curve between them matters more than the seeds, and five
    further floors span the forms. Two lengths alone have these five, and the first is the middle of
    their range.
    """
    highest = min(
        float((curve.means[1:] + np.diff(curve.means) / np.expm1(np.diff(curve.x))).min())
        for curve in curves
    )
    highest = max(highest, 0.0)
    forms = highest * np.array([0.5, 0.0, 0.25, 0.75, 1.0])
    if max(len(curve.x) for curve in curves) < 3:
        return forms

    def misfit(floor: float) -> float:
        """Fit a power law above this floor to each curve. Return the sum of all squared residuals,
        roughly in nats²."""
        total = 0.0
        for curve in curves:
            above = curve.means - floor
            _, squares, *_ = np.polyfit(curve.x, np.log(above), 1, w=above, full=True)
            total += float(np.sum(squares))
        return total

    best = scipy.optimize.minimize_scalar(
        misfit, bounds=(0.0, max(highest, 1e-9)), method="bounded"
    ).x
    apart = max(float(np.diff(curve.x).max()) for curve in curves)
    return np.array([float(best), *(forms if apart > math.log(WIDE) + 1e-9 else ())])


def paired_tables(tables: list[pd.DataFrame], along: str) -> tuple[list[pd.DataFrame], str]:
    """Return each table as losses by length (index) and seed (columns), and a note on lengths that
    were left out. Columns of the given tables: `along` (the length), seed, loss.

    Only those seeds are kept that were run at every length of every table. If there are fewer than
    two such seeds, the lengths that a single seed ran are left out, provided that the remaining
    lengths share two seeds or more, and that every table keeps at least two lengths (or the only
    one that it has). Raises `UserError` if the tables share no seed, and for a seed that ran a
    length twice."""
    for table in tables:
        twice = table.duplicated([along, "seed"])
        if twice.any():
            seed, length = table["seed"][twice].iloc[0], table[along][twice].iloc[0]
            raise UserError(f"seed {seed} has two losses at {along} {length:g}; keep one")
    wide = [table.pivot(index=along, columns="seed", values="loss") for table in tables]
    seeds = _common(wide)
    note = ""
    if len(seeds) < 2:
        repeated = [table[table.notna().sum(axis=1) > 1] for table in wide]
        enough = all(len(r) >= min(2, len(w)) for r, w in zip(repeated, wide, strict=True))
        if enough and len(_common(repeated)) > 1:
            note = "lengths with one seed are left out"
            wide, seeds = repeated, _common(repeated)
    if not len(seeds):
        raise UserError(
            "no seed was run at every length of both arms; run the missing ones, or import the "
            "runs with their seeds"
        )
    return [table[seeds].sort_index() for table in wide], note


def _common(tables: list[pd.DataFrame]) -> list[Any]:
    """Return the seeds (columns) that have no gap in any table."""
    kept = [set(table.dropna(axis=1).columns) for table in tables]
    return sorted(set.intersection(*kept))


def speed_up(
    baselines: pd.DataFrame, superposed: pd.DataFrame, comparisons: int = 1
) -> dict[str, Any]:
    """Find after how many steps the baseline reaches the mean loss of superposed runs of one
    length. Columns of both tables: steps, seed, loss.

    Returns seeds (how many seeds ran every length), baseline_steps, speed_up (baseline_steps over
    the steps of the superposed runs), low, high and note. The ends low and high are those of the
    95% interval of speed_up, adjusted for the number of `comparisons`. They are None for one or two
    seeds, and an end is None if the baselines' lengths do not bound it. If the loss lies outside
    the range of the baselines' losses, or no curve can be made, all numbers but seeds are None,
    seeds counts all seeds of the superposed runs, and `note` says why.
    """
    nothing: dict[str, Any] = {"seeds": superposed["seed"].nunique()}
    nothing |= dict.fromkeys(("baseline_steps", "speed_up", "low", "high"))
    try:
        (table, own), left_out = paired_tables([baselines, superposed], "steps")
        curve = LengthCurve.of(table, "baseline")
    except UserError as error:
        return {**nothing, "note": str(error)}
    losses, steps = own.to_numpy(dtype=float).ravel(), float(own.index[0])
    loss, notes = float(losses.mean()), [note for note in (left_out, curve.note) if note]
    shortest, longest = (f"{math.exp(x):,.0f} steps" for x in curve.x[[0, -1]])
    if loss > curve.means[0]:
        notes.insert(0, f"worse than the shortest baseline ({shortest})")
    elif loss < curve.means[-1]:
        word = "best" if curve.means[-1] <= table.mean(axis=1).min() else "last usable"
        notes.insert(0, f"better than the {word} baseline ({longest})")
    if not curve.means[-1] <= loss <= curve.means[0]:
        return {**nothing, "note": "; ".join(notes)}
    best, low, high = hull(
        [curve.reached(losses, floor, math.log(steps), comparisons) for floor in floors([curve])]
    )
    if few := FEW.get(len(losses)):
        low = high = None
        notes.append(few)
    return {
        "seeds": len(losses),
        "baseline_steps": best * steps,
        "speed_up": best,
        "low": low,
        "high": high,
        "note": "; ".join(notes),
    }
