"""The identity of a run: which runs are the same, as a whole or up to a step.

Everything counts but `execution`, labels and places of files. A key that came after the first
recorded runs is marked `AddedLater` in the config and counts only where it differs from what all
runs did before it existed. So a new key with a default changes no id, no shared prefix run and no
group of comparable runs. Callers that compare less than whole runs name the keys to leave out.

A shared prefix run trains what several runs have in common up to a step. With warm-up, stable rate
and decay, a run's state after step t depends on its total length only once the decay has begun, and
on r only once the superposed phase is over. So all r at one s share a superposed phase, and all
lengths of a baseline a stable phase; a grid trains each once and forks from it."""

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
SCHEMA_VERSION: Final = 1
AFTER_THE_TRUNK = (
    "schema_version",
    *(ablation.key for ablation in ABLATIONS if ablation.at_switch),
    *(f"schedule.{key}" for key in ("steps", "kind", "decay_ratio", "decay_shape", "final_ratio")),
    "schedule.stop_after",
)
"""Keys without effect before the switch and the decay."""


def canonical_form(config: Config, data_fingerprints: dict[str, Any]) -> dict[str, Any]:
    """Return everything that changes the result, as plain JSON values."""
    stop_after = config.schedule.stop_after
    if stop_after is not None and stop_after <= shared_until(config):
        # All longer runs that it was planned for begin with these steps.
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
    """Return the last step after which all runs of the same `prefix_form` have the same state.

    It is the end of the superposed phase, before anything is done at the switch, or the beginning
    of the decay, whichever is earlier; 0 where the schedule has no stable part.
    """
    schedule, superposed = config.schedule, plan_phases(config).superposed_steps
    if schedule.kind == "cosine":
        return 0
    stable = schedule.steps - schedule.decay_steps
    return min(superposed, stable) if superposed else stable


def prefix_form(config: Config, data_fingerprints: dict[str, Any]) -> dict[str, Any]:
    """Return all that the state depends on after steps up to `shared_until`, as JSON values."""
    # Weights that change over the superposed steps depend on how many there are.
    steps = () if len(weight_rows(config.superposition.weighting)) > 1 else ("superposition.steps",)
    return identity_form(to_dict(config), data_fingerprints, (*AFTER_THE_TRUNK, *steps))


def identity_form(
    config: Mapping[str, Any], data: Mapping[str, Any], without: Iterable[str] = ()
) -> dict[str, Any]:
    """Return all that the result depends on, as plain JSON values.

    Args:
        config: resolved, as `schema.to_dict` gives it and `run.json` holds it.
        data: fingerprints of the text (`data.run_data.fingerprints`); they stand in place of
            the paths in the config's own section.
        without: dotted keys that do not matter to the question, such as `"schedule.steps"`.
    """
    form = _without_later_defaults(config, Config)
    for key in LABELS_AND_EXECUTION:
        form.pop(key, None)
    form |= {"schema_version": SCHEMA_VERSION, "data": dict(data)}
    # Removed keys, which counted in every run when they were there, with their one value.
    form["schedule"] = {"decay_shape": "linear", **form["schedule"]}
    if form["model"]["experts"] is not None:
        experts = {"router_z_loss": 0.0, **form["model"]["experts"]}
        form["model"] = {**form["model"], "experts": experts}
    form["superposition"] = _superposition(form["superposition"], form["schedule"])
    if form.get("data_seed") == form["seed"]:
        del form["data_seed"]
    if form.get("initial_weights") is None:  # recorded when runs could start from others
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
