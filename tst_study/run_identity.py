"""Canonical form, fingerprint and id of a run: what changes the result, and nothing else."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from tst_study.config import Config, to_dict
from tst_study.phase_plan import plan_phases
from tst_study.trunk import initial_weights_form, prefix_form, shared_until

SCHEMA_VERSION = 1


def canonical_form(config: Config, data_fingerprints: dict[str, Any]) -> dict[str, Any]:
    """Everything that changes the result, as plain JSON values.

    Files enter by `data_fingerprints` (what `data.fingerprints` returns), never by path. The
    superposed phase enters by its number of steps, so that `step_ratio` and `steps` name the same
    run alike; a run without it is a baseline, whatever its unused settings say.
    """
    values = to_dict(config)
    plan = plan_phases(config)
    superposition = values["superposition"]
    del superposition["step_ratio"]
    superposition["steps"] = plan.superposed_steps
    if plan.superposed_steps == 0:
        superposition = {"steps": 0}
    stop_after = values["schedule"].pop("stop_after")
    if stop_after is not None and stop_after <= shared_until(config):
        # Whatever longer run it was planned for: what it trains is this much of them all.
        return {
            "schema_version": SCHEMA_VERSION,
            "trunk_steps": stop_after,
            **prefix_form(config, data_fingerprints),
        }
    if stop_after is not None:
        values["schedule"]["stop_after"] = stop_after
    return {
        **initial_weights_form(config),
        "schema_version": SCHEMA_VERSION,
        "seed": values["seed"],
        "model": values["model"],
        "superposition": superposition,
        "data": data_fingerprints,
        "batch": values["batch"],
        "optimizer": values["optimizer"],
        "schedule": values["schedule"],
        "numerics": values["numerics"],
    }


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces; `TypeError` for what has no stable form."""
    _refuse_unstable(value, "value")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def fingerprint(config: Config, data_fingerprints: dict[str, Any]) -> str:
    """sha256 (hex) of the canonical form."""
    text = canonical_json(canonical_form(config, data_fingerprints))
    return hashlib.sha256(text.encode()).hexdigest()


def run_id(config: Config, fingerprint: str) -> str:
    """Name of the run folder: `<name>-<8 hex digits>`."""
    return f"{config.name}-{fingerprint[:8]}"


def _refuse_unstable(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where}: key {key!r} is not a string")
            _refuse_unstable(inner, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _refuse_unstable(inner, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"{where}: {value} has no stable form")
    elif not isinstance(value, str | int | float | bool | None):
        raise TypeError(f"{where}: a {type(value).__name__} has no stable form")
