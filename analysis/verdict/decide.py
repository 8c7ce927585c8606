"""Decides who won: every page, figure and command takes its verdicts from here.

Planned questions come first, family by family, then those that were asked afterwards
(`registration`). The intervals of a family are made by the method that its questions name
(`question.Method`), and are widened (by Bonferroni's adjustment) so that all of them hold together
with a probability of 95%. Then every setting that no question covers is
compared with its baseline. These intervals hold together for all such settings of a study that have
enough seeds to be judged.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC
from itertools import zip_longest
from typing import Any, Literal

import pandas as pd
from scipy import special

from tst_study.analysis.statistics import critical_t, detectable
from tst_study.analysis.verdict.documents import Documents
from tst_study.analysis.verdict.intervals import (
    FEW,
    UNPAIRED,
    Difference,
    difference,
    moderated,
    paired_difference,
)
from tst_study.analysis.verdict.question import DEFAULT_METHOD, Method, Question
from tst_study.analysis.verdict.registration import HEADINGS
from tst_study.errors import UserError

Verdict = Literal[
    "better",
    "worse",
    "no difference shown",
    "no worthwhile gain",
    "undecided",
    "one seed: no claim",
    "two seeds: no claim",
    "no variation: no claim",
    "unstable",
    "unstable comparison arm: no claim",
    "no pair yet",
]
ALSO_SEEN = "Also seen"
UNSTABLE_FROM, UNSTABLE_ONE_IN = 2, 5
"""An arm is unstable if this many of its seeds diverged, or one in so many, whichever comes first.
Then an interval, which is that of the seeds that are left, decides nothing."""


@dataclass(frozen=True)
class Estimate:
    """A gain, in nats, with its uncertainty.

    With fewer than three seeds, or without variation between them, there is no claim: `low`,
    `high`, `p_adjusted` and `smallest_detectable` are None.
    """

    seeds: int
    """Number of seeds that both arms have; for unpaired arms, number of runs of the smaller one."""
    comparisons: int
    """Number of comparisons for which interval and p-value are adjusted (Bonferroni)."""
    gain: float
    """Mean difference of the losses, positive if the arm has the lower one; NaN without a pair."""
    deviation: float | None = None
    """Standard deviation of one paired difference, or its equivalent for unpaired arms; None for
    one seed and without variation."""
    low: float | None = None
    """Lower end of the 95% interval of the gain."""
    high: float | None = None
    """Upper end of the 95% interval of the gain."""
    p_adjusted: float | None = None
    """Two-sided p-value, adjusted."""
    smallest_detectable: float | None = None
    """True gain that would be detected with a probability of 80%."""
    verdict: Verdict = "one seed: no claim"
    unpaired: bool = False
    """Whether the runs have no seeds, so that the arms were compared as two samples."""


def estimates(family: Sequence[Difference], allowed: int, method: Method) -> list[Estimate]:
    """Return the estimates of a family of differences, adjusted for `allowed` comparisons. With the
    method `paired` each has its own variance, otherwise one that is moderated within the family
    (`intervals.moderated`)."""
    judged = family if method == "paired" else moderated(family, allowed)
    return [_estimate(own, pooled, allowed) for own, pooled in zip(family, judged, strict=True)]


def paired(differences: Sequence[float], comparisons: int = 1) -> Estimate:
    """Return the estimate of a paired t-test. `differences`: for each seed, the loss of the
    comparison arm minus that of the arm, so that positive is better."""
    return estimates([paired_difference(differences)], comparisons, "paired")[0]


def _estimate(own: Difference, judged: Difference, allowed: int) -> Estimate:
    """Return the estimate of a difference, given as measured (`own`) and with the variance to judge
    it by (`judged`)."""
    known: dict[str, Any] = {
        "seeds": own.seeds,
        "comparisons": allowed,
        "gain": own.gain,
        "deviation": math.sqrt(own.variance) if own.varies else None,
        "unpaired": own.unpaired,
    }
    if not own.claims:
        few: dict[int, Verdict] = {0: "no pair yet", **FEW}
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
    """An arm and what it is compared with: a question, or a setting and its baseline."""

    name: str
    losses: pd.Series
    """Final losses of the arm; the index is `block`."""
    against_losses: pd.Series
    """Final losses of the comparison arm, with the same kind of index."""
    diverged: int
    """Number of the arm's runs that diverged."""
    diverged_against: int
    """Number of the comparison arm's runs that diverged."""
    run_ids: tuple[str, ...]
    """Ids of the runs of both arms that the gain rests on; if they make no pair, of all."""
    folders: tuple[str, ...] = ()
    """The folders of these runs, for a question. Studies may have runs of the same ids."""
    alone: str = ""
    """A note on seeds of a question that only one arm has, beside those of its pairs."""
    text: float = math.nan
    """Raw tokens per run, relative to the comparison arm."""
    flops: float = math.nan
    """FLOPs per run, relative to the comparison arm."""
    study: str = ""
    """The folder of the study that an unplanned contrast belongs to; empty if it belongs to none of
    the studies that have questions."""
    asked: Question | None = None
    """The question; None for a contrast that nobody asked about."""
    differs: str = ""
    """In what the arms differ besides superposition."""
    documents: Documents | None = None
    """What held-out documents say of the gain, where their losses are known."""
    when: tuple[str, str] = (ALSO_SEEN, "")
    """Its heading, which says when it was asked, and a note (`registration.asked_when`)."""

    @property
    def family(self) -> tuple[bool, str]:
        """A key of the contrasts whose intervals hold together: whether they were asked, and the
        name of their family or the folder of their study."""
        return (True, self.asked.family) if self.asked else (False, self.study)


_ENDS = ("gain", "low", "high")
COLUMNS = (
    *("heading", "family", "question", "primary", "method", "registered", "registered_at", "order"),
    *("alone", "against_loss", "loss"),
    *(one.name for one in fields(Estimate)),
    *("documents", "documents_low", "documents_high"),
    *("diverged", "diverged_against", "text", "flops", "differs", "predicted", "smallest_gain"),
    *("afterwards", *(f"afterwards_{end}" for end in _ENDS), "run_ids"),
)
"""Columns of the verdicts that `decide` returns. `afterwards` is the verdict by the default method
where the questions named `paired`, and the columns `afterwards_…` are its gain and interval;
elsewhere they are None. `documents` is the number of held-out documents where there is an interval
over these and over seeds (`documents_low`, `documents_high`). `registered` is a commit,
`registered_at` a time (UTC), `order` a note on runs that are older than a planned question or were
excluded by hand, `alone` one on seeds that only one arm has."""


def decide(contrasts: Sequence[Contrast]) -> pd.DataFrame:
    """Return the verdict on each contrast, one row (`COLUMNS`) each.

    Questions come first, by `registration.HEADINGS`, families with a primary question before the
    others. The intervals of a family are adjusted for its number of questions, whenever these were
    asked. Then come unplanned contrasts; those of a study are adjusted for the number of them that
    can be judged.

    Raises `UserError` for a family whose questions name several methods.
    """
    ordered = sorted(contrasts, key=lambda each: (each.asked is None, not _primary(each)))
    families = dict.fromkeys(contrast.family for contrast in ordered)
    studies = [study for planned, study in families if not planned]
    rows: list[dict[str, Any]] = []
    for family in families:
        members = [contrast for contrast in ordered if contrast.family == family]
        asked = members[0].asked
        name = family[1] if asked or (len(studies) > 1 and family[1]) else ALSO_SEEN
        methods = {one.asked.method for one in members if one.asked} or {DEFAULT_METHOD}
        if len(methods) > 1:
            names = " and ".join(sorted(methods))
            raise UserError(f"family {name!r}: its questions name the methods {names}; split it")
        (method,) = methods
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
                    "heading": contrast.when[0],
                    "family": name,
                    "question": contrast.name,
                    "primary": _primary(contrast),
                    "method": method,
                    "registered": contrast.asked and contrast.asked.registered,
                    "registered_at": contrast.asked and _registered_at(contrast.asked),
                    "order": contrast.when[1],
                    "alone": contrast.alone,
                    "loss": float(losses[0].mean()),
                    "against_loss": float(losses[1].mean()),
                    **asdict(estimate),
                    **_over_documents(estimate, contrast.documents),
                    "verdict": _verdict(estimate, contrast),
                    "diverged": contrast.diverged,
                    "diverged_against": contrast.diverged_against,
                    "text": contrast.text,
                    "flops": contrast.flops,
                    "differs": contrast.differs,
                    "smallest_gain": contrast.asked and contrast.asked.smallest_gain,
                    "predicted": contrast.asked and contrast.asked.predicted,
                    "afterwards": after and _verdict(after, contrast),
                    **{f"afterwards_{end}": after and getattr(after, end) for end in _ENDS},
                    "run_ids": contrast.run_ids,
                }
            )
    rows.sort(key=lambda row: [*HEADINGS, ALSO_SEEN].index(row["heading"]))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _over_documents(estimate: Estimate, documents: Documents | None) -> dict[str, Any]:
    if documents is None or estimate.high is None:
        return {"documents": None, "documents_low": None, "documents_high": None}
    low, high = documents.ends(estimate.gain, estimate.high, estimate.comparisons)
    return {"documents": documents.count, "documents_low": low, "documents_high": high}


def _registered_at(question: Question) -> str | None:
    known = question.registration
    return f"{known.time.astimezone(UTC):%Y-%m-%d %H:%M}" if known else None


def _primary(contrast: Contrast) -> bool:
    return bool(contrast.asked and contrast.asked.primary)


def _verdict(estimate: Estimate, contrast: Contrast) -> Verdict:
    arm = (contrast.diverged, len(contrast.losses))
    if said := unstable(arm, (contrast.diverged_against, len(contrast.against_losses))):
        return said
    smallest = contrast.asked.smallest_gain if contrast.asked else None
    if smallest is None or estimate.verdict == "worse" or estimate.high is None:
        return estimate.verdict
    if estimate.high < smallest:
        return "no worthwhile gain"
    return "undecided" if estimate.verdict == "no difference shown" else estimate.verdict


def unstable(arm: tuple[int, int], against: tuple[int, int]) -> Verdict | None:
    """Return the verdict if the arm, or what it is compared with, is unstable; None if neither is.
    `arm`, `against`: the number of runs that diverged, and of those that did not."""
    said: tuple[Verdict, ...] = ("unstable", "unstable comparison arm: no claim")
    for verdict, (diverged, others) in zip(said, (arm, against), strict=True):
        if diverged >= UNSTABLE_FROM or 0 < diverged + others <= diverged * UNSTABLE_ONE_IN:
            return verdict
    return None


BLOCK = ("seed", "folder", "data_seed", "eval_set")
"""The columns that `block` reads."""


def block(row: Mapping[str, Any]) -> str:
    """Return the label by which runs of two arms are paired: seed, order of the text and held-out
    text. A run without a seed gets a label of its own, so that it is paired with no other."""
    if pd.isna(row["seed"]):
        return f"{UNPAIRED}{row['folder']}"
    return f"{row['seed']}, text in order {row['data_seed']}, held out {row['eval_set']}"
