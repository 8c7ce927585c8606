"""Whether runs can be trained on what a launcher would give them: asked before anything is paid."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from experiments.plan.allocation import Allocation
from experiments.plan.planned_run import PlannedRun
from tst_study.config.schema import Config
from tst_study.cost.auto_layout import resolve
from tst_study.cost.parallel_layout import check
from tst_study.errors import UserError
from tst_study.text import listed

AllocationOf = Callable[[PlannedRun], Allocation]
"""What a run would get."""
ENDLESS = 10**18
"""Bytes of a device of which nothing is known."""


def resolved(config: Config, given: Allocation) -> Config:
    """With its layout, which is found for these ranks and their memory where it is "auto". Raises
    `UserError` for one that cannot work."""
    memory = given.memory or ENDLESS
    config = resolve(config, given.ranks, memory, on_gpu=given.on_gpu).config
    check(config, given.ranks)
    return config


def problems(runs: Iterable[PlannedRun], allocation: AllocationOf) -> list[str]:
    """A line for every reason that some runs cannot be trained as they would be."""
    found: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        given = allocation(run)
        try:
            resolved(run.config, given)
        except UserError as error:
            found[f"on {given.ranks} ranks: {error}"].append(run.run_id)
    return [f"{listed(names, 1)} cannot be trained {why}" for why, names in found.items()]


def check_layouts(runs: Iterable[PlannedRun], allocation: AllocationOf) -> None:
    """Raises `UserError`, one line, where one of the runs could not be trained."""
    lines = problems(runs, allocation)
    if lines:
        raise UserError(lines[0] if len(lines) == 1 else f"{lines[0]} (and {len(lines) - 1} more)")
