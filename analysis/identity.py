"""What makes two runs comparable: everything of their identity but what a comparison varies.

Both functions read the resolved config and the data fingerprints of `run.json`. Paths, names,
layout and logging are no part of a run's identity (`tst_study.run_identity`) and enter nowhere.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tst_study.run_record import RunHeader


def training_group(header: RunHeader) -> str:
    """Key (12 hex digits) of runs that differ at most in superposition, seed and learning rate.

    Held-out text is left out on purpose: runs evaluated on different text belong together and are
    then refused by name, which says more than finding no partner.
    """
    return _key(_varied_out(header))


def training_group_of_any_length(header: RunHeader) -> str:
    """Like `training_group`, whatever the number of steps and of warm-up steps."""
    values = _varied_out(header)
    for key in ("steps", "warmup_steps"):
        values["schedule"].pop(key)
    return _key(values)


def _varied_out(header: RunHeader) -> dict[str, Any]:
    config = header["config"]
    data = {key: value for key, value in header["data"].items() if key != "validation"}
    optimizer = {k: v for k, v in config["optimizer"].items() if k != "learning_rate"}
    start = config.get("initial_weights")
    return {
        **({"initial_weights": start["fingerprint"]} if start else {}),
        "schema_version": header["schema_version"],
        "model": config["model"],
        "data": _without_paths(data),
        "batch": config["batch"],
        "optimizer": optimizer,
        "schedule": dict(config["schedule"]),
        "numerics": config["numerics"],
    }


def _without_paths(value: Any) -> Any:
    """The same files may lie elsewhere on another machine."""
    if isinstance(value, dict):
        return {key: _without_paths(inner) for key, inner in value.items() if key != "path"}
    if isinstance(value, list):
        return [_without_paths(inner) for inner in value]
    return value


def _key(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
