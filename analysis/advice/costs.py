"""What a planned run costs, by the cost model that `plan` and `train --dry-run` use, and the three
ways to plan a superposed run: for a loss no higher than the baseline's, with its FLOPs, or with its
text."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tst_study.analysis import published
from tst_study.analysis.advice.expected_gain import Gain
from tst_study.analysis.advice.intended_run import IntendedRun
from tst_study.analysis.fits.law.law_answer import CHINCHILLA
from tst_study.config.presets import PRESETS
from tst_study.config.schema import Model
from tst_study.cost.compute import count_parameters, flops_per_position
from tst_study.cost.prices import Prices, range_of

LENGTH = 2048
"""The sequence length, in positions, that is assumed where none is given."""


def shape_like(run: IntendedRun) -> Model:
    """Return the shape of the preset that is nearest to a run in active parameters, among those of
    its kind, dense or mixture."""
    models = (Model(**shape) for shape in PRESETS.values())
    alike = [model for model in models if bool(model.experts) == run.mixture]
    return min(alike, key=lambda like: abs(math.log(count_parameters(like).active / run.size)))


def flops_of(run: IntendedRun, length: int) -> float:
    """Return the FLOPs of a run of which only the size is known, attention included.

    The shape is that of the nearest preset (`shape_like`). FLOPs of its matrices grow with the
    active parameters N, those of attention with N^(2/3), as layers times width do in models of one
    form."""
    shape = shape_like(run)
    larger = run.size / count_parameters(shape).active
    matrices = flops_per_position(shape, 0)
    attention = flops_per_position(shape, length) - matrices
    return float(run.tokens * (matrices * larger + attention * larger ** (2 / 3)))


def rate_in_words(prices: Prices, *, experts: bool) -> str:
    """Return the MFU behind the hours, or why hours are not known."""
    mfus = prices.mfus(experts=experts)
    if prices.device is None:
        return "add --device H100 --gpus 64 --price 2.5 for hours and money"
    if mfus is None:
        return prices.unknown()
    source = mfus.source if prices.mfu else "published"
    return f"{range_of([mfus.low, mfus.high], '{:.0%}'.format)} of the peak speed (MFU, {source})"


@dataclass(frozen=True)
class Plan:
    """One way to plan the superposed run."""

    name: str
    share: float | None
    """Steps, as a share of the baseline's; None if no number is known."""
    reads: float | None = None
    """Tokens that it reads, repeated ones included."""
    loss: tuple[float, float, float] | None = None
    """Loss minus the baseline's, nats per token: the expected value, and the best and the worst end
    of its 95% interval. None if nothing can be said."""

    @property
    def gain(self) -> Gain:
        """Minus `loss`: how much lower the loss ends, with the lower end of the interval first."""
        nats, high, low = (-end for end in self.loss) if self.loss else (None, None, None)
        return Gain(nats, low, high, self.name)


def plans(run: IntendedRun, expected: Callable[[IntendedRun], Gain]) -> list[Plan]:
    """Return the three ways to plan the superposed run. `expected` returns the gain of this run,
    and of shorter ones.

    Loss no higher: the number of steps at which the low end of the gain, which is taken to be no
    larger in the shorter run, makes up for Chinchilla's data term. Same FLOPs: as many steps as the
    baseline. Same text: as many tokens read as by the baseline; the interval of its loss also holds
    what the paper's 3B lost, if the setting is that of this run.

    Below `SMALL` only a run with as many steps has numbers: no law of the length holds there. With
    output only that run also reads the same text.
    """
    gain, setting = expected(run), run.setting
    flops, text = Plan("same FLOPs", 1.0, run.raw, ends(0.0, gain)), 1 / setting.text
    if gain.low is None or run.small:
        loss = flops.loss if setting.output_only else None
        return [Plan("loss no higher", None), flops, Plan("same text", text, run.tokens, loss)]
    share = (1 + max(gain.low, 0.0) / run.data_term) ** (-1 / CHINCHILLA.beta)
    share = math.ceil(100 * share - 1e-9) / 100
    loss = ends(run.with_steps(share).worth_of_steps(1 / share), gain)
    shorter = run.with_steps(text)
    same = ends(shorter.worth_of_steps(1 / text), expected(shorter))
    if same and setting == run.usual and not run.mixture:
        same = (*same[:2], max(same[2], same_text_at_3b()))
    return [
        Plan("loss no higher", share, share * run.raw, loss),
        flops,
        Plan("same text", text, run.tokens, same),
    ]


def ends(behind: float, gain: Gain) -> tuple[float, float, float] | None:
    """Return `Plan.loss` of a run with this gain over a baseline that itself ends `behind` nats
    above the one to compare with."""
    if gain.nats is None or gain.low is None or gain.high is None:
        return None
    return behind - gain.nats, behind - gain.high, behind - gain.low


def same_text_at_3b() -> float:
    """Return how much higher the paper's superposed 3B ended than its baseline that read as much
    text, nats per token (Table 1)."""
    runs = published.headline_runs()
    losses = runs.set_index(["params", "method", "total_steps"])["final_loss"]["3B"]
    return float(losses["tst", 20_000] - losses["baseline", 50_000])
