"""Words for settings, groups, intervals and verdicts: one place, so that all pages agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tst_study.units import big

_LOSSES = {
    "sum_to_one": "sum-to-one loss",
    "binary_cross_entropy": "binary cross-entropy",
    "hinge": "hinge loss",
}
_WEIGHTS = {
    "power_law": "power-law weights",
    "exponential": "exponential weights",
    "first_token": "first token only",
    "mutual_information": "mutual-information weights",
}


def setting_label(run: Mapping[str, Any]) -> str:
    """`baseline`, or `s = 4, r = 0.2` and whatever differs from the paper's plain method."""
    if run["bag_size"] == 1:
        return "baseline"
    return ", ".join([f"s = {run['bag_size']}, r = {run['step_ratio']:.3g}", *_extras(run)])


def setting_order(run: Mapping[str, Any]) -> tuple[Any, ...]:
    """For sorting: the baseline, the plain method by r and s, then what departs from it."""
    return (
        run["bag_size"] > 1 and not is_plain(run),
        run["step_ratio"],
        run["bag_size"],
        setting_label(run),
    )


def is_plain(run: Mapping[str, Any]) -> bool:
    """Superposed as the paper does it, without any ablation."""
    return run["bag_size"] > 1 and not _extras(run)


def _extras(run: Mapping[str, Any]) -> list[str]:
    extras = []
    if run["mode"] != "full":
        extras.append(str(run["mode"]).replace("_", " "))
    if run["loss_kind"] != "mce":
        extras.append(_LOSSES.get(run["loss_kind"], str(run["loss_kind"])))
    if run["weighting"] != "uniform":
        extras.append(_WEIGHTS.get(run["weighting"], f"weights {run['weighting']}"))
    if run["aligned_bags"]:
        extras.append("bags within documents")
    if run["reinitialized"]:
        extras.append("re-initialised")
    if run["optimizer_at_switch"] != "keep":
        extras.append(f"optimizer {run['optimizer_at_switch']}")
    return extras


def group_label(runs: pd.DataFrame) -> str:
    """A comparison group in one line, from its runs: corpus and length."""
    first = runs.iloc[0]
    return f"{first['corpus']}, {first['steps']:,} steps"


def group_details(runs: pd.DataFrame) -> str:
    """Model and batch of a comparison group, for a caption."""
    first = runs.iloc[0]
    experts = "" if pd.isna(first["experts"]) else f", {int(first['experts'])} experts"
    return (
        f"{big(first['parameters'])} parameters ({number(first['layers'], 'layer')}, hidden size "
        f"{first['hidden_size']}{experts}, vocabulary {first['vocabulary_size']:,}), "
        f"{first['steps']:,} steps of {first['sequences']} × {first['sequence_length']} latent "
        "tokens"
    )


def gain(row: Mapping[str, Any], digits: int = 3) -> str:
    """`+0.155 [+0.124, +0.186]`; without an interval where one seed allows none."""
    mean = signed(row["gain"], digits)
    if row["low"] is None or pd.isna(row["low"]):
        return mean
    return f"{mean} [{signed(row['low'], digits)}, {signed(row['high'], digits)}]"


def gain_sentence(row: Mapping[str, Any]) -> str:
    """One setting's result as a sentence, whichever way it went."""
    size = abs(row["gain"])
    if row["verdict"] == "one seed: no claim":
        way = "lower" if row["gain"] > 0 else "higher"
        return f"{row['setting']}: {size:.3f} nats {way} in the only seed, so no claim."
    interval = f"95% interval {signed(row['low'])} to {signed(row['high'])}"
    if row["comparisons"] > 1:
        interval += f" with {row['comparisons'] - 1} others tried"
    seeds = number(row["seeds"], "seed")
    if row["verdict"] == "no difference shown":
        return (
            f"{row['setting']}: no difference shown ({signed(row['gain'])} nats, {interval}, "
            f"{seeds}; {row['smallest_detectable']:.3f} would be seen four times in five)."
        )
    return f"{row['setting']}: {row['verdict']} by {size:.3f} nats ({interval}, {seeds})."


def signed(value: float, digits: int = 3) -> str:
    """With its sign, the minus as printed; what rounds to zero has none."""
    text = f"{value:+.{digits}f}"
    if float(text) == 0:
        return f"{0:.{digits}f}"
    return text.replace("-", "−")


def number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
