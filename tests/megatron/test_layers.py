"""The parts of a layer that have their own backward pass agree with the formula they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tiny_runs import tiny
from tst_study.megatron.cpu_backend import working_on
from tst_study.megatron.model import transformer_config
from tst_study.megatron.rms_norm import RMSNorm
from tst_study.megatron.rotary import RotaryTable, rotate
from tst_study.megatron.swiglu import swiglu

SHAPE = batch, heads, length, head_size = 2, 3, 7, 8


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_is_torchs(words: Path, dtype: torch.dtype) -> None:
    with working_on(torch.device("cpu")):
        norm = RMSNorm(transformer_config(tiny(words)), 48, eps=1e-3).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(random(48))
    ours = random(5, 3, 48, dtype=dtype).requires_grad_()
    plain = ours.detach().clone().requires_grad_()
    weight = norm.weight.detach().clone().requires_grad_()
    found, expected = norm(ours), F.rms_norm(plain, (48,), weight, eps=1e-3)
    gradient = random(*found.shape, dtype=dtype)
    found.backward(gradient)
    expected.backward(gradient)
    for mine, other in (
        (found, expected),
        (ours.grad, plain.grad),
        (norm.weight.grad, weight.grad),
    ):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_swiglu_is_its_formula_to_the_bit(dtype: torch.dtype) -> None:
    ours = random(5, 3, 12, dtype=dtype).requires_grad_()
    formula = ours.detach().clone().requires_grad_()
    gate, up = formula.chunk(2, dim=-1)
    expected, found = F.silu(gate) * up, swiglu(ours)
    assert torch.equal(found, expected)
    gradient = random(*found.shape, dtype=dtype)
    expected.backward(gradient)
    found.backward(gradient)
    assert ours.grad is not None
    assert formula.grad is not None
    assert torch.equal(ours.grad, formula.grad)


def test_a_rotation_is_a_product_of_complex_numbers_forward_and_backward() -> None:
    ours = random(length, batch, heads, head_size).requires_grad_()  # Megatron's order
    formula = ours.detach().clone().requires_grad_()
    with working_on(torch.device("cpu")):
        found = rotate(ours.permute(1, 2, 0, 3), RotaryTable(head_size, 10_000.0)(length))
    first, second = formula.permute(1, 2, 0, 3).double().chunk(2, dim=-1)
    exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
    angles = torch.outer(torch.arange(length, dtype=torch.float64), 10_000.0**-exponents)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat([turned.real, turned.imag], dim=-1)
    assert found.shape == SHAPE
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
    gradient = random(*SHAPE)
    found.backward(gradient)
    expected.backward(gradient.double())
    torch.testing.assert_close(ours.grad, formula.grad, rtol=1e-5, atol=1e-5)


def test_half_precision_is_rotated_in_float32() -> None:
    x = random(*SHAPE, dtype=torch.bfloat16).requires_grad_()
    with working_on(torch.device("cpu")):
        table = RotaryTable(head_size, 10_000.0)(length)
    found = rotate(x, table)
    assert torch.equal(found, rotate(x.detach().float(), table).bfloat16())
    found.backward(torch.ones_like(found))
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16
