"""Was the learning rate chosen on the baseline, inside the range swept, and used by both arms?

A superposed run at a rate that was tuned for it, or a baseline at an untuned one, shows a gain
that is none (it happened, in this package's pilot).
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.compare.comparison import Comparison
from analysis.wording import number


@dataclass(frozen=True)
class Sweep:
    """Baselines that differ in nothing but learning rate and seed."""

    group: str
    family: str
    steps: int
    rates: pd.DataFrame
    """learning_rate, loss (nats per token, mean over the shared seeds; infinite where a run
    diverged), seeds."""
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


def sweeps(runs: pd.DataFrame, comparison: Comparison) -> list[Sweep]:
    """Every group of baselines that was run at two or more learning rates."""
    eligible = comparison.eligible
    found = []
    baselines = runs[runs["method"] == "baseline"]
    for group, members in baselines.groupby("group", sort=True):
        done = eligible[(eligible["group"] == group) & (eligible["method"] == "baseline")]
        lost = members[(members["state"] == "diverged")]
        rates = _rates(done, lost)
        if len(rates) >= 2 and rates["loss"].min() < float("inf"):
            found.append(_sweep(str(group), members, rates, runs))
    return found


def _rates(done: pd.DataFrame, lost: pd.DataFrame) -> pd.DataFrame:
    """Mean loss by rate, over the seeds that every finished rate has (all, if none is shared)."""
    by_rate = {rate: rows.set_index("seed") for rate, rows in done.groupby("learning_rate")}
    seeds = [set(rows.index) for rows in by_rate.values()]
    shared = set.intersection(*seeds) if seeds else set()
    rows = []
    for rate, members in by_rate.items():
        losses = members["nats_per_token"]
        if shared:
            losses = losses[losses.index.isin(shared)]
        rows.append({"learning_rate": rate, "loss": float(losses.mean()), "seeds": len(losses)})
    for rate in sorted(set(lost["learning_rate"]) - set(by_rate)):
        rows.append({"learning_rate": rate, "loss": float("inf"), "seeds": 0})
    table = pd.DataFrame(rows, columns=["learning_rate", "loss", "seeds"])
    return table.sort_values("learning_rate", ignore_index=True)


def _sweep(group: str, members: pd.DataFrame, rates: pd.DataFrame, runs: pd.DataFrame) -> Sweep:
    losses = sorted(rates["loss"])
    best = float(rates["learning_rate"].iloc[int(rates["loss"].argmin())])
    family = str(members["family"].iloc[0])
    superposed = runs[(runs["family"] == family) & (runs["method"] == "superposition")]
    return Sweep(
        group=group,
        family=family,
        steps=int(members["steps"].iloc[0]),
        rates=rates,
        best=best,
        margin=losses[1] - losses[0] if losses[1] < float("inf") else None,
        at_edge=best in (rates["learning_rate"].min(), rates["learning_rate"].max()),
        superposed_rates=tuple(sorted(map(float, superposed["learning_rate"].unique()))),
    )
