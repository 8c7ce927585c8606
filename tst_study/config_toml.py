"""A config as TOML text that `config.load` reads back to the same config."""

from __future__ import annotations

import json
from typing import Any

from tst_study.config import Config, to_dict


def to_toml(config: Config) -> str:
    """Every key, defaults included; keys that are not set (None, which TOML lacks) are left out."""
    return "\n".join(_table(to_dict(config), ())).strip() + "\n"


def _table(values: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
    lines = [f"\n[{'.'.join(path)}]"] if path and _set(plain) else []
    lines += [f"{key} = {_value(value)}" for key, value in _set(plain).items()]
    for key, value in values.items():
        if isinstance(value, dict):
            lines += _table(value, (*path, key))
    return lines


def _set(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        inner = ", ".join(f"{key} = {_value(item)}" for key, item in _set(value).items())
        return f"{{ {inner} }}"
    return repr(value)
