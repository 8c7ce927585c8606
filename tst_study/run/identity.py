"""Fingerprint and id of a run: what changes the result, and nothing else."""

import hashlib
import json
from typing import Any

from tst_study.config import Config, to_dict
from tst_study.run.identity_form import SCHEMA_VERSION, identity_form
from tst_study.run.trunk import prefix_form, shared_until


def canonical_form(config: Config, data_fingerprints: dict[str, Any]) -> dict[str, Any]:
    """Everything that changes the result, as plain JSON values."""
    stop_after = config.schedule.stop_after
    if stop_after is not None and stop_after <= shared_until(config):
        # Whatever longer run it was planned for: what it trains is this much of them all.
        shared = prefix_form(config, data_fingerprints)
        return {"schema_version": SCHEMA_VERSION, "trunk_steps": stop_after, **shared}
    return identity_form(to_dict(config), data_fingerprints)


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces; `TypeError` or `ValueError` for what has none."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(form: Any) -> str:
    """sha256 (hex) of a form's one text."""
    return hashlib.sha256(canonical_json(form).encode()).hexdigest()


def fingerprint(config: Config, data_fingerprints: dict[str, Any]) -> str:
    """Digest of the canonical form."""
    return digest(canonical_form(config, data_fingerprints))


def run_id(config: Config, fingerprint: str) -> str:
    """Name of the run folder: `<name>-<8 hex digits>`."""
    return f"{config.name}-{fingerprint[:8]}"
