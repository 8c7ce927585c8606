"""A config as TOML text that `config.load` reads back to the same config."""

from __future__ import annotations

from typing import Any

import tomli_w

from tst_study.config import Config, to_dict


def to_toml(config: Config) -> str:
    """Every key, defaults included; keys that are not set (None, which TOML lacks) are left out."""
    return tomli_w.dumps(_without_none(to_dict(config)))


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }
