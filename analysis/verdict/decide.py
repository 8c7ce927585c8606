"""Who won: every page, figure and command takes its verdicts from here.

Planned questions come first, each family with its own allowance and by the method that it named
(`question.Method`); then every other setting against its baseline, adjusted over those of its study
that have enough seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from typing import Any, Literal

import pandas as pd
from scipy import special

from tst_study.analysis.statistics import critical_t, detectable
from tst_study.analysis.verdict.intervals import (
    UNPAIRED,
    Difference,
    difference,
    moderated,
    paired_difference,
)
from tst_study.analysis.verdict.question import DEFAULT_METHOD, Method, Question

Verdict = Literal[
    "better",
    "worse",
    "no difference shown",
    "one seed: no claim",
    "two seeds: no claim",
    "no variation: no claim",
    "unstable",
    "no pair yet",
]
PLANNED, ALSO_SEEN = "Planned", "Also seen"
UNSTABLE_FROM = 2
"""With so many diverged seeds or more, the verdict on an arm is `unstable`, whatever its interval
says."""


@dataclass(frozen=True)
class Estimate:
    """A gain, in nats, with its uncertainty: None where there are too few seeds or no variation."""

    seeds: int
    """Seeds that both arms have; of unpaired arms, the runs of the smaller one."""
    comparisons: int
    """Contrasts that interval and verdict allow for."""
    gain: float
    """Positive: the arm has the lower loss."""
    deviation: float | None = None
    """Standard deviation of one paired difference, or its equivalent for unpaired arms."""
    low: float | None = None
    high: float | None = None
    p_adjusted: float | None = None
    """Two-sided p-value, adjusted for all comparisons (Bonferroni)."""
    smallest_detectable: float | None = None
    """Gain that would be detected with a power of 80%."""
    verdict: Verdict = "one seed: no claim"
    unpaired: bool = False
    """Whether the runs have no seeds, so that the arms were compared as two samples."""


def estimates(family: Sequence[Difference], allowed: int, method: Method) -> list[Estimate]:
    """Estimates of a family whose intervals hold together for `allowed` contrasts."""
    judged = family if method == "paired" else moderated(family)
    return [_estimate(own, pooled, allowed) for own, pooled in zip(family, judged, strict=True)]


def paired(differences: Sequence[float], comparisons: int = 1) -> Estimate:
    """The t-test of differences (against − arm, one for each seed): positive is better."""
    return estimates([paired_difference(differences)], comparisons, "paired")[0]


def _estimate(own: Difference, judged: Difference, allowed: int) -> Estimate:
    known: dict[str, Any] = {
        "seeds": own.seeds,
        "comparisons": allowed,
        "gain": own.gain,
        "deviation": math.sqrt(own.variance) if own.varies else None,
        "unpaired": own.unpaired,
    }
    if not own.claims:
        few: dict[int, Verdict] = {0: "no pair yet", 1: "one seed: no claim"}
        few[2] = "two seeds: no claim"
        return Estimate(**known, verdict=few.get(own.seeds, "no variation: no claim"))
    critical = critical_t(judged.freedom, allowed)
    low, high = judged.gain - critical * judged.error, judged.gain + critical * judged.error
    tail = float(special.stdtr(judged.freedom, -abs(judged.gain) / judged.error))
    return Estimate(
        **known,
        low=low,
        high=high,
        p_adjusted=min(1.0, 2 * tail * allowed),
        smallest_detectable=judged.error * detectable(critical, round(judged.freedom, 6)),
        verdict="better" if low > 0 else "worse" if high < 0 else "no difference shown",
    )


@dataclass(frozen=True)
class Contrast:
    """An arm and what it is compared with: a planned question, or a setting and its baseline."""

    name: str
    losses: pd.Series
    """Final losses, by `block`."""
    against_losses: pd.Series
    diverged: int
    diverged_against: int
    run_ids: tuple[str, ...]
    text: float = math.nan
    """Raw tokens per run, relative to the comparison arm."""
    flops: float = math.nan
    """FLOPs per run, relative to the comparison arm."""
    study: str = ""
    """The folder of the study that an unplanned contrast belongs to, if any."""
    asked: Question | None = None

    @property
    def family(self) -> tuple[bool, str]:
        """Whether it was planned, and with which others its intervals hold."""
        return (True, self.asked.family) if self.asked else (False, self.study)


_ENDS = ("gain", "low", "high")
COLUMNS = (
    *("heading", "family", "question", "primary", "method", "registered", "against_loss", "loss"),
    *(one.name for one in fields(Estimate)),
    *("diverged", "diverged_against", "text", "flops", "predicted"),
    *("afterwards", *(f"afterwards_{end}" for end in _ENDS), "run_ids"),
)


def decide(contrasts: Sequence[Contrast]) -> pd.DataFrame:
    """One row (`COLUMNS`) per contrast: families of questions with the primary ones first, then
    settings that no question covers, each study's adjusted over those that can be judged.

    `afterwards` and its interval are the default method's where a question named paired t-tests.
    """
    ordered = sorted(contrasts, key=lambda each: (each.asked is None, not _primary(each)))
    families = dict.fromkeys(contrast.family for contrast in ordered)
    studies = [study for planned, study in families if not planned]
    rows: list[dict[str, Any]] = []
    for family in families:
        members = [contrast for contrast in ordered if contrast.family == family]
        asked = members[0].asked
        name = family[1] if asked or (len(studies) > 1 and family[1]) else ALSO_SEEN
        method = asked.method if asked else DEFAULT_METHOD
        differences = [difference(contrast.losses, contrast.against_losses) for contrast in members]
        allowed = len(members)
        if not asked:
            allowed = max(1, sum(contrast.claims for contrast in differences))
        found = estimates(differences, allowed, method)
        later = estimates(differences, allowed, DEFAULT_METHOD) if method == "paired" else []
        for contrast, estimate, after in zip_longest(members, found, later):
            both = contrast.losses.index.intersection(contrast.against_losses.index)
            losses = [contrast.losses, contrast.against_losses]
            if not estimate.unpaired:
                losses = [arm[both] for arm in losses]
            rows.append(
                {
                    "heading": PLANNED if contrast.asked else ALSO_SEEN,
                    "family": name,
                    "question": contrast.name,
                    "primary": _primary(contrast),
                    "method": method,
                    "registered": contrast.asked and contrast.asked.registered,
                    "loss": float(losses[0].mean()),
                    "against_loss": float(losses[1].mean()),
                    **asdict(estimate),
                    "verdict": _verdict(estimate, contrast),
                    "diverged": contrast.diverged,
                    "diverged_against": contrast.diverged_against,
                    "text": contrast.text,
                    "flops": contrast.flops,
                    "predicted": contrast.asked and contrast.asked.predicted,
                    "afterwards": after and _verdict(after, contrast),
                    **{f"afterwards_{end}": after and getattr(after, end) for end in _ENDS},
                    "run_ids": contrast.run_ids,
                }
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _primary(contrast: Contrast) -> bool:
    return bool(contrast.asked and contrast.asked.primary)


def _verdict(estimate: Estimate, contrast: Contrast) -> Verdict:
    return "unstable" if contrast.diverged >= UNSTABLE_FROM else estimate.verdict


def block(row: Mapping[str, Any]) -> str:
    """The label by which runs of two arms are paired: seed, order of the text, held-out text."""
    if pd.isna(row["seed"]):
        return f"{UNPAIRED}{row['folder']}"
    return f"{row['seed']}, text in order {row['data_seed']}, held out {row['eval_set']}"
