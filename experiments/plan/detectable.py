"""The smallest gain that a study's seeds can tell from none, before a run is paid for."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.plan.planned_run import PlannedRun, final_loss
from tst_study.config.identity import SEEDS, digest, identity_form
from tst_study.config.schema import Config, to_dict


@dataclass(frozen=True)
class Detectable:
    seeds: int
    """Pairs per arm; the fewest of all arms."""
    in_deviations: float | None
    """The gain over the deviation of a pair's difference; None for fewer than two pairs."""
    deviation: float | None
    """Of the difference of a pair, in nats; None where it is not known."""
    source: str

    def sentence(self) -> str:
        if self.in_deviations is None:
            return "One seed per arm: no gain can be told from noise, whatever its size."
        pairs = f"{self.seeds} seeds per arm detect a gain of"
        size = f"{self.in_deviations:.2g} deviations of a pair's difference"
        if self.deviation is None:
            return f"{pairs} {size} (80% power, 5% level); give --noise for nats."
        return (
            f"{pairs} {self.in_deviations * self.deviation:.3f} nats (80% power, 5% level; "
            f"deviation {self.deviation:.3f} {self.source})."
        )


def detectable(runs: Sequence[PlannedRun], noise: float | None = None) -> Detectable | None:
    """None where no arm has a baseline to be paired with. `noise`: deviation of a pair's
    difference in nats; by default that of the pairs that are done."""
    pairs = _pairs(runs)
    if not pairs:
        return None
    seeds = min(len(members) for members in pairs.values())
    source = "as given"
    if noise is None:
        noise, source = _measured(pairs), "measured in this study"
    from tst_study.statistics import smallest_detectable  # scipy, which most plans do not need.

    return Detectable(seeds, smallest_detectable(seeds), noise, source)


def _pairs(runs: Sequence[PlannedRun]) -> dict[str, list[tuple[PlannedRun, PlannedRun]]]:
    """Baseline and superposed run of one seed, by arm."""
    baselines = {
        _form(run.config, "superposition"): run for run in runs if run.config.role == "baseline"
    }
    pairs = defaultdict(list)
    for run in runs:
        baseline = baselines.get(_form(run.config, "superposition"))
        if baseline is not None and run.config.role not in ("baseline", "trunk"):
            pairs[_form(run.config, *SEEDS)].append((baseline, run))
    return pairs


def _form(config: Config, *without: str) -> str:
    values = to_dict(config)
    return digest(identity_form(values, values["data"], without))


def _measured(pairs: dict[str, list[tuple[PlannedRun, PlannedRun]]]) -> float | None:
    """Deviation of differences within arms, pooled over arms; None for fewer than three of them."""
    squares, freedom = 0.0, 0
    for members in pairs.values():
        losses = [(final_loss(baseline), final_loss(run)) for baseline, run in members]
        gains = [a - b for a, b in losses if a is not None and b is not None]
        gains = [gain for gain in gains if math.isfinite(gain)]
        if len(gains) > 1:
            mean = sum(gains) / len(gains)
            squares += sum((gain - mean) ** 2 for gain in gains)
            freedom += len(gains) - 1
    return math.sqrt(squares / freedom) if freedom > 1 else None
