"""What of a config changes the result: the one place that says so.

Everything counts but `execution`, labels and places of files. A key that came after the first
recorded runs is marked `AddedLater` in the config and counts only where it differs from what all
runs did before it existed, so that a new key with a default leaves every id, every trunk and every
group of comparable runs as it was. Whoever compares less than whole runs says what to leave out.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from tst_study.config import AddedLater, Config
from tst_study.configuration.keys import sections_of
from tst_study.configuration.phase_plan import superposed_steps

LABELS_AND_EXECUTION = ("study", "name", "role", "execution")
SEEDS = ("seed", "data_seed")
SCHEMA_VERSION = 1


def identity_form(
    config: Mapping[str, Any], data: Mapping[str, Any], without: Iterable[str] = ()
) -> dict[str, Any]:
    """All that the result depends on, as plain JSON values.

    Args:
        config: resolved, as `config.to_dict` gives it and `run.json` holds it.
        data: fingerprints of the text (`data.run_data.fingerprints`); they stand in place of
            the paths in the config's own section.
        without: dotted keys that do not matter to the question, such as `"schedule.steps"`.
    """
    form = _without_later_defaults(config, Config)
    for key in LABELS_AND_EXECUTION:
        form.pop(key, None)
    form |= {"schema_version": SCHEMA_VERSION, "data": dict(data)}
    form["superposition"] = _superposition(form["superposition"], form["schedule"])
    if form.get("data_seed") == form["seed"]:
        del form["data_seed"]
    if form.get("initial_weights") is None:  # recorded when runs could start from others
        form.pop("initial_weights", None)
    for key in without:
        _remove(form, key)
    return form


def _superposition(values: dict[str, Any], schedule: dict[str, Any]) -> dict[str, Any]:
    """The phase enters by its number of steps, so that `step_ratio` and `steps` name the same run
    alike; a run without it is a baseline, whatever its unused settings say."""
    kept = {key: value for key, value in values.items() if key != "step_ratio"}
    kept["steps"] = superposed_steps(
        schedule["steps"], values["bag_size"], values["step_ratio"], values["steps"]
    )
    return kept if kept["steps"] else {"steps": 0}


def _without_later_defaults(values: Mapping[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    kept, sections = {}, sections_of(kind)
    for key, value in values.items():
        field = kind.model_fields.get(key)
        later = [mark for mark in field.metadata if isinstance(mark, AddedLater)] if field else []
        if any(value == mark.default for mark in later):
            continue
        if isinstance(value, Mapping) and key in sections:
            value = _without_later_defaults(value, sections[key])
        kept[key] = value
    return kept


def _remove(form: dict[str, Any], key: str) -> None:
    *sections, last = key.split(".")
    for section in sections:
        # A copy: the caller's nested dictionaries stay as they are.
        form[section] = dict(form.get(section) or {})
        form = form[section]
    form.pop(last, None)
