"""The identity of a run decides whether two runs are the same, as a whole or up to a step.

Every key of the config counts except `execution`, the labels, the places of files, and settings of
superposition in a run that does not superpose. A key that was added after the first runs had been
recorded is marked `AddedLater` in the config; it counts only if its value differs from what all
runs did before the key existed. So adding a key leaves the ids of recorded runs, their shared
prefix runs and their comparisons as they were. A caller that asks whether runs agree in a part of
the config says which keys to leave out.

A shared prefix run trains the steps that several runs have in common, and these runs then continue
from its checkpoints. The schedule `wsd` has a warm-up, a stable rate and a decay. With it, a run's
state after step t depends on the run's total length only if the decay has begun by then, and on r
only if the superposed phase is over (or if the weights of a bag's tokens change during that phase).
So runs that differ only in r share the beginning of their superposed phase, and baselines that
differ only in length share the beginning of their stable phase. A study trains each shared part
once.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel

from tst_study.config.keys import sections_of
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import RIVALS, Config, added_later, to_dict
from tst_study.config.superposition_setting import ABLATIONS
from tst_study.superposition.steps import superposed_steps
from tst_study.superposition.weighting import weight_rows

LABELS_AND_EXECUTION = ("study", "name", "role", "execution", "fork_from")
"""Top-level keys that are not part of the identity: the labels, `execution` (how the result is
computed), and `fork_from` (the folder of the initial weights). The weights themselves count: their
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
"""Keys of the identity form that `prefix_form` leaves out. The keys of the config among them have
no effect on the steps before the switch and the decay. The schema version is left out too;
`canonical_form` adds it again."""


def canonical_form(config: Config, data_fingerprints: dict[str, Any]) -> dict[str, Any]:
    """Return everything that the run's result depends on, as plain JSON values.

    A run that stops within the steps that it could share (`shared_until`) is a shared prefix run.
    Its form consists of its `prefix_form`, its number of steps and the schema version.
    """
    stop_after = config.schedule.stop_after
    if stop_after is not None and stop_after <= shared_until(config):
        # Its id must not depend on what the runs that fork from it do later.
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
    """Return the fingerprint of a run: the digest of its canonical form."""
    return digest(canonical_form(config, data_fingerprints))


def run_id(config: Config, fingerprint: str) -> str:
    """Return the run's id, which is also the name of its folder: `<name>-<8 hex digits>`."""
    return f"{config.name}-{fingerprint[:8]}"


def shared_until(config: Config) -> int:
    """Return how many of a run's first steps depend on nothing but its `prefix_form`.

    Two runs with the same form share as many steps as the smaller of the two numbers that this
    function returns for them. In a superposed run these steps end with the superposed phase, before
    anything is done at the switch, or with the stable part of the schedule, whichever ends earlier.
    In a baseline they end with the stable part. The number is 0 for a cosine schedule, in which
    every step after the warm-up depends on the total length.
    """
    schedule, superposed = config.schedule, plan_phases(config).superposed_steps
    if schedule.kind == "cosine":
        return 0
    # The last step is always a run's own, because it evaluates and saves.
    stable = schedule.steps - max(schedule.decay_steps, 1)
    return min(superposed, stable) if superposed else stable


def prefix_form(config: Config, data_fingerprints: dict[str, Any]) -> dict[str, Any]:
    """Return everything that a run's state depends on up to `shared_until`, as plain JSON
    values."""
    # The number of superposed steps has no effect before they end, unless the weights of a bag's
    # tokens change during them.
    steps = () if len(weight_rows(config.superposition.weighting)) > 1 else ("superposition.steps",)
    return identity_form(to_dict(config), data_fingerprints, (*AFTER_THE_TRUNK, *steps))


def identity_form(
    config: Mapping[str, Any], data: Mapping[str, Any], without: Iterable[str] = ()
) -> dict[str, Any]:
    """Return everything that the result depends on, except the keys `without`, as plain JSON
    values.

    Args:
        config: a config with all its keys, as `schema.to_dict` returns it and `run.json` holds it.
        data: fingerprints of the text and of the initial weights (`data.run_data.fingerprints`);
            they replace the config's `data` section.
        without: dotted keys in which the compared runs may differ, such as `"schedule.steps"`.
    """
    form = _without_later_defaults(config, Config)
    for key in LABELS_AND_EXECUTION:
        form.pop(key, None)
    form |= {"schema_version": SCHEMA_VERSION, "data": dict(data)}
    # Keys that were removed from the config are added with the only value that they ever had,
    # because the ids of older runs include them.
    form["schedule"] = {"decay_shape": "linear", **form["schedule"]}
    if form["model"]["experts"] is not None:
        experts = {"router_z_loss": 0.0, **form["model"]["experts"]}
        form["model"] = {**form["model"], "experts": experts}
    form["superposition"] = _superposition(form["superposition"], form["schedule"])
    for key, kind in RIVALS.items():
        if form.get(key):
            rival = kind(**form[key])
            small = sum(steps for steps, _ in rival.stages(form["schedule"]["steps"]))
            form[key] = rival.model_dump(exclude={"step_ratio"}) | {"steps": small}
    if form.get("data_seed") == form["seed"]:
        del form["data_seed"]
    if form.get("initial_weights") is None:  # in old records; null had no effect
        form.pop("initial_weights", None)
    for key in without:
        _remove(form, key)
    return form


def _superposition(values: dict[str, Any], schedule: dict[str, Any]) -> dict[str, Any]:
    """Return the section `superposition` with the number of superposed steps in place of
    `step_ratio` and `steps`.

    A run without superposed steps is a baseline: its other settings of superposition have no
    effect, and are left out.
    """
    kept = {key: value for key, value in values.items() if key != "step_ratio"}
    kept["align_bags_to_documents"] = False  # a removed key, as in `identity_form`
    kept["steps"] = superposed_steps(
        schedule["steps"], values["bag_size"], values["step_ratio"], values["steps"]
    )
    return kept if kept["steps"] else {"steps": 0}


def _without_later_defaults(values: Mapping[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    """Leave out each key marked `AddedLater` whose value is the default of its mark."""
    kept, sections, later = {}, sections_of(kind), added_later(kind)
    for key, value in values.items():
        if key in later and value == later[key].default:
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
