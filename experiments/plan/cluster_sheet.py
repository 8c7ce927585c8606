"""What `tst-study plan --gpus` adds: memory of each GPU by part; what published hours imply."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import get_args

from experiments.plan.allocation import Allocation
from experiments.plan.layouts import resolved
from experiments.study import Study
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import Config, Recompute
from tst_study.cost.auto_layout import describe, resolve
from tst_study.cost.compute import count_flops, count_parameters
from tst_study.cost.devices import Device, peak_flops
from tst_study.cost.memory import Memory, estimate_memory, held_parameters
from tst_study.cost.parallel_layout import bucket_weights, data_ranks, layout_of, tensor_sizes
from tst_study.errors import UserError

PUBLISHED_DEVICE = "B200"
PARTS = tuple(field.name for field in fields(Memory))


def lines(
    study: Study, runs: Sequence[Config], gpus: int, gigabytes: float, device: Device | None = None
) -> list[str]:
    """Of each shape once, its layout and memory by part; then what was published of the runs.

    `gigabytes`: 10^9 bytes of one GPU. Raises `UserError` where a layout cannot work on `gpus`.
    """
    text: list[str] = []
    seen: list[object] = []
    for config in runs:
        shape = (config.model, config.batch, config.execution.parallel)
        if shape not in seen:
            seen.append(shape)
            text += ["", *_shape(config, gpus, int(gigabytes * 1e9), device)]
    return text + _published(study, runs)


def _shape(config: Config, gpus: int, memory: int, device: Device | None) -> list[str]:
    parameters = count_parameters(config.model)
    kinds = ", ".join(
        f"{kind.replace('_', ' ')} {number:,}"
        for kind, number in asdict(parameters).items()
        if number and kind not in ("total", "active")
    )
    config = resolved(config, Allocation(gpus, on_gpu=True, memory=memory))
    head = " ".join(f"{part:>11}" for part in PARTS)
    sizes = ", ".join(map(str, tensor_sizes(config.model)))
    return [
        f"{parameters.total:,} parameters, {parameters.active:,} of them active ({kinds})",
        f"Tensor sizes that divide it: {sizes}; pipeline stages: those that divide "
        f"{config.model.layers} layers",
        f"On {gpus} GPUs of {memory / 1e9:g} GB: {describe(config, gpus)}; GB per GPU, estimated",
        f"  {'recomputing':<13}{head}",
        *(
            _memory_row(config.executed(recompute=recompute), gpus, memory, recompute)
            for recompute in get_args(Recompute)
        ),
        *_buckets(config, gpus),
        f"  {_alternative(config, gpus, memory, device)}",
    ]


def _buckets(config: Config, gpus: int) -> list[str]:
    """In how many parts gradients are summed while the backward pass goes on, if they are."""
    parallel = layout_of(config)
    if not parallel.overlap_gradients:
        return []
    held = held_parameters(config.model, parallel, stage=0)
    weights = held.dense + held.experts
    size = bucket_weights(weights, data_ranks(parallel, gpus))
    return [f"  gradients are summed in about {round(weights / size)} buckets"]


def _memory_row(config: Config, gpus: int, memory: int, recompute: str) -> str:
    estimate = estimate_memory(config, gpus, on_gpu=True)
    cells = " ".join(f"{size / 1e9:>11.1f}" for size in asdict(estimate).values())
    fits = "" if estimate.peak <= memory else "  does not fit"
    return f"  {recompute:<13}{cells}{fits}"


def _alternative(config: Config, gpus: int, memory: int, device: Device | None) -> str:
    free = config.executed(parallel="auto", micro_batch=None)
    try:
        choice = resolve(free, gpus, memory, on_gpu=True, device=device.name if device else None)
    except UserError as error:
        return str(error)
    return f'"auto" would take: {choice.reason}'


def _published(study: Study, runs: Sequence[Config]) -> list[str]:
    """MFU that hours imply: the FLOPs of our count over those that the hours could have had."""
    peak = peak_flops(PUBLISHED_DEVICE, "bfloat16")
    assert peak is not None
    text = []
    for config in runs:
        hours = study.published_gpu_hours.get(config.role)
        if hours is None:
            continue
        flops, plan = count_flops(config).total, plan_phases(config)
        text.append(
            f"{config.name}: published {hours:,.0f} {PUBLISHED_DEVICE}-hours for "
            f"{plan.latent_tokens(plan.steps):,} latent and {plan.raw_tokens(plan.steps):,} raw "
            f"tokens, {flops:.4g} FLOPs: {flops / (hours * 3600 * peak):.1%} MFU"
        )
    return ["", *text] if text else []
