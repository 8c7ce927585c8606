"""The same numbers on a GPU as on a CPU: losses and gradients of tiny models and of the kernels."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.steps import PackageSteps, step_config, synthetic_tokens
from tst_study.model.kernels import grouped_product
from tst_study.model.model import superposition_objective
from tst_study.parallel.process_groups import process_groups
from tst_study.superposition import BAG_LOSS_KINDS, bag_embedding, bag_loss, linear_bag_loss
from tst_study.superposition.method import NEXT_TOKEN

# Relative: |a - b| / |b| of a loss, and the same of 2-norms for a tensor. In float32 sums of some
# thousand terms in another order differ by about 1e-6; a gradient passes many of them.
LOSS_TOLERANCE = 1e-5
TENSOR_TOLERANCE = 1e-4
BFLOAT16_TOLERANCE = 1e-2

KERNELS = "kernels"
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


@dataclass(frozen=True)
class Check:
    name: str
    error: float
    """Relative, of the worst tensor."""
    tolerance: float
    worst: str
    """The tensor that it is."""
    passed: bool


def reference(request: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """On a CPU: the values that a GPU must reproduce, left as a file of tensors."""
    values = kernel_values("cpu")
    for model in MODELS:
        values |= model_values("cpu", model, request.small)
    torch.save(values, request.work / "reference.pt")
    yield "tensors", len(values)


def correctness(request: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """All checks, as dictionaries of `Check`, and what is reported without being required."""
    device, small = request.device, request.small
    expected = torch.load(request.work / "reference.pt")
    groups: dict[str, Callable[[], list[Check]]] = {
        "kernels": lambda: compare(kernel_values(device), expected),
        "an expert without positions": lambda: [empty_expert_check(device)],
    }
    for model in MODELS:
        in_bfloat16 = partial(bfloat16_checks, model, device, expected, small)
        values = partial(model_values, device, model, small)
        groups[f"{model}, float32"] = lambda values=values: compare(values(), expected)  # type: ignore[misc]
        groups[f"{model}, bfloat16"] = in_bfloat16
    checks: list[Check] = []
    for name, group in groups.items():
        checks += made(name, group)
        yield "checks", [asdict(check) for check in checks]
    yield "repeatable", {name: is_repeatable(device, name) for name in MODELS}


def made(name: str, group: Callable[[], list[Check]]) -> list[Check]:
    """The group's checks, or one that failed and says how it ended: the others are still made."""
    try:
        return group()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"[:500]
        return [Check(name, math.inf, 0.0, said, passed=False)]


def model_values(device: str, model: str, small: bool = False) -> dict[str, Tensor]:
    """Loss and gradients by parameter, by `model, objective: tensor`, in float32 on the CPU; for
    the next token also with whole layers computed again."""
    values: dict[str, Tensor] = {}
    for objective, steps, run in _cases(device, "float32", model, small):
        case = f"{model}, {objective}"
        values[f"{case}: loss"] = run()
        for name, parameter in steps.model.named_parameters():
            values[f"{case}: gradient of {name}"] = parameter.main_grad.cpu().clone()
    return values


def _cases(
    device: str, dtype: Any, model: str, small: bool
) -> Iterator[tuple[str, PackageSteps, Any]]:
    """(objective, its steps, a function that fills the gradients and returns the loss)."""
    # Every loss on the dense model; of experts and in small runs, one of each mode.
    names = list(SUPERPOSITIONS)[: 2 if small or model == "experts" else None]
    objectives = {"next token": NEXT_TOKEN}
    for name in names:
        chosen = step_config(
            MODELS[model], SEQUENCES, LENGTH, bag_size=BAG_SIZE, **SUPERPOSITIONS[name]
        ).superposition
        objectives[name] = superposition_objective(chosen)
    config = step_config(MODELS[model], SEQUENCES, LENGTH, dtype=dtype, device=device)
    again = {"next token": NEXT_TOKEN}
    for recompute, of_it in (("none", objectives), ("layer", again)):
        with process_groups(config) as ranks:
            steps = PackageSteps(config.executed(recompute=recompute), ranks.device)
            for name, objective in of_it.items():
                said = name if recompute == "none" else f"{name}, computed again"
                yield said, steps, lambda o=objective, s=steps: _gradients(s, o)


def _gradients(steps: PackageSteps, objective: Any) -> Tensor:
    ids, labels = synthetic_tokens(steps.config, objective.stride, steps.device)
    labels[0, :3] = -100
    return steps.gradients(ids, labels, objective).cpu()


def kernel_values(device: str) -> dict[str, Tensor]:
    """Bag embedding, every bag loss, and head and loss in one pass (on a GPU as it is compiled) by
    themselves, with ignored labels and repeated tokens."""
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
        values[f"{KERNELS}, {name}: loss"] = loss.detach().cpu()
        values[f"{KERNELS}, {name}: gradient of logits"] = z.grad.cpu()
    weight = table.to(device).requires_grad_()
    embedded = bag_embedding(weight, bags.to(device))
    embedded.backward(upstream.to(device))
    values[f"{KERNELS}, bag embedding: values"] = embedded.detach().cpu()
    values[f"{KERNELS}, bag embedding: gradient of table"] = weight.grad.cpu()

    hidden = upstream.transpose(0, 1).contiguous().to(device).requires_grad_()
    head = table.to(device).requires_grad_()
    on_gpu = hidden.is_cuda
    loss = linear_bag_loss(hidden, head, labels.to(device), size, compiled=on_gpu)
    loss.backward()
    values[f"{KERNELS}, head and loss: loss"] = loss.detach().cpu()
    values[f"{KERNELS}, head and loss: gradient of input"] = hidden.grad.cpu()
    values[f"{KERNELS}, head and loss: gradient of head"] = head.grad.cpu()
    return values


def compare(values: dict[str, Tensor], expected: dict[str, Tensor]) -> list[Check]:
    """One check of the losses and one of the worst tensor per case (the name before the colon)."""
    worst: dict[tuple[str, float], tuple[float, str]] = {}
    for key, value in values.items():
        case, _, tensor = key.partition(": ")
        tolerance = LOSS_TOLERANCE if tensor == "loss" else TENSOR_TOLERANCE
        error = relative_error(value, expected[key])
        so_far = worst.get((case, tolerance), (-1.0, ""))
        worst[case, tolerance] = max(so_far, (error, tensor), key=_nan_last)
    return [
        Check(case, error, tolerance, tensor, error <= tolerance)
        for (case, tolerance), (error, tensor) in worst.items()
    ]


def _nan_last(error_of_tensor: tuple[float, str]) -> tuple[bool, float]:
    error, _ = error_of_tensor
    return math.isnan(error), error


def relative_error(value: Tensor, expected: Tensor) -> float:
    """|value - expected| / |expected|, of 2-norms in float64; nan stays nan."""
    difference = float((value.double() - expected.double()).norm())
    size = float(expected.double().norm())
    return difference / size if size else (0.0 if difference == 0.0 else math.inf)


def empty_expert_check(device: str) -> Check:
    """Grouped products in bfloat16, one group of them empty, are those group by group; memory that
    is not written to would show, since it was full of NaN before."""
    generator = torch.Generator().manual_seed(3)
    rows, weights, upstream = (
        torch.randn(*shape, generator=generator).to(device, torch.bfloat16)
        for shape in ((24, 16), (4, 32, 16), (24, 32))
    )
    ends = torch.tensor([8, 8, 16, 24], dtype=torch.int32, device=device)
    torch.full((4, 32, 16), torch.nan, device=device, dtype=torch.bfloat16)  # freed at once
    mine = [rows.clone().requires_grad_(), weights.clone().requires_grad_()]
    value = grouped_product(*mine, ends)
    value.backward(upstream)
    plain = [rows.clone().requires_grad_(), weights.clone().requires_grad_()]
    groups = zip(plain[0].split([8, 0, 8, 8]), plain[1], strict=True)
    expected = torch.cat([group @ weight.T for group, weight in groups])
    expected.backward(upstream)
    pairs = {"values": (value.detach(), expected.detach())}
    pairs |= {f"gradient of {name}": (m.grad, p.grad) for name, m, p in
              zip(("rows", "weights"), mine, plain, strict=True)}  # fmt: skip
    errors = {name: relative_error(*pair) for name, pair in pairs.items()}
    tensor, error = max(errors.items(), key=lambda item: _nan_last(item[::-1]))
    tolerance = BFLOAT16_TOLERANCE
    return Check("an expert without positions", error, tolerance, tensor, error <= tolerance)


def bfloat16_checks(
    model: str, device: str, expected: dict[str, Tensor], small: bool
) -> list[Check]:
    """Losses in bfloat16 near those in float32."""
    checks = []
    for objective, _, run in _cases(device, "bfloat16", model, small):
        error = relative_error(run(), expected[f"{model}, {objective}: loss"])
        name = f"{model}, {objective}, bfloat16"
        passed = error <= BFLOAT16_TOLERANCE
        checks.append(Check(name, error, BFLOAT16_TOLERANCE, "loss", passed))
    return checks


def is_repeatable(device: str, model: str) -> bool:
    """Whether three superposed steps, made twice, end with the same bits in every weight."""
    config = step_config(
        MODELS[model], SEQUENCES, LENGTH, device=device, bag_size=BAG_SIZE, step_ratio=0.5
    )
    ends = []
    for _ in range(2):
        with process_groups(config) as ranks:
            steps = PackageSteps(config, ranks.device)
            step = steps.step(superposition_objective(config.superposition))
            for _ in range(3):
                step()
            ends.append([p.detach().cpu().clone() for p in steps.model.parameters()])
    return all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
