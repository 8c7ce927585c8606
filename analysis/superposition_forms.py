"""Candidate laws L(N, steps, s, r): the one that is used, and four that it is compared with.

Every form is L_N + D(u) − D(1) − gain, with u = steps / 20,000, L_N the baseline's loss at 20,000
steps, D(u) = B u^−β what more steps of baseline training would bring, and a gain that vanishes at
s = 1 and at r = 0. s enters twice: as tokens read
(s) and as ŝ = exp(entropy of the target weights), the number of targets that count, which is s
under uniform weights and fewer under 1/i.

Parameters that are positive by nature are fitted as they are, not as logs: fits of these grids
stay far from zero, and the numbers stay readable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.fitting.formula import Columns
from analysis.fitting.objectives import Floats
from tst_study.superposition.weighting import Weighting, offset_weights

STEPS_UNIT = 20_000
TOKENS_PER_STEP = 2**21
"""Latent tokens of a step of the published grids, in which steps are counted."""
PARAMS_UNIT = 270e6

Gain = Callable[[Mapping[str, Any], Columns], Any]


@dataclass(frozen=True)
class Form:
    """A law by name: what it says in one line, its gain, and where a fit may start."""

    name: str
    reading: str
    gain: Gain
    starts: tuple[Mapping[str, float], ...]
    of_size: tuple[str, ...] = ()
    """Parameters that only several model sizes can identify; 0 without them."""
    baseline: Callable[[Mapping[str, Any], Any], Any] = lambda p, u: data_term(p, u)
    """D(u): what is above the loss floor without superposition, nats."""


def columns(
    params: Sequence[float] | Floats,
    steps: Sequence[float] | Floats,
    bag_size: Sequence[float] | Floats,
    step_ratio: Sequence[float] | Floats,
    targets: Sequence[float] | Floats | None = None,
) -> dict[str, Floats]:
    """Columns that all forms read; `targets` is ŝ (`effective_targets`), s by default."""
    s = np.asarray(bag_size, dtype=float)
    return {
        "n": np.log(np.asarray(params, dtype=float) / PARAMS_UNIT),
        "u": np.asarray(steps, dtype=float) / STEPS_UNIT,
        "s": s,
        "r": np.asarray(step_ratio, dtype=float),
        "t": s if targets is None else np.asarray(targets, dtype=float),
    }


def effective_targets(bag_size: int, weighting: Weighting = "uniform") -> float:
    """exp(entropy) of the normalised target weights: 1 … s."""
    weights = np.array(offset_weights(weighting, bag_size), dtype=float)
    share = weights[weights > 0] / weights.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def data_term(p: Mapping[str, Any], u: Any) -> Any:
    """D(u) = B u^−β, nats. In place of B stands what 20,000 → 100,000 steps bring, B (1 − 5^−β),
    which data of these two lengths know far better."""
    return p["fivefold"] * u ** -p["data_exponent"] / (1 - 5.0 ** -p["data_exponent"])


def worth(p: Mapping[str, Any], c: Columns) -> Any:
    """What the superposed phase brings, in nats, before the recovery has to be paid.

    It shrinks with the length of the run as D does, and saturates with the bag (one e-fold per
    `width` further targets; later and more sharply in longer runs), less a blur that grows with
    log s whatever the length; both come with the first per cents of superposed steps (`onset`),
    earlier for larger bags.
    """
    targets = np.log((c["t"] - 1 + 1e-300) / (p["width"] * c["u"] ** p["width_length"]))
    kept = 1 - np.exp(-np.exp(targets * c["u"] ** p["sharpness_length"]))
    full = p["worth"] * c["u"] ** -p["data_exponent"] * kept - p["blur"] * np.log(c["s"])
    onset = p["onset"] * c["s"] ** -p["onset_bag"] * c["u"] ** p["onset_length"]
    return full * c["r"] / (c["r"] + onset)


def debt(p: Mapping[str, Any], c: Columns) -> Any:
    """What an unfinished recovery costs, in nats: a power of the share of steps that is left to
    recover, times the entropy of the targets to about the power of one."""
    entropy = np.log(c["t"])
    # 0 to a fitted power is 0; the logarithm of 0 would spoil its derivative.
    grown = np.exp(p["debt_entropy"] * np.log(entropy + 1e-300))
    size = np.exp(p["debt_size"] * c["n"]) * c["u"] ** -p["debt_length"]
    return p["debt"] * size * grown * ((1 - c["r"]) ** -p["debt_recovery"] - 1)


_DEBT = {
    "debt": 0.013,
    "debt_entropy": 1.2,
    "debt_recovery": 0.75,
    "debt_length": 0.45,
    "debt_size": 0.1,
}
_DATA = {"fivefold": 0.12, "data_exponent": 0.2}


def _worth_and_debt(p: Mapping[str, Any], c: Columns) -> Any:
    return worth(p, c) - debt(p, c)


def _recovery_by_size(p: Mapping[str, Any], c: Columns) -> Any:
    """The same, larger models recovering along another power (size and learning rate go together
    in the published grids, so it may be either)."""
    recovery = p["debt_recovery"] + p["debt_recovery_size"] * c["n"]
    return worth(p, c) - debt({**p, "debt_recovery": recovery}, c)


def _effective_steps(p: Mapping[str, Any], c: Columns) -> Any:
    """The superposed phase as extra baseline steps in proportion to the run."""
    kept = 1 - np.exp(-(c["t"] - 1) / p["width"]) - p["blur"] * np.log(c["s"])
    extra = p["extra"] * kept * c["r"] / (c["r"] + p["onset"] * c["s"] ** -p["onset_bag"])
    return data_term(p, c["u"]) - data_term(p, c["u"] * (1 + extra)) - debt(p, c)


def _effective_tokens(p: Mapping[str, Any], c: Columns) -> Any:
    """A superposed step is worth s^γ baseline steps, whenever it comes."""
    steps = 1 - c["r"] + c["r"] * c["s"] ** p["per_step"] * c["t"] ** p["per_target"]
    return data_term(p, c["u"]) - data_term(p, c["u"] * steps) - debt(p, c)


def _two_kinds(p: Mapping[str, Any], c: Columns) -> Any:
    """Two things are learnt: one that a superposed step teaches faster, one that it hardly does."""
    gain: Any = 0.0
    for kind in ("fast", "slow"):
        rate = c["s"] ** p[f"{kind}_bag"] * c["t"] ** p[f"{kind}_targets"]
        steps = 1 - c["r"] + c["r"] * rate
        gain = gain + p[kind] * c["u"] ** -p[f"{kind}_exponent"] * (
            1 - steps ** -p[f"{kind}_exponent"]
        )
    return gain


def _two_kinds_baseline(p: Mapping[str, Any], u: Any) -> Any:
    return sum(p[kind] * u ** -p[f"{kind}_exponent"] for kind in ("fast", "slow"))


def _surface(p: Mapping[str, Any], c: Columns) -> Any:
    """No idea at all: products of powers of log s and shapes in r, one power of the length."""
    left = 1 - c["r"]
    shapes = {"a": np.sqrt(c["r"]), "b": c["r"], "c": -np.log(left), "d": 1 / left - 1}
    gain: Any = 0.0
    for power in (1, 2, 3):
        # Half of the weights' entropy and half of the bag: neither alone fits both weightings.
        size = np.log(np.sqrt(c["s"] * c["t"])) ** power
        for letter, shape in shapes.items():
            gain = gain + p[f"{letter}{power}"] * size * shape
    return gain * c["u"] ** -p["length"]


_WORTH = {
    "worth": 0.12,
    "width": 1.6,
    "width_length": 0.12,
    "sharpness_length": 0.2,
    "blur": 0.013,
    "onset": 0.08,
    "onset_bag": 0.43,
    "onset_length": -0.3,
}

FORMS: tuple[Form, ...] = (
    Form(
        "worth and debt",
        "a saturating worth of the superposed phase, less a debt of unfinished recovery",
        _worth_and_debt,
        ({**_DATA, **_WORTH, **_DEBT},),
        ("debt_size",),
    ),
    Form(
        "recovery by size",
        "the same, the power of the recovery depending on model size",
        _recovery_by_size,
        ({**_DATA, **_WORTH, **_DEBT, "debt_recovery_size": -0.1},),
        ("debt_size", "debt_recovery_size"),
    ),
    Form(
        "effective steps",
        "the superposed phase is worth a share of the run in extra baseline steps, less the debt",
        _effective_steps,
        (
            {
                **_DATA,
                "extra": 1.5,
                "width": 1.6,
                "blur": 0.03,
                "onset": 0.08,
                "onset_bag": 0.43,
                **_DEBT,
            },
        ),
        ("debt_size",),
    ),
    Form(
        "effective tokens",
        "a superposed step is worth s^γ baseline steps, less the debt",
        _effective_tokens,
        ({**_DATA, "per_step": 0.5, "per_target": 0.1, **_DEBT},),
        ("debt_size",),
    ),
    Form(
        "two kinds",
        "two power laws of steps, one that superposed steps advance faster, one slower",
        _two_kinds,
        (
            {
                "fast": 0.1,
                "fast_exponent": 0.3,
                "fast_bag": 0.7,
                "fast_targets": 0.3,
                "slow": 0.07,
                "slow_exponent": 0.7,
                "slow_bag": -0.3,
                "slow_targets": -0.7,
            },
            {
                "fast": 0.09,
                "fast_exponent": 1.3,
                "fast_bag": 0.6,
                "fast_targets": 0.3,
                "slow": 0.07,
                "slow_exponent": 0.7,
                "slow_bag": -0.2,
                "slow_targets": -0.9,
            },
        ),
        baseline=_two_kinds_baseline,
    ),
    Form(
        "surface",
        "a polynomial without a reading, with as many parameters",
        _surface,
        (
            {
                **_DATA,
                **{f"{letter}{power}": 0.0 for power in (1, 2, 3) for letter in "abcd"},
                "length": 0.3,
            },
        ),
    ),
)
