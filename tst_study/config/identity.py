"""The identity of a run: which runs are the same, as a whole or up to a step.

Everything counts but `execution`, labels and places of files. A key that came after the first
recorded runs is marked `AddedLater` in the config and counts only where it differs from what all
runs did before it existed. So a new key with a default changes no id, no shared prefix run and no
group of comparable runs. Callers that compare less than whole runs name the keys to leave out.

A shared prefix run trains what several runs have in common up to a step. With warm-up, stable rate
and decay, a run's state after step t depends on its total length only once the decay has begun, and
on r only once the superposed phase is over (unless the weights of a bag's tokens change over that
phase). So all r at one s share the beginning of a superposed phase, and all lengths of a baseline
that of a stable phase; a grid trains each once and forks from it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel

from tst_study.config.keys import sections_of
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import AddedLater, Config, to_dict
from tst_study.config.superposition_setting import ABLATIONS
from tst_study.superposition.steps import superposed_steps
from tst_study.superposition.weighting import weight_rows

LABELS_AND_EXECUTION = ("study", "name", "role", "execution", "fork_from")
"""Keys that do not count: labels, how a result is computed, and the place of initial weights, whose
fingerprint is among those of the data."""
SEEDS = ("seed", "data_seed")
"""Keys that callers leave out to ask whether runs differ in more than their seeds."""
SCHEMA_VERSION: Final = 1
"""The version of `run.json`. It counts in every run's id, so that a new one changes all ids."""
AFTER_THE_TRUNK = (
    "schema_version",
    *(ablation.key for ablation in ABLATIONS if ablation.at_switch),
    *(f"schedule.{key}" for key in ("steps", "kind", "decay_ratio", "decay_shape", "final_ratio")),
    "schedule.stop_after",
)
"""Keys of the identity form that have no effect before the switch and the decay. `canonical_form`
adds the schema version again."""


def canonical_form(config: Config, data_fingerprints: dict[str, Any]) -> dict[str, Any]:
    """Return everything that changes the result, as plain JSON values.

    For a shared prefix run that is the form of its prefix and its length.
    """
    stop_after = config.schedule.stop_after
    if stop_after is not None and stop_after <= shared_until(config):
        # What the runs that fork from it do later must not change its id.
        shared = prefix_form(config, data_fingerprints)
        return {"schema_version": SCHEMA_VERSION, "trunk_steps": stop_after, **shared}
    return identity_form(to_dict(config), data_fingerprints)


def digest(form: Any) -> str:
    """Return the sha256 (hex) of a form as JSON with sorted keys and no spaces.

    Raises `TypeError` or `ValueError` for a form that is not JSON.
    """
    text = json.dumps(form, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(config: Config, data_fingerprints: dict[str, Any]) -> str:
    """Return the digest of the canonical form."""
    return digest(canonical_form(config, data_fingerprints))


def run_id(config: Config, fingerprint: str) -> str:
    """Return the name of the run folder: `<name>-<8 hex digits>`."""
    return f"{config.name}-{fingerprint[:8]}"


def shared_until(config: Config) -> int:
    """Return how many of its first steps a run shares with all runs of the same `prefix_form`.

    These steps end with the superposed phase, before anything is done at the switch, or with the
    stable part of the schedule, whichever is earlier; those of a baseline with the stable part. 0
    for a cosine schedule, which depends on the total length from the first step after warm-up.
    """
    schedule, superposed = config.schedule, plan_phases(config).superposed_steps
    if schedule.kind == "cosine":
        return 0
    stable = schedule.steps - schedule.decay_steps
    return min(superposed, stable) if superposed else stable


def prefix_form(config: Config, data_fingerprints: dict[str, Any]) -> dict[str, Any]:
    """Return all that a run's state depends on up to `shared_until`, as plain JSON values."""
    # The number of superposed steps has no effect before they end, unless the weights of a bag's
    # tokens change over them.
    steps = () if len(weight_rows(config.superposition.weighting)) > 1 else ("superposition.steps",)
    return identity_form(to_dict(config), data_fingerprints, (*AFTER_THE_TRUNK, *steps))


def identity_form(
    config: Mapping[str, Any], data: Mapping[str, Any], without: Iterable[str] = ()
) -> dict[str, Any]:
    """Return all that the result depends on but the keys `without`, as plain JSON values.

    Args:
        config: resolved, as `schema.to_dict` gives it and `run.json` holds it.
        data: fingerprints of the text (`data.run_data.fingerprints`); they stand in place of
            the config's `data` section.
        without: dotted keys in which the compared runs may differ, such as `"schedule.steps"`.
    """
    form = _without_later_defaults(config, Config)
    for key in LABELS_AND_EXECUTION:
        form.pop(key, None)
    form |= {"schema_version": SCHEMA_VERSION, "data": dict(data)}
    # Keys that the config no longer has, at the only value they ever had: old ids count them.
    form["schedule"] = {"decay_shape": "linear", **form["schedule"]}
    if form["model"]["experts"] is not None:
        experts = {"router_z_loss": 0.0, **form["model"]["experts"]}
        form["model"] = {**form["model"], "experts": experts}
    form["superposition"] = _superposition(form["superposition"], form["schedule"])
    if form.get("data_seed") == form["seed"]:
        del form["data_seed"]
    if form.get("initial_weights") is None:  # a key of old records; null had no effect
        form.pop("initial_weights", None)
    for key in without:
        _remove(form, key)
    return form


def _superposition(values: dict[str, Any], schedule: dict[str, Any]) -> dict[str, Any]:
    """Return the section with the number of superposed steps in place of `step_ratio` or `steps`.

    A run without such steps is a baseline, whatever its unused settings say.
    """
    kept = {key: value for key, value in values.items() if key != "step_ratio"}
    kept["align_bags_to_documents"] = False  # a removed key, like those of `identity_form`
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
        form = form.get(section) or {}
    form.pop(last, None)
