"""Checks the losses and gradients that `train`'s code gives on a GPU against a CPU's in float64.

The functions `reference` and `correctness` are the parts of `benchmarks/gpu.py` with these names.
One grouped product, with an expert that gets no positions, is checked as well, against the CPU's in
bfloat16.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.steps import PackageSteps, attention_of, step_config, synthetic_tokens
from tst_study.atomic_files import written_atomically
from tst_study.config.phase_plan import plan_phases
from tst_study.data.integrity import sampled_sha256
from tst_study.model.kernels import Groups, grouped_product, groups_of
from tst_study.model.layers import attention_backend
from tst_study.model.model import build_model
from tst_study.parallel.forward_backward import micro_batches
from tst_study.parallel.process_groups import process_groups
from tst_study.superposition.steps import NEXT_TOKEN, Objective

# The tolerances are relative errors (`relative_error`). In float32, sums of some thousand terms in
# different orders differ by about 1e-6, and a gradient is the result of many such sums.
LOSS_TOLERANCE = 1e-5
TENSOR_TOLERANCE = 1e-4
# In bfloat16 the tolerance is BFLOAT16_TOLERANCE, or BFLOAT16_FACTOR times the error of the same
# tensor in bfloat16 on the CPU, whichever is larger.
BFLOAT16_TOLERANCE = 2e-2
BFLOAT16_FACTOR = 3.0

IN_BFLOAT16 = " in bfloat16"
BAG_SIZE = 4
SEQUENCES, LENGTH = 4, 32
# The initial weights are five times as large as usual, so that attention scores, routes and logits
# are far from uniform. With small ones every loss would be near log V, whatever the code does.
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
"""Tensors on the CPU. A key is the name of a case and that of the tensor: `dense, full: loss`."""


def reference(request: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Compute on a CPU the values that a GPU must reproduce, and the tolerances of the models'
    values in bfloat16. Write both to `reference.pt` beside the record.

    A file that is there already, as it is where it was carried to the GPU's machine, is kept if the
    same code computed it. Yields where the values come from, and their number.
    """
    path, code = request.to / "reference.pt", _code(request.small)
    with suppress(Exception):  # none, or a damaged one
        kept = torch.load(path)
        if kept["code"] == code:
            yield "computed", f"before, with torch {kept['torch']}"
            return
    yield "computed", "here: the file is damaged or of other code" if path.exists() else "here"
    values, tolerances = product_values("cpu"), {}
    for model in MODELS:
        exact = exact_values(model, request.small)
        values |= exact
        for key, value in model_values("cpu", model, request.small, "bfloat16").items():
            error = relative_error(value, exact[key.removesuffix(IN_BFLOAT16)])
            tolerances[key] = max(BFLOAT16_TOLERANCE, BFLOAT16_FACTOR * error)
    kept = {"code": code, "torch": str(torch.__version__), "values": (values, tolerances)}
    with written_atomically(path) as file:
        torch.save(kept, file)
    yield "tensors", len(values)


def _code(small: bool) -> str:
    """Return what the reference depends on: the package's code and this benchmark's, as a digest,
    and whether the sizes are tiny."""
    here = Path(__file__).parent
    package = sorted((here.parent / "tst_study").rglob("*.py"))
    return f"{sampled_sha256([Path(__file__), here / 'steps.py', *package])}, small = {small}"


def correctness(request: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Check the grouped product, and each model in bfloat16 and in float32, with the attention that
    `train` chooses there; then in bfloat16 layers that are computed again. Yields the attention of
    each, and then, after each group of checks, all checks so far. Reads `reference.pt`."""
    device, small = request.device, request.small
    expected, tolerances = torch.load(request.to / "reference.pt")["values"]
    groups: dict[str, Callable[[], Values]] = {"product": partial(product_values, device)}
    attention = {}
    for dtype, recompute in (("bfloat16", "none"), ("float32", "none"), ("bfloat16", "layer")):
        for model in MODELS:
            config = step_config(MODELS[model], SEQUENCES, LENGTH, dtype=dtype, device=device)
            name = f"{model}, {dtype}"
            attention[name] = attention_backend(config, torch.device(device))
            values = partial(model_values, device, model, small, dtype, recompute)
            groups[f"{name}, recompute = {recompute}"] = values
    yield "attention", attention
    checks: list[dict[str, Any]] = []
    for name, group in groups.items():
        checks += [{"group": name} | row for row in checked(name, group, expected, tolerances)]
        yield "checks", checks


def checked(
    name: str, group: Callable[[], Values], expected: Values, tolerances: dict[str, float]
) -> list[dict[str, Any]]:
    """Return up to three checks for each case (the part of a key before the colon): one of its loss
    and one of its other tensors in float32, and one of everything in bfloat16.

    A check records the tensor whose error is the largest relative to its tolerance. If the group
    raises an exception, there is one failed check, with the exception in place of the tensor's
    name.
    """
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
    """Return |value - expected| / |expected|, with 2-norms in float64; infinite for a NaN."""
    difference = (value.double() - expected.double()).norm()
    error = float(difference / expected.double().norm().clamp(min=1e-300))
    return math.inf if math.isnan(error) else error


def objectives_of(model: str, small: bool) -> dict[str, Objective]:
    """Return the objectives to check, by name.

    The dense model has all of `SUPERPOSITIONS`, or only the first two ("full" and "output only") if
    `small` is true. The model with experts always has only these two.
    """
    names = list(SUPERPOSITIONS)[: 2 if small or model == "experts" else None]
    objectives = {"next token": NEXT_TOKEN}
    for name in names:
        config = step_config(
            MODELS[model], SEQUENCES, LENGTH, bag_size=BAG_SIZE, **SUPERPOSITIONS[name]
        )
        objectives[name] = plan_phases(config).objective(0)
    return objectives


def model_values(
    device: str, model: str, small: bool, dtype: Any = "float32", recompute: Any = "none"
) -> Values:
    """Return a model's loss and each parameter's gradient under every objective, computed as
    `train` computes them; on a GPU the layers are compiled. Layers that are computed again in the
    backward pass (`recompute = "layer"`) have next-token prediction alone."""
    config = step_config(MODELS[model], SEQUENCES, LENGTH, dtype=dtype, device=device)
    compiler = "inductor" if device == "cuda" else None
    objectives, suffix = objectives_of(model, small), IN_BFLOAT16 if dtype == "bfloat16" else ""
    if recompute == "layer":
        objectives = {"next token": NEXT_TOKEN}
    values: Values = {}
    with process_groups(config) as ranks, attention_of(config, ranks.device):
        steps = PackageSteps(config.executed(recompute=recompute), ranks.device, compiler)
        for name, objective in objectives.items():
            loss = steps.gradients(*_tokens(config, objective, ranks.device), objective)
            values[f"{model}, {name}: loss{suffix}"] = loss.cpu()
            for parameter_name, parameter in steps.model.named_parameters():
                key = f"{model}, {name}: gradient of {parameter_name}{suffix}"
                values[key] = parameter.main_grad.cpu().clone()
        torch.compiler.reset()
    return values


def exact_values(model: str, small: bool) -> Values:
    """Return the losses and gradients of `model_values` in float64. They are computed on the CPU,
    without gradient buffers and with a separate matrix product for each expert. As in every run,
    the rotary table and the scores of a router are computed in float32."""
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
    """Return synthetic token ids and labels. Three of the labels count for nothing (-100)."""
    ids, labels = synthetic_tokens(config, objective.stride, device)
    labels[0, :3] = -100
    return ids, labels


def _product_of_each_group(rows: Tensor, weights: Tensor, groups: Groups) -> Tensor:
    parts = rows.tensor_split(groups.ends[:-1].tolist())
    return torch.cat([part @ weight.T for part, weight in zip(parts, weights, strict=True)])


def product_values(device: str) -> Values:
    """Return a grouped product and its gradients, in bfloat16, for four experts of which one gets
    no positions. None of the models here is sure to have such an expert."""
    generator = torch.Generator().manual_seed(1)
    rows, weights, of_product = (
        torch.randn(*shape, generator=generator).to(device, torch.bfloat16)
        for shape in ((24, 16), (4, 32, 16), (24, 32))
    )
    counts = torch.tensor([8, 0, 8, 8], device=device)
    # This tensor is freed at once. Memory that is allocated next and never written then holds NaN.
    # The gradient of the empty expert's weights is such memory, unless the code fills it.
    torch.full((4, 32, 16), torch.nan, device=device, dtype=torch.bfloat16)
    product = grouped_product(rows.requires_grad_(), weights.requires_grad_(), groups_of(counts))
    product.backward(of_product)
    values: Values = {}
    for name, tensor in (("values", product), ("rows", rows.grad), ("weights", weights.grad)):
        values[f"an expert without positions: {name}{IN_BFLOAT16}"] = tensor.detach().cpu()
    return values
