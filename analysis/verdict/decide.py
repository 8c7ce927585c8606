"""Who won: the one function that every page, figure and command takes intervals and verdicts from.

Questions that were planned come first, each family with its own allowance and by the method that it
declared; then every other setting against its baseline, adjusted over all of these. Families whose
arms are held against one another share seeds as blocks and give each arm a variance of its own
(`intervals`); a paired t-test is the same model of two arms alone. Parts of a family that share no
arm share the allowance by Bonferroni.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from tst_study.analysis.verdict.intervals import LEVEL, Design, critical, exceeded, varies
from tst_study.analysis.verdict.question import Question
from tst_study.errors import UserError
from tst_study.statistics import detectable

Method = Literal["simultaneous", "paired"]
Verdict = Literal[
    "better", "worse", "no difference shown", "one seed: no claim", "unstable", "no pair yet"
]
PLANNED, ALSO_SEEN = "Planned", "Also seen"
UNSTABLE = 2
"""So many diverged seeds of an arm take the claim of a gain from it."""


@dataclass(frozen=True)
class Estimate:
    """A gain, in nats, with its uncertainty; None where one seed allows no statement."""

    seeds: int
    """That both arms have."""
    comparisons: int
    """Contrasts that interval and verdict allow for."""
    gain: float
    """Positive: the arm has the lower loss."""
    deviation: float | None = None
    """Standard deviation over seeds of the paired difference."""
    low: float | None = None
    high: float | None = None
    p_adjusted: float | None = None
    """Two-sided, of no difference, for all comparisons together."""
    smallest_detectable: float | None = None
    """Gain that would be shown four times in five."""
    verdict: Verdict = "one seed: no claim"


Losses = Mapping[str, "pd.Series[float]"]
"""Of each arm its losses by seed."""


def estimates(
    losses: Losses, contrasts: Sequence[tuple[str, str]], allowed: int, method: Method
) -> list[Estimate]:
    """Of each contrast (arm, against); intervals hold together for `allowed` contrasts."""
    found = [_without_claim(losses, contrast, allowed) for contrast in contrasts]
    able = [place for place, one in enumerate(found) if one.deviation is not None]
    parts = [[place] for place in able]
    if method == "simultaneous":
        parts = _connected([contrasts[place] for place in able], able)
    for part in parts:
        designed = [(part, *_design(losses, [contrasts[place] for place in part]))]
        if not designed[0][1].estimable:  # arms whose seeds do not connect
            designed = [([place], *_design(losses, [contrasts[place]])) for place in part]
        for group, design, values in designed:
            for place, interval in zip(group, _intervals(design, values, allowed), strict=True):
                found[place] = Estimate(**{**asdict(found[place]), **interval})
    return found


def paired(differences: Sequence[float], comparisons: int = 1) -> Estimate:
    """The t-test of differences (against − arm, one for each seed): positive is better.

    Raises `UserError` for no differences and for one that is not finite.
    """
    values = np.asarray(differences, dtype=float)
    if not len(values) or not np.isfinite(values).all():
        raise UserError(f"differences {list(differences)}: one finite number per seed is needed")
    losses = {"arm": pd.Series(-values), "against": pd.Series(np.zeros(len(values)))}
    return estimates(losses, [("arm", "against")], comparisons, "paired")[0]


def _without_claim(losses: Losses, contrast: tuple[str, str], allowed: int) -> Estimate:
    arm, against = (losses[one] for one in contrast)
    differences = (against - arm).dropna().to_numpy(float)
    if not len(differences):
        return Estimate(0, allowed, math.nan, verdict="no pair yet")
    deviation = float(differences.std(ddof=1)) if varies(differences) else None
    return Estimate(len(differences), allowed, float(differences.mean()), deviation)


def _connected(contrasts: Sequence[tuple[str, str]], places: list[int]) -> list[list[int]]:
    """The places of contrasts, by parts that share arms."""
    if not places:
        return []
    arms = {arm: number for number, arm in enumerate(dict.fromkeys(sum(contrasts, ())))}
    ends = np.array([[arms[one] for one in contrast] for contrast in contrasts]).T
    edges = sparse.coo_matrix((np.ones(len(places)), tuple(ends)), (len(arms), len(arms)))
    part = connected_components(edges, directed=False)[1][ends[0]]
    return [[places[i] for i in np.flatnonzero(part == one)] for one in np.unique(part)]


def _design(losses: Losses, contrasts: Sequence[tuple[str, str]]) -> tuple[Design, np.ndarray]:
    """And its losses; a seed that one arm alone has tells nothing."""
    arms = dict.fromkeys(arm for contrast in contrasts for arm in contrast)
    table = pd.concat([losses[arm] for arm in arms], axis=1)
    table.columns = pd.Index(list(arms))
    table = table[table.notna().sum(axis=1) > 1]
    rows = np.zeros((len(contrasts), table.shape[1]))
    for row, (arm, against) in zip(rows, contrasts, strict=True):
        row[table.columns.get_loc(against)], row[table.columns.get_loc(arm)] = 1, -1
    values = table.to_numpy(float)
    seed, arm_of = np.nonzero(~np.isnan(values))
    return Design(arm_of, seed, rows, blocks=True, own=True), values[seed, arm_of]


def _intervals(design: Design, losses: np.ndarray, allowed: int) -> list[dict[str, Any]]:
    gains, errors, freedoms, correlation = design.estimates(losses)
    share = len(design.contrasts) / allowed
    found = []
    for gain, error, freedom in zip(gains, errors, freedoms, strict=True):
        half = critical(correlation, float(freedom), 1 - (1 - LEVEL) * share)
        low, high = float(gain - half * error), float(gain + half * error)
        verdict: Verdict = "better" if low > 0 else "worse" if high < 0 else "no difference shown"
        chance = exceeded(float(abs(gain) / error), correlation, float(freedom)) / share
        found.append(
            {
                "gain": float(gain),
                "low": low,
                "high": high,
                "p_adjusted": min(1.0, chance),
                "smallest_detectable": float(error * detectable(half, round(float(freedom), 6))),
                "verdict": verdict,
            }
        )
    return found


@dataclass(frozen=True)
class Contrast:
    """An arm that is held against another: because a study asked, or a setting and its baseline."""

    name: str
    arm: str
    against: str
    """Keys: contrasts of one family that share an arm name it alike."""
    losses: pd.Series
    """Final, by `block`."""
    against_losses: pd.Series
    diverged: int
    diverged_against: int
    run_ids: tuple[str, ...]
    text: float = math.nan
    """Of a run of the arm, in that of what it is held against; `flops` alike."""
    flops: float = math.nan
    study: str = ""
    """Of what no question covers: the folder of the study that it is seen beside, if any."""
    asked: Question | None = None

    @property
    def family(self) -> tuple[bool, str]:
        """Whether it was planned, and with which others its intervals hold."""
        return (True, self.asked.family) if self.asked else (False, self.study)


COLUMNS = (
    *("heading", "family", "question", "primary", "method", "registered", "against_loss", "loss"),
    *(one.name for one in fields(Estimate)),
    *("diverged", "diverged_against", "text", "flops", "predicted"),
    *("afterwards", "afterwards_gain", "afterwards_low", "afterwards_high", "run_ids"),
)


def decide(contrasts: Sequence[Contrast]) -> pd.DataFrame:
    """A row (`COLUMNS`) for each contrast: families of questions with the primary ones first, then
    settings that no question covers, those of each study adjusted over the ones with several seeds.

    `afterwards` and its interval are what the simultaneous method says where another was planned.
    """
    ordered = sorted(contrasts, key=lambda one: (one.asked is None, not _primary(one)))
    families = dict.fromkeys(one.family for one in ordered)
    studies = [study for planned, study in families if not planned]
    rows: list[dict[str, Any]] = []
    for family in families:
        own = [one for one in ordered if one.family == family]
        losses = {one.arm: one.losses for one in own}
        losses |= {one.against: one.against_losses for one in own}
        pairs = [(one.arm, one.against) for one in own]
        asked = own[0].asked
        name = family[1] if asked or (len(studies) > 1 and family[1]) else ALSO_SEEN
        method: Method = asked.method if asked else "simultaneous"
        allowed = len(own)
        if not asked:
            several = [_without_claim(losses, one, 1).deviation is not None for one in pairs]
            allowed = max(1, sum(several))
        found = estimates(losses, pairs, allowed, method)
        later: Sequence[Estimate | None] = [None] * len(own)
        if method == "paired":
            later = estimates(losses, pairs, allowed, "simultaneous")
        for one, estimate, after in zip(own, found, later, strict=True):
            both = one.losses.index.intersection(one.against_losses.index)
            rows.append(
                {
                    "heading": PLANNED if one.asked else ALSO_SEEN,
                    "family": name,
                    "question": one.name,
                    "primary": _primary(one),
                    "method": method,
                    "registered": one.asked and one.asked.registered,
                    "loss": float(one.losses[both].mean()),
                    "against_loss": float(one.against_losses[both].mean()),
                    **asdict(estimate),
                    "verdict": _verdict(estimate, one),
                    "diverged": one.diverged,
                    "diverged_against": one.diverged_against,
                    "text": one.text,
                    "flops": one.flops,
                    "predicted": one.asked and one.asked.predicted,
                    "afterwards": after and _verdict(after, one),
                    "afterwards_gain": after and after.gain,
                    "afterwards_low": after and after.low,
                    "afterwards_high": after and after.high,
                    "run_ids": one.run_ids,
                }
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _primary(one: Contrast) -> bool:
    return bool(one.asked and one.asked.primary)


def _verdict(estimate: Estimate, one: Contrast) -> Verdict:
    return "unstable" if one.diverged >= UNSTABLE else estimate.verdict


def block(row: Mapping[str, Any]) -> str:
    """Seed, order of the text and held-out text."""
    return f"{row['seed']}, text in order {row['data_seed']}, held out {row['eval_set']}"
