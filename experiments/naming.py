"""What a run is called: for people only, nothing reads it back."""

from __future__ import annotations

from typing import Literal

from tst_study.config import Superposition

Role = Literal["baseline", "superposition", "ablation"]


def label(superposition: Superposition) -> str:
    """`baseline`, `s4-r0.2`, and whatever differs from the paper's method behind it."""
    if superposition.bag_size == 1:
        return "baseline"
    parts = [f"s{superposition.bag_size}", f"r{superposition.step_ratio:g}"]
    if superposition.steps is not None:
        parts[1] = f"{superposition.steps}steps"
    parts = ["-".join(parts)]
    if superposition.mode != "full":
        parts.append(superposition.mode)
    if superposition.loss != "mce":
        parts.append(superposition.loss)
    if superposition.weighting != "uniform":
        named = isinstance(superposition.weighting, str)
        parts.append(str(superposition.weighting) if named else "weighted")
    if superposition.reinitialize_at_switch:
        parts.append("reinitialized")
    if superposition.optimizer_at_switch == "reset":
        parts.append("optimizer_reset")
    return "-".join(parts)


def role(superposition: Superposition) -> Role:
    if superposition.bag_size == 1:
        return "baseline"
    plain = Superposition(
        bag_size=superposition.bag_size,
        step_ratio=superposition.step_ratio,
        steps=superposition.steps,
    )
    return "superposition" if superposition == plain else "ablation"
