"""Whether the learning rate was tuned on the baseline, lies inside the swept range, and is used by
baseline and superposed runs alike.

A superposed run at a rate tuned for it, or a baseline at an untuned rate, shows a false gain, as
happened in this package's pilot.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from tst_study.analysis.tables.eligible import over_shared_seeds
from tst_study.analysis.verdict.comparison import Comparison
from tst_study.analysis.wording import number


@dataclass(frozen=True)
class Sweep:
    """Baselines that differ in nothing but learning rate and seed, measured on one text."""

    steps: int
    rates: pd.DataFrame
    """learning_rate, loss (nats per token, mean over the shared seeds; infinite if any
    seed diverged at this rate), seeds."""
    best: float
    margin: float | None
    """The lead of the best rate over the next best, in nats per token; None where all others
    diverged."""
    at_edge: bool
    superposed_rates: tuple[float, ...]
    """Rates of all superposed runs of the family (same data, model and batch), whatever their
    length or state."""

    @property
    def followed(self) -> bool:
        """Whether all superposed runs use the rate that was best for the baseline."""
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
        used = f"superposed runs also use {others}" if others else "all superposed runs use it"
        return (
            f"Of {len(tried)} learning rates from {tried.min():g} to {tried.max():g}, "
            f"{self.best:g} was best for the baseline ({self.steps:,} steps, "
            f"{number(seeds, 'seed')}), {ahead}; it lies {place}; "
            f"{used if self.superposed_rates else 'no superposed run yet'}."
        )


def swept(runs: pd.DataFrame, eligible: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the runs of each group and held-out text in which baselines had several learning
    rates: those that may be compared, and all of the group that diverged, which have no final loss
    on any text."""
    lost = runs[(runs["state"] == "diverged") & (runs["exclusion"] == "")]
    texts = eligible.groupby(["group", "eval_set"], sort=True)
    every = [pd.concat([own, lost[lost["group"] == group]]) for (group, _), own in texts]
    return [own for own in every if _baselines(own)["learning_rate"].nunique() > 1]


def sweeps(runs: pd.DataFrame, comparison: Comparison) -> list[Sweep]:
    """Return the sweep of each group and held-out text (`swept`); none where a seed diverged at
    every rate."""
    found_sweeps = []
    for members in map(_baselines, swept(runs, comparison.eligible)):
        rates, first = _rates(members), members.iloc[0]
        best, *others = rates.sort_values("loss").to_dict("records")
        if best["loss"] == float("inf"):
            continue
        margin = others[0]["loss"] - best["loss"]
        tried = rates["learning_rate"]
        same = (runs["family"] == first["family"]) & (runs["method"] == "superposition")
        found_sweeps.append(
            Sweep(
                steps=int(first["steps"]),
                rates=rates,
                best=best["learning_rate"],
                margin=margin if margin < float("inf") else None,
                at_edge=best["learning_rate"] in (tried.min(), tried.max()),
                superposed_rates=tuple(sorted(map(float, runs[same]["learning_rate"].unique()))),
            )
        )
    return found_sweeps


def _baselines(runs: pd.DataFrame) -> pd.DataFrame:
    return runs[runs["method"] == "baseline"]


def _rates(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean loss at each rate, over the seeds that all rates without a diverged run
    share, or over all seeds if these share none; infinite at a rate at which a seed diverged."""
    diverged = runs["learning_rate"][runs["state"] == "diverged"]
    # Averaging only the seeds that survived would flatter a rate at which others diverged.
    done = runs[~runs["learning_rate"].isin(diverged)]
    losses = over_shared_seeds(done, "learning_rate", "nats_per_token")
    rates = pd.Index(sorted({*losses.index, *diverged}), name="learning_rate")
    table = pd.DataFrame({"loss": losses.mean(axis=1), "seeds": losses.count(axis=1)}, rates)
    table = table.fillna({"loss": float("inf"), "seeds": 0})
    return table.astype({"loss": float, "seeds": int}).reset_index()
