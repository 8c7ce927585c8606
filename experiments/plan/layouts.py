"""What runs get and what it costs, whether they can be trained on it, and their memory there."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import get_args

from tst_study.config.schema import Config, Model, Recompute
from tst_study.cost.auto_layout import describe, resolve
from tst_study.cost.compute import count_parameters
from tst_study.cost.devices import DEVICES, Device, PublishedMfu, device_named, published_mfu
from tst_study.cost.memory import Memory, estimate_memory, held_parameters
from tst_study.cost.parallel_layout import (
    bucket_weights,
    check,
    data_ranks,
    layout_of,
    tensor_sizes,
)
from tst_study.errors import UserError
from tst_study.experiments.plan.planned_run import PlannedRun
from tst_study.text import listed

ENDLESS = 10**18
"""Bytes of an unknown device."""


@dataclass(frozen=True)
class Allocation:
    """What a run gets."""

    ranks: int = 1
    """Processes of torch.distributed."""
    on_gpu: bool = False
    seconds: float | None = None
    """That one launch trains at most; None where nothing limits it."""
    memory: int | None = None
    """Bytes of each rank's device, where they are known."""


@dataclass(frozen=True)
class Prices:
    """What runs cost on a device; without one, hours are those measured in the study itself."""

    device: str | None = None
    mfu: float | None = None
    """In the place of the published ones."""
    per_gpu_hour: float | None = None

    def gpu(self) -> Device | None:
        """Raises `UserError` for a device that is not known."""
        known = device_named(self.device or "")
        if self.device and known is None:
            names = ", ".join(device.name for device in DEVICES)
            raise UserError(
                f"--device {self.device}: its speeds are not known here; known: {names}"
            )
        return known

    def mfus(self, model: Model) -> PublishedMfu | None:
        """The range of MFU that the device is expected to reach, and who says so; None where
        nobody does."""
        if self.mfu is not None:
            return PublishedMfu(self.mfu, self.mfu, "as given")
        device = self.gpu()
        return published_mfu(device, experts=model.experts is not None) if device else None


AllocationOf = Callable[[PlannedRun], Allocation]


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


def memory_by_part(runs: Sequence[Config], gpus: int, gigabytes: float) -> list[str]:
    """Of each shape once: parameters, layout, and the memory of a GPU, as lines.

    `gigabytes`: 10^9 bytes of one GPU. Raises `UserError` where a layout cannot work on `gpus`.
    """
    shapes = {(one.model, one.batch, one.execution.parallel): one for one in reversed(runs)}
    memory, text = int(gigabytes * 1e9), []
    for config in reversed(shapes.values()):
        parameters = count_parameters(config.model)
        kinds = ", ".join(
            f"{kind.replace('_', ' ')} {number:,}"
            for kind, number in asdict(parameters).items()
            if number and kind not in ("total", "active")
        )
        config = resolved(config, Allocation(gpus, on_gpu=True, memory=memory))
        text += [
            "",
            f"{parameters.total:,} parameters, {parameters.active:,} of them active ({kinds})",
            f"Tensor sizes that divide it: {', '.join(map(str, tensor_sizes(config.model)))}; "
            f"pipeline stages: those that divide {config.model.layers} layers",
            f"On {gpus} GPUs of {memory / 1e9:g} GB: {describe(config, gpus)}; "
            "GB per GPU, estimated",
            f"  {'recomputing':<13}" + " ".join(f"{part.name:>11}" for part in fields(Memory)),
        ]
        for recompute in get_args(Recompute):
            estimate = estimate_memory(config.executed(recompute=recompute), gpus, on_gpu=True)
            cells = " ".join(f"{size / 1e9:>11.1f}" for size in asdict(estimate).values())
            fits = "" if estimate.peak <= memory else "  does not fit"
            text.append(f"  {recompute:<13}{cells}{fits}")
        parallel = layout_of(config)
        if parallel.overlap_gradients:
            held = held_parameters(config.model, parallel, stage=0)
            weights = held.dense + held.experts
            buckets = round(weights / bucket_weights(weights, data_ranks(parallel, gpus)))
            text.append(f"  gradients are summed in about {buckets} buckets")
    return text
