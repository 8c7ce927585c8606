"""Learning-rate sweeps of the baseline: which rate was best, whether it lies inside the range that
was tried, and whether the superposed runs use it.

If the rate was tuned for superposed runs, or not tuned for the baseline, a gain may be due to the
rate alone.
"""

from dataclasses import dataclass

import pandas as pd

from tst_study.analysis.tables.eligible import eligible, over_shared_seeds
from tst_study.analysis.wording import number


@dataclass(frozen=True)
class Sweep:
    """Baselines that differ in nothing but learning rate and seed, evaluated on the same text."""

    steps: int
    rates: pd.DataFrame
    """A row for each rate, rising. Columns: learning_rate; loss (nats per token, mean over the
    shared seeds; infinite if a seed diverged at this rate); seeds (how many the mean is over)."""
    best: float
    """The rate with the lowest loss."""
    margin: float | None
    """The loss at the next best rate less the loss at the best rate, in nats per token; None if
    each rate but the best has a seed that diverged."""
    at_edge: bool
    """Whether the best rate is the lowest or the highest that was tried."""
    superposed_rates: tuple[float, ...]
    """Rates of all superposed runs with the same data, model and batch, whatever their length or
    state."""

    @property
    def followed(self) -> bool:
        """Whether all superposed runs, if there are any, use the rate that was best for the
        baseline."""
        return all(rate == self.best for rate in self.superposed_rates)

    def sentence(self) -> str:
        """State the best rate, its lead, and whether the superposed runs use it."""
        tried, seeds = self.rates["learning_rate"], int(self.rates["seeds"].max())
        ahead = "the others diverged"
        if self.margin is not None:
            ahead = f"{self.margin:.3f} nats ahead of the next best"
        place = "inside the range"
        if self.at_edge:
            place = "at the edge of the range, so a better one may lie outside"
        others = ", ".join(f"{rate:g}" for rate in self.superposed_rates if rate != self.best)
        also = "also " * (self.best in self.superposed_rates)
        used = f"superposed runs {also}use {others}" if others else "all superposed runs use it"
        return (
            f"Of {len(tried)} learning rates from {tried.min():g} to {tried.max():g}, "
            f"{self.best:g} was best for the baseline ({self.steps:,} steps, "
            f"{number(seeds, 'seed')}), {ahead}; it lies {place}; "
            f"{used if self.superposed_rates else 'no superposed run yet'}."
        )


def swept(runs: pd.DataFrame) -> list[pd.DataFrame]:
    """Return a table of runs for each pair of a group and a held-out text, if the baselines in the
    table have several learning rates.

    It holds the runs that may be compared, those of pilot sweeps among them, and all runs of the
    group that diverged, because these have no final loss on any text. Runs that a person excluded
    are left out.
    """
    tried, _ = eligible(runs, pilots=True)
    lost = runs[(runs["state"] == "diverged") & (runs["exclusion"] == "")]
    texts = tried.groupby(["group", "eval_set"], sort=True)
    every = [pd.concat([own, lost[lost["group"] == group]]) for (group, _), own in texts]
    return [own for own in every if _baselines(own)["learning_rate"].nunique() > 1]


def sweeps(runs: pd.DataFrame) -> list[Sweep]:
    """Return the sweep of each group and held-out text (`swept`), except the sweeps in which every
    rate has a seed that diverged."""
    found_sweeps = []
    for members in map(_baselines, swept(runs)):
        rates, first = _rates(members), members.iloc[0]
        best, *others = rates.sort_values("loss").to_dict("records")
        if best["loss"] == float("inf"):
            continue
        margin = others[0]["loss"] - best["loss"]
        tried = rates["learning_rate"]
        same = (runs["family"] == first["family"]) & (runs["method"] == "superposition")
        superposed = runs.loc[same & (runs["exclusion"] == ""), "learning_rate"]
        found_sweeps.append(
            Sweep(
                steps=int(first["steps"]),
                rates=rates,
                best=best["learning_rate"],
                margin=margin if margin < float("inf") else None,
                at_edge=best["learning_rate"] in (tried.min(), tried.max()),
                superposed_rates=tuple(sorted(map(float, superposed.dropna().unique()))),
            )
        )
    return found_sweeps


def _baselines(runs: pd.DataFrame) -> pd.DataFrame:
    return runs[runs["method"] == "baseline"]


def _rates(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `Sweep.rates`. A rate at which a seed diverged has an infinite loss. For the others
    the mean is over the seeds that all of them share, or over all seeds if they share none."""
    diverged = runs["learning_rate"][runs["state"] == "diverged"]
    # A mean over the seeds that survived would flatter a rate at which others diverged.
    done = runs[~runs["learning_rate"].isin(diverged)]
    losses = over_shared_seeds(done, "learning_rate", "nats_per_token")
    rates = pd.Index(sorted({*losses.index, *diverged}), name="learning_rate")
    table = pd.DataFrame({"loss": losses.mean(axis=1), "seeds": losses.count(axis=1)}, rates)
    table = table.fillna({"loss": float("inf"), "seeds": 0})
    return table.astype({"loss": float, "seeds": int}).reset_index()
