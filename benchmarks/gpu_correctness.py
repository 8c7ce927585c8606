"""Losses and gradients of what `train` runs on a GPU, compared with a CPU's in float64."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from benchmarks.steps import PackageSteps, step_config, synthetic_tokens
from tst_study.config.phase_plan import plan_phases
from tst_study.errors import UserError
from tst_study.model.kernels import Groups, grouped_product, groups_of
from tst_study.model.layers import ATTENTION, attention_backend
from tst_study.model.model import build_model
from tst_study.parallel.forward_backward import micro_batches
from tst_study.parallel.process_groups import process_groups
from tst_study.superposition.steps import NEXT_TOKEN, Objective

# Relative: |a - b| / |b| of a loss, and the same of 2-norms for a tensor. In float32 sums of some
# thousand terms in another order differ by about 1e-6; a gradient passes many of them. A NaN is
# infinitely wrong.
LOSS_TOLERANCE = 1e-5
TENSOR_TOLERANCE = 1e-4
# In bfloat16 the tolerance is the larger of BFLOAT16_TOLERANCE and BFLOAT16_FACTOR times the error
# of the same tensor in bfloat16 on the CPU.
BFLOAT16_TOLERANCE = 2e-2
BFLOAT16_FACTOR = 3.0

IN_BFLOAT16 = " in bfloat16"
BAG_SIZE = 4
SEQUENCES, LENGTH = 4, 32
# Weights five times the usual, so that scores, routes and logits are far from uniform: with small
# ones every loss is log V, whatever the code does.
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"preset": "laptop-64", "initial_deviation": 0.1},
    "experts": {"preset": "laptop-moe", "initial_deviation": 0.1},
}
SUPERPOSITIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "output only": {"mode": "output_only"},
    "input only": {"mode": "input_only"},
    "power law": {"weighting": "power_law"},
    "sum to one": {"loss": "sum_to_one"},
    "binary cross-entropy": {"loss": "binary_cross_entropy"},
    "hinge": {"loss": "hinge"},
}
Values = dict[str, Tensor]
"""Tensors on the CPU, by `case: tensor`."""


def reference(request: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Compute on a CPU the values that a GPU must reproduce, and the tolerance of each in bfloat16,
    and leave them as a file."""
    values, tolerances = product_values("cpu"), {}
    for model in MODELS:
        exact = exact_values(model, request.small)
        values |= exact
        for key, value in model_values("cpu", model, request.small, "bfloat16").items():
            error = relative_error(value, exact[key.removesuffix(IN_BFLOAT16)])
            tolerances[key] = max(BFLOAT16_TOLERANCE, BFLOAT16_FACTOR * error)
    torch.save((values, tolerances), request.work / "reference.pt")
    yield "tensors", len(values)


def correctness(request: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Make all checks: once in float32, and in bfloat16 with each attention backend that takes the
    model's heads. Yields these backends by model, then, after each group, the checks so far."""
    device, small = request.device, request.small
    expected, tolerances = torch.load(request.work / "reference.pt")
    groups: dict[str, Callable[[], Values]] = {"product": partial(product_values, device)}
    backends = {model: backends_of(model, device) for model in MODELS}
    yield "attention", backends
    for model in MODELS:
        groups[model] = partial(model_values, device, model, small)
        for name in backends[model]:
            group = partial(model_values, device, model, small, "bfloat16", name)
            groups[f"{model}, bfloat16 by {name}"] = group
    checks: list[dict[str, Any]] = []
    for name, group in groups.items():
        backend = name.partition(" by ")[2]
        for check in checked(name, group, expected, tolerances):
            checks.append(check | ({"attention": backend} if backend else {}))
        yield "checks", checks


def backends_of(model: str, device: str) -> list[str]:
    """Return the attention backends that take a model's heads; not all take grouped queries."""
    config = step_config(MODELS[model], SEQUENCES, LENGTH, dtype="bfloat16", device=device)
    backends = []
    for name in ATTENTION:
        with suppress(UserError):
            backends.append(
                attention_backend(config.executed(attention=name), torch.device(device))
            )
    return backends


def checked(
    name: str, group: Callable[[], Values], expected: Values, tolerances: dict[str, float]
) -> list[dict[str, Any]]:
    """Return up to three checks for each case (the name before the colon): one of its loss and one
    of its other tensors in float32, and one of everything in bfloat16. A check holds the value that
    is worst relative to its tolerance. A group that raises an error gives one failed check, with
    the error in place of the tensor's name."""
    worst: dict[tuple[str, str], tuple[float, float, str]] = {}
    try:
        for key, value in group().items():
            case, _, tensor = key.partition(": ")
            kind, tolerance = "tensors", TENSOR_TOLERANCE
            if tensor == "loss":
                kind, tolerance = "loss", LOSS_TOLERANCE
            if tensor.endswith(IN_BFLOAT16):
                kind, tolerance = "bfloat16", tolerances.get(key, BFLOAT16_TOLERANCE)
            like = key if key in expected else key.removesuffix(IN_BFLOAT16)
            result = relative_error(value, expected[like]) / tolerance, tolerance, tensor
            worst[case, kind] = max(worst.get((case, kind), result), result)
    except Exception as error:
        worst = {(name, "failed"): (math.inf, 1.0, f"{type(error).__name__}: {error}"[:500])}
    return [
        {
            "name": case,
            "kind": kind,
            "error": over * tolerance,
            "tolerance": tolerance,
            "worst": tensor,
            "passed": over <= 1.0,
        }
        for (case, kind), (over, tolerance, tensor) in worst.items()
    ]


def relative_error(value: Tensor, expected: Tensor) -> float:
    """|value - expected| / |expected|, of 2-norms in float64; infinite where it is NaN."""
    difference = (value.double() - expected.double()).norm()
    error = float(difference / expected.double().norm().clamp(min=1e-300))
    return math.inf if math.isnan(error) else error


def objectives_of(model: str, small: bool) -> dict[str, Objective]:
    """Return the objectives to check, by name: the next token, also with whole layers recomputed,
    and those of `SUPERPOSITIONS`: all for the dense model, and the first two ("full" and "output
    only") for experts and in small runs."""
    names = list(SUPERPOSITIONS)[: 2 if small or model == "experts" else None]
    objectives = {"next token": NEXT_TOKEN, "next token, computed again": NEXT_TOKEN}
    for name in names:
        config = step_config(
            MODELS[model], SEQUENCES, LENGTH, bag_size=BAG_SIZE, **SUPERPOSITIONS[name]
        )
        objectives[name] = plan_phases(config).objective(0)
    return objectives


def model_values(
    device: str, model: str, small: bool, dtype: Any = "float32", attention: str | None = None
) -> Values:
    """Return the loss and each parameter's gradient under every objective; on a GPU with compiled
    layers, as `train` computes them. `attention`: the backend to use; by default torch chooses."""
    config = step_config(MODELS[model], SEQUENCES, LENGTH, dtype=dtype, device=device)
    compiler = "inductor" if device == "cuda" else None
    objectives, suffix = objectives_of(model, small), IN_BFLOAT16 if dtype == "bfloat16" else ""
    values: Values = {}
    by = sdpa_kernel(ATTENTION[attention]) if attention else nullcontext()
    with by, process_groups(config) as ranks:
        for recompute in ("none", "layer"):
            steps = PackageSteps(config.executed(recompute=recompute), ranks.device, compiler)
            for name, objective in objectives.items():
                if name.endswith("again") != (recompute == "layer"):
                    continue
                loss = steps.gradients(*_tokens(config, objective, ranks.device), objective)
                values[f"{model}, {name}: loss{suffix}"] = loss.cpu()
                for parameter_name, parameter in steps.model.named_parameters():
                    key = f"{model}, {name}: gradient of {parameter_name}{suffix}"
                    values[key] = parameter.main_grad.cpu().clone()
            torch.compiler.reset()
    return values


def exact_values(model: str, small: bool) -> Values:
    """Compute loss and gradients in float64 on the CPU, by autograd alone and with a product for
    each expert. Only a router's scores are float32, as everywhere."""
    config = step_config(MODELS[model], SEQUENCES, LENGTH)
    values: Values = {}
    loop = mock.patch("tst_study.model.grouped_experts.grouped_product", _product_of_each_group)
    with loop, process_groups(config) as ranks:
        exact = build_model(config).double()
        table = exact.rotary(LENGTH).double()
        exact.rotary.forward = lambda length: table
        for name, objective in objectives_of(model, small).items():
            ids, labels = _tokens(config, objective, ranks.device)
            counts = objective.count_targets(labels)
            exact.zero_grad()
            loss = exact(*micro_batches(ids, labels, objective, counts, len(ids))[0])
            loss.backward()
            values[f"{model}, {name}: loss"] = loss.detach()
            for parameter_name, parameter in exact.named_parameters():
                values[f"{model}, {name}: gradient of {parameter_name}"] = parameter.grad.clone()
    return values


def _tokens(config: Any, objective: Objective, device: torch.device) -> tuple[Tensor, Tensor]:
    ids, labels = synthetic_tokens(config, objective.stride, device)
    labels[0, :3] = -100
    return ids, labels


def _product_of_each_group(rows: Tensor, weights: Tensor, groups: Groups) -> Tensor:
    parts = rows.tensor_split(groups.ends[:-1].tolist())
    return torch.cat([part @ weight.T for part, weight in zip(parts, weights, strict=True)])


def product_values(device: str) -> Values:
    """Grouped products with an empty group, which no model of ours is sure to have."""
    generator = torch.Generator().manual_seed(1)
    rows, weights, of_product = (
        torch.randn(*shape, generator=generator).to(device, torch.bfloat16)
        for shape in ((24, 16), (4, 32, 16), (24, 32))
    )
    counts = torch.tensor([8, 0, 8, 8], device=device)
    # This is freed at once, so that memory which is allocated next and never written, such as the
    # gradient of the empty expert's weights, is full of NaN.
    torch.full((4, 32, 16), torch.nan, device=device, dtype=torch.bfloat16)
    product = grouped_product(rows.requires_grad_(), weights.requires_grad_(), groups_of(counts))
    product.backward(of_product)
    values: Values = {}
    for name, tensor in (("values", product), ("rows", rows.grad), ("weights", weights.grad)):
        values[f"an expert without positions: {name}{IN_BFLOAT16}"] = tensor.detach().cpu()
    return values
