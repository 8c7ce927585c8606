"""What runs have in common up to a step: the trunk that a grid trains once and forks from.

With warm-up, stable rate and decay, a run's state behind step t depends on its total length only
once the decay has begun, and on r only once the superposed phase is over. So all r at one s share
a superposed phase, and all lengths of one baseline a stable phase.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tst_study.config import Config, from_dict, to_dict
from tst_study.errors import UserError
from tst_study.learning_rate import decay_steps
from tst_study.phase_plan import plan_phases

if TYPE_CHECKING:
    from tst_study.run_record import RunHeader

AT_OR_BEHIND_THE_SWITCH = ("steps", "step_ratio", "reinitialize_at_switch", "optimizer_at_switch")


def shared_until(config: Config) -> int:
    """The last step behind which the state is still that of every run of the same `prefix_form`.

    The end of the superposed phase (what is done at the switch comes behind it) or the beginning
    of the decay, whichever is earlier; 0 where the schedule has no stable part.
    """
    schedule, superposed = config.schedule, plan_phases(config).superposed_steps
    if schedule.kind == "cosine":
        return 0
    stable = schedule.steps - decay_steps(schedule)
    return min(superposed, stable) if superposed else stable


def prefix_form(config: Config, data_fingerprints: dict[str, Any]) -> dict[str, Any]:
    """All that the state behind any step up to `shared_until` depends on, as plain JSON values."""
    values = to_dict(config)
    superposition = values["superposition"]
    for key in AT_OR_BEHIND_THE_SWITCH:
        del superposition[key]
    if plan_phases(config).superposed_steps == 0:
        superposition = {}
    return {
        **initial_weights_form(config),
        "seed": values["seed"],
        "model": values["model"],
        "superposition": superposition,
        "data": data_fingerprints,
        "batch": values["batch"],
        "optimizer": values["optimizer"],
        "schedule": {"warmup_steps": values["schedule"]["warmup_steps"]},
        "numerics": values["numerics"],
    }


def initial_weights_form(config: Config) -> dict[str, Any]:
    """Nothing where weights are drawn, so that such runs keep the identity they always had."""
    start = config.initial_weights
    return {} if start is None else {"initial_weights": start.fingerprint}


def check_fork(
    config: Config, data_fingerprints: dict[str, Any], trunk: RunHeader, step: int
) -> None:
    """Raises `UserError` unless the trunk's state behind `step` is this run's own."""
    there = from_dict(trunk["config"], trunk["run_id"])
    if prefix_form(config, data_fingerprints) != prefix_form(there, trunk["data"]):
        raise UserError(
            f"execution.fork_from: {trunk['run_id']} is no trunk of this run: they differ before "
            "the switch and the decay; leave the key out"
        )
    last = min(shared_until(config), shared_until(there))
    if step > last:
        raise UserError(
            f"execution.fork_from.step = {step}: the two runs part behind step {last}; fork there "
            "or before"
        )
