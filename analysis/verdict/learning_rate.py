"""Was the learning rate chosen on the baseline, inside the range swept, and used by both arms?

A superposed run at a rate that was tuned for it, or a baseline at an untuned one, shows a gain
that is none (it happened, in this package's pilot).
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
    """learning_rate, loss (nats per token, mean over the shared seeds; infinite where a run
    diverged, whatever its other seeds reached), seeds."""
    best: float
    margin: float | None
    """By how much the next best rate is worse, in nats; None where every other one diverged."""
    at_edge: bool
    superposed_rates: tuple[float, ...]
    """Rates of the superposed runs on the same data and model, whatever their length."""

    @property
    def followed(self) -> bool:
        """All superposed runs use the rate that was best for the baseline."""
        return all(rate == self.best for rate in self.superposed_rates)

    def sentence(self) -> str:
        tried = sorted(self.rates["learning_rate"])
        seeds = int(self.rates["seeds"].max())
        where = (
            "at the edge of the range, so a better one may lie outside"
            if self.at_edge
            else "inside the range"
        )
        margin = (
            f", {self.margin:.3f} nats ahead of the next best"
            if self.margin is not None
            else ", the others diverged"
        )
        if not self.superposed_rates:
            used = "no superposed run yet"
        elif self.followed:
            used = "all superposed runs use it"
        else:
            others = ", ".join(f"{rate:g}" for rate in self.superposed_rates if rate != self.best)
            used = f"superposed runs also use {others}"
        return (
            f"Of {len(tried)} learning rates from {tried[0]:g} to {tried[-1]:g}, {self.best:g} "
            f"was best for the baseline ({self.steps:,} steps, {number(seeds, 'seed')}){margin}; "
            f"it lies {where}; {used}."
        )


def swept(runs: pd.DataFrame, eligible: pd.DataFrame) -> list[pd.DataFrame]:
    """By group and held-out text the runs that may be compared and those that diverged, which have
    no loss on any text: where baselines were run at two or more learning rates."""
    lost = runs[(runs["state"] == "diverged") & (runs["exclusion"] == "")]
    texts = eligible.groupby(["group", "eval_set"], sort=True)
    every = [pd.concat([own, lost[lost["group"] == group]]) for (group, _), own in texts]
    return [own for own in every if _baselines(own)["learning_rate"].nunique() > 1]


def sweeps(runs: pd.DataFrame, comparison: Comparison) -> list[Sweep]:
    """Every group of baselines that was run at two or more learning rates."""
    found = []
    for members in map(_baselines, swept(runs, comparison.eligible)):
        lost = members["state"] == "diverged"
        rates = _rates(members[~lost], members[lost])
        losses, first = sorted(rates["loss"]), members.iloc[0]
        if losses[0] == float("inf"):
            continue
        best = float(rates["learning_rate"].iloc[int(rates["loss"].argmin())])
        same = (runs["family"] == first["family"]) & (runs["method"] == "superposition")
        found.append(
            Sweep(
                steps=int(first["steps"]),
                rates=rates,
                best=best,
                margin=losses[1] - losses[0] if losses[1] < float("inf") else None,
                at_edge=best in (rates["learning_rate"].min(), rates["learning_rate"].max()),
                superposed_rates=tuple(sorted(map(float, runs[same]["learning_rate"].unique()))),
            )
        )
    return found


def _baselines(runs: pd.DataFrame) -> pd.DataFrame:
    return runs[runs["method"] == "baseline"]


def _rates(done: pd.DataFrame, lost: pd.DataFrame) -> pd.DataFrame:
    """Mean loss by rate, over the seeds that every finished rate has (all, if none is shared)."""
    # The mean of the seeds that a rate spared would hide what it did to the others.
    done = done[~done["learning_rate"].isin(lost["learning_rate"])]
    losses = over_shared_seeds(done, "learning_rate", "nats_per_token")
    rates = pd.Index(sorted({*losses.index, *lost["learning_rate"]}), name="learning_rate")
    table = pd.DataFrame({"loss": losses.mean(axis=1), "seeds": losses.count(axis=1)}, rates)
    table = table.fillna({"loss": float("inf"), "seeds": 0})
    return table.astype({"loss": float, "seeds": int}).reset_index()
