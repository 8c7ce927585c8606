"""Fingerprint and id of a run: what changes the result, and nothing else; and its `run.json`."""

import hashlib
import json
from dataclasses import asdict
from typing import Any, cast

from tst_study.config import Config, to_dict
from tst_study.configuration.phase_plan import plan_phases
from tst_study.cost.compute import count_flops, count_parameters
from tst_study.run.identity_form import SCHEMA_VERSION, identity_form
from tst_study.run.trunk import prefix_form, shared_until
from tst_study.run_record import RunHeader


def canonical_form(config: Config, data_fingerprints: dict[str, Any]) -> dict[str, Any]:
    """Everything that changes the result, as plain JSON values."""
    stop_after = config.schedule.stop_after
    if stop_after is not None and stop_after <= shared_until(config):
        # Whatever longer run it was planned for: what it trains is this much of them all.
        shared = prefix_form(config, data_fingerprints)
        return {"schema_version": SCHEMA_VERSION, "trunk_steps": stop_after, **shared}
    return identity_form(to_dict(config), data_fingerprints)


def digest(form: Any) -> str:
    """sha256 (hex) of a form's one text: sorted keys, no spaces. Raises `TypeError` or `ValueError`
    for a form that has none."""
    text = json.dumps(form, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(config: Config, data_fingerprints: dict[str, Any]) -> str:
    """Digest of the canonical form."""
    return digest(canonical_form(config, data_fingerprints))


def run_id(config: Config, fingerprint: str) -> str:
    """Name of the run folder: `<name>-<8 hex digits>`."""
    return f"{config.name}-{fingerprint[:8]}"


def header_of(config: Config, data: dict[str, Any]) -> RunHeader:
    """Everything about a run that is known before its first step.

    `data`: what `data.run_data.fingerprints` returns.
    """
    plan = plan_phases(config)
    end = config.schedule.last_step
    identity = fingerprint(config, data)
    sums = {"step_ratio": plan.step_ratio, "data_multiplier": plan.data_multiplier}
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id(config, identity),
        "fingerprint": identity,
        "study": config.study,
        "name": config.name,
        "role": config.role,
        "config": to_dict(config),
        "parameters": asdict(count_parameters(config.model)),
        "flops": asdict(count_flops(config)),
        "plan": cast(Any, asdict(plan) | sums),
        "raw_tokens": plan.raw_tokens(end),
        "latent_tokens": plan.latent_tokens(end),
        "data": data,
        "unique_raw_tokens": sum(corpus["tokens"] for corpus in data["corpora"]),
    }
