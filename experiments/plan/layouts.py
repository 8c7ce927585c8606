"""The ranks and GPUs that a run gets, its layout on them (how the model and the batch are split
over the ranks), and checks that this layout can work."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import get_args

from tst_study.config.schema import Config, Recompute
from tst_study.cost.auto_layout import describe, resolve
from tst_study.cost.compute import count_parameters
from tst_study.cost.devices import device_named, device_or_usual
from tst_study.cost.memory import Memory, estimate_memory
from tst_study.cost.parallel_layout import check
from tst_study.cost.traffic import count_traffic
from tst_study.errors import UserError
from tst_study.experiments.plan.planned_run import PlannedRun
from tst_study.text import aligned, listed

UNLIMITED = 10**18
"""The bytes of memory that are assumed of CPUs, and of GPUs that `cost.devices` does not list, so
that every layout fits."""


@dataclass(frozen=True)
class Allocation:
    """The ranks and GPUs that a run gets."""

    ranks: int = 1
    """Processes that train the run together: the world size of torch.distributed."""
    on_gpu: bool = False
    device: str | None = None
    """The name of the GPUs; None if it is not known."""
    per_node: int | None = None
    """Ranks on each node; by default the usual number of such GPUs in a node."""


AllocationOf = Callable[[PlannedRun], Allocation]
"""A function that tells what a run gets, such as `Launcher.allocation` of a study."""


def resolved(config: Config, given: Allocation) -> Config:
    """Return a run's config with its layout, completed for the devices that it gets. If
    `execution.parallel` is "auto", a layout that fits them is chosen (`cost.auto_layout.resolve`).
    Raises `UserError` for a layout that cannot work on these ranks or does not fit their memory,
    and if none fits."""
    known = device_named(given.device or "") if given.on_gpu else None
    choice = resolve(
        config,
        given.ranks,
        int(known.memory) if known else UNLIMITED,
        on_gpu=given.on_gpu,
        device=given.device,
        per_node=given.per_node,
    )
    check(choice.config, given.ranks)
    return choice.config


def problems(runs: Iterable[PlannedRun], allocation: AllocationOf) -> list[str]:
    """Return a line for each reason why some of the runs cannot be trained with what they get."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        given = allocation(run)
        try:
            resolved(run.config, given)
        except UserError as error:
            reasons[f"on {given.ranks} ranks: {error}"].append(run.run_id)
    return [f"{listed(names, 1)} cannot be trained {why}" for why, names in reasons.items()]


def check_layouts(runs: Iterable[PlannedRun], allocation: AllocationOf) -> None:
    """Raise `UserError` with a message of one line if any of the runs cannot be trained with what
    it gets."""
    lines = problems(runs, allocation)
    if lines:
        raise UserError(lines[0] if len(lines) == 1 else f"{lines[0]} (and {len(lines) - 1} more)")


def memory_by_part(runs: Sequence[Config], given: Allocation) -> list[str]:
    """Return lines for a terminal: parameters, layout, memory per GPU and traffic for each
    combination of model, batch and layout among the runs.

    `given`: GPUs; an H100 is assumed if their name is not listed. A run that cannot be trained on
    them is left out; `problems` says why.
    """
    shapes: dict[tuple[object, ...], Config] = {}
    for run in runs:
        shapes.setdefault((run.model, run.batch, run.execution.parallel), run)
    device, gpus, text = device_or_usual(given.device), given.ranks, []
    for shape in shapes.values():
        try:
            config = resolved(shape, given)
        except UserError:
            continue
        parameters = count_parameters(config.model)
        kinds = ", ".join(
            f"{kind.replace('_', ' ')} {number:,}"
            for kind, number in asdict(parameters).items()
            if number and kind not in ("total", "active")
        )
        text += [
            "",
            f"{parameters.total:,} parameters, {parameters.active:,} of them active ({kinds})",
            f"On {gpus} {device.name} of {device.memory / 1e9:g} GB: {describe(config, gpus)}; "
            "estimated GB per GPU, without and with recomputation of each layer:",
        ]
        estimates = {
            kind: estimate_memory(config.executed(recompute=kind), gpus, on_gpu=True)
            for kind in get_args(Recompute)
        }
        fits = (each.total <= device.memory for each in estimates.values())
        rows = [["", *estimates], ["", *("fits" if fit else "does not fit" for fit in fits)]]
        for part in fields(Memory):
            sizes = (getattr(each, part.name) for each in estimates.values())
            rows.append([part.name, *(f"{size / 1e9:,.1f}" for size in sizes)])
        text += [f"  {line}" for line in aligned(rows, range(1, len(rows[0])))]
        traffic = count_traffic(config, gpus, device.per_node)
        text.append(
            f"  {traffic}: {traffic.seconds(device):.2g} s at the data sheets' rates of "
            f"{device.name}, {device.per_node} a node, if nothing overlaps"
        )
    return text
