"""The same numbers on a GPU as on a CPU: losses and gradients of tiny models and of the kernels."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.steps import PackageSteps, step_config, synthetic_tokens
from tst_study.config.phase_plan import plan_phases
from tst_study.model.kernels import grouped_product
from tst_study.parallel.process_groups import process_groups
from tst_study.superposition import BAG_LOSS_KINDS, bag_embedding, bag_loss, linear_bag_loss
from tst_study.superposition.steps import NEXT_TOKEN

# Relative: |a - b| / |b| of a loss, and the same of 2-norms for a tensor. In float32 sums of some
# thousand terms in another order differ by about 1e-6; a gradient passes many of them. A NaN is
# infinitely wrong.
LOSS_TOLERANCE = 1e-5
TENSOR_TOLERANCE = 1e-4
BFLOAT16_TOLERANCE = 1e-2

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


def reference(request: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """On a CPU: the values that a GPU must reproduce, left as a file of tensors."""
    values = kernel_values("cpu")
    for model in MODELS:
        values |= model_values("cpu", model, request.small)
    torch.save(values, request.work / "reference.pt")
    yield "tensors", len(values)


def correctness(request: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """All checks, and what is reported without being required: whether bits repeat."""
    device, small = request.device, request.small
    expected = torch.load(request.work / "reference.pt")
    groups = {"kernels": partial(kernel_values, device)}
    for model in MODELS:
        for dtype in ("float32", "bfloat16"):
            groups[f"{model}, {dtype}"] = partial(model_values, device, model, small, dtype)
    checks: list[dict[str, Any]] = []
    for name, group in groups.items():
        checks += checked(name, group, expected)
        yield "checks", checks
    for model in MODELS:
        once, again = (model_values(device, model, small=True) for _ in range(2))
        yield f"{model}, repeatable", all(torch.equal(once[name], again[name]) for name in once)


def checked(
    name: str, group: Callable[[], dict[str, Tensor]], expected: dict[str, Tensor]
) -> list[dict[str, Any]]:
    """One check of each case (a name before the colon) and tolerance, with its worst tensor. Of a
    group that throws, one that failed and says how it ended: the others are still made."""
    worst: dict[tuple[str, float], tuple[float, str]] = {}
    try:
        for key, value in group().items():
            case, _, tensor = key.partition(": ")
            tolerance = LOSS_TOLERANCE if tensor == "loss" else TENSOR_TOLERANCE
            if tensor.endswith(IN_BFLOAT16):
                tolerance = BFLOAT16_TOLERANCE
            like = key if key in expected else key.removesuffix(IN_BFLOAT16)
            error = relative_error(value, expected[like])
            found = worst.get((case, tolerance), (-1.0, ""))
            worst[case, tolerance] = max(found, (error, tensor))
    except Exception as error:
        worst = {(name, 0.0): (math.inf, f"{type(error).__name__}: {error}"[:500])}
    return [
        {
            "name": case,
            "error": error,
            "tolerance": tolerance,
            "worst": tensor,
            "passed": error <= tolerance,
        }
        for (case, tolerance), (error, tensor) in worst.items()
    ]


def relative_error(value: Tensor, expected: Tensor) -> float:
    """|value - expected| / |expected|, of 2-norms in float64; infinite where it is NaN."""
    difference = (value.double() - expected.double()).norm()
    error = float(difference / expected.double().norm().clamp(min=1e-300))
    return math.inf if math.isnan(error) else error


def model_values(
    device: str, model: str, small: bool, dtype: Literal["float32", "bfloat16"] = "float32"
) -> dict[str, Tensor]:
    """Loss and gradients by parameter, on the CPU, by `model, objective: tensor`; in bfloat16 the
    loss alone. For the next token also with whole layers computed again."""
    # Every loss on the dense model; of experts and in small runs, one of each mode.
    names = list(SUPERPOSITIONS)[: 2 if small or model == "experts" else None]
    objectives = {"next token": NEXT_TOKEN}
    for name in names:
        chosen = step_config(
            MODELS[model], SEQUENCES, LENGTH, bag_size=BAG_SIZE, **SUPERPOSITIONS[name]
        )
        objectives[name] = plan_phases(chosen).objective(0)
    config = step_config(MODELS[model], SEQUENCES, LENGTH, dtype=dtype, device=device)
    again = {"next token, computed again": NEXT_TOKEN}
    values: dict[str, Tensor] = {}
    for recompute, of_it in (("none", objectives), ("layer", again)):
        with process_groups(config) as ranks:
            steps = PackageSteps(config.executed(recompute=recompute), ranks.device)
            for name, objective in of_it.items():
                ids, labels = synthetic_tokens(config, objective.stride, ranks.device)
                labels[0, :3] = -100
                loss = steps.gradients(ids, labels, objective).cpu()
                case = f"{model}, {name}"
                if dtype == "bfloat16":
                    values[f"{case}: loss{IN_BFLOAT16}"] = loss
                    continue
                values[f"{case}: loss"] = loss
                for parameter_name, parameter in steps.model.named_parameters():
                    gradient = parameter.main_grad.cpu().clone()
                    values[f"{case}: gradient of {parameter_name}"] = gradient
    return values


def kernel_values(device: str) -> dict[str, Tensor]:
    """Bag embedding, every bag loss, and head and loss in one pass (on a GPU as it is compiled) by
    themselves, with ignored labels and repeated tokens; grouped products with an empty group."""
    generator = torch.Generator().manual_seed(1)
    size, rows, length, vocabulary, width = BAG_SIZE, 3, 40, 500, 48
    logits = torch.randn(rows, length, vocabulary, generator=generator)
    labels = torch.randint(vocabulary, (rows, length * size), generator=generator)
    labels[0, ::7] = -100
    labels[1, : 2 * size] = 5
    table = torch.randn(vocabulary, width, generator=generator)
    bags = torch.randint(vocabulary, (rows, length, size), generator=generator)
    upstream = torch.randn(rows, length, width, generator=generator)

    values = {}
    # On a CPU the bag of one is `F.cross_entropy`, bit for bit.
    losses = [(f"bag loss, {kind}", kind, size) for kind in BAG_LOSS_KINDS]
    for name, kind, s in [*losses, ("a bag of one", "mce", 1)]:
        z = logits.to(device).requires_grad_()
        loss = bag_loss(z, labels[:, : length * s].to(device), s, kind=kind)
        loss.backward()
        values[f"kernels, {name}: loss"] = loss.detach().cpu()
        values[f"kernels, {name}: gradient of logits"] = z.grad.cpu()
    weight = table.to(device).requires_grad_()
    embedded = bag_embedding(weight, bags.to(device))
    embedded.backward(upstream.to(device))
    values["kernels, bag embedding: values"] = embedded.detach().cpu()
    values["kernels, bag embedding: gradient of table"] = weight.grad.cpu()

    hidden = upstream.transpose(0, 1).contiguous().to(device).requires_grad_()
    head = table.to(device).requires_grad_()
    on_gpu = hidden.is_cuda
    loss = linear_bag_loss(hidden, head, labels.to(device), size, compiled=on_gpu)
    loss.backward()
    values["kernels, head and loss: loss"] = loss.detach().cpu()
    values["kernels, head and loss: gradient of input"] = hidden.grad.cpu()
    values["kernels, head and loss: gradient of head"] = head.grad.cpu()

    rows, weights, of_product = (
        torch.randn(*shape, generator=generator).to(device, torch.bfloat16)
        for shape in ((24, 16), (4, 32, 16), (24, 32))
    )
    ends = torch.tensor([8, 8, 16, 24], dtype=torch.int32, device=device)
    # Freed at once: memory that is then not written to is full of NaN.
    torch.full((4, 32, 16), torch.nan, device=device, dtype=torch.bfloat16)
    product = grouped_product(rows.requires_grad_(), weights.requires_grad_(), ends)
    product.backward(of_product)
    for name, tensor in (("values", product), ("rows", rows.grad), ("weights", weights.grad)):
        values[f"kernels, an expert without positions: {name}{IN_BFLOAT16}"] = tensor.detach().cpu()
    return values
