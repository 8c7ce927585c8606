"""What runs have in common up to a step: the trunk that a grid trains once and forks from.

With warm-up, stable rate and decay, a run's state after step t depends on its total length only
once the decay has begun, and on r only once the superposed phase is over. So all r at one s share
a superposed phase, and all lengths of one baseline a stable phase.
"""

from typing import Any

from tst_study.config import Config, from_dict, of_record, to_dict
from tst_study.configuration.phase_plan import plan_phases
from tst_study.configuration.superposition_setting import DEPARTURES
from tst_study.errors import UserError
from tst_study.run.identity_form import identity_form
from tst_study.run_record import RunHeader
from tst_study.superposition import weight_rows

AFTER_THE_TRUNK = (
    "schema_version",
    *(one.key for one in DEPARTURES if one.at_switch),
    *(f"schedule.{key}" for key in ("steps", "kind", "decay_ratio", "decay_shape", "final_ratio")),
    "schedule.stop_after",
)
"""What has no effect before the switch and the decay."""


def shared_until(config: Config) -> int:
    """The last step after which the state is still that of every run of the same `prefix_form`.

    The end of the superposed phase (what is done at the switch comes after it) or the beginning
    of the decay, whichever is earlier; 0 where the schedule has no stable part.
    """
    schedule, superposed = config.schedule, plan_phases(config).superposed_steps
    if schedule.kind == "cosine":
        return 0
    stable = schedule.steps - schedule.decay_steps
    return min(superposed, stable) if superposed else stable


def prefix_form(config: Config, data_fingerprints: dict[str, Any]) -> dict[str, Any]:
    """All that the state after any step up to `shared_until` depends on, as plain JSON values."""
    # Weights that change over the superposed steps depend on how many there are.
    steps = () if len(weight_rows(config.superposition.weighting)) > 1 else ("superposition.steps",)
    return identity_form(to_dict(config), data_fingerprints, (*AFTER_THE_TRUNK, *steps))


def check_fork(
    config: Config, data_fingerprints: dict[str, Any], trunk: RunHeader, step: int
) -> None:
    """Raises `UserError` unless the trunk's state after `step` is this run's own."""
    there = from_dict(of_record(trunk["config"]), trunk["run_id"])
    if prefix_form(config, data_fingerprints) != prefix_form(there, trunk["data"]):
        raise UserError(
            f"execution.fork_from: {trunk['run_id']} is not a trunk of this run: they differ "
            "before the switch and the decay; leave the key out"
        )
    last = min(shared_until(config), shared_until(there))
    if step > last:
        raise UserError(
            f"execution.fork_from.step = {step}: the two runs part after step {last}; fork there "
            "or before"
        )
