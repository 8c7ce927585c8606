"""Every operation with a backward pass of our own is what autograd makes of its formula."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from tests.tiny_runs import tiny
from tst_study.model import kernels, layers
from tst_study.model.kernels import RotaryTable, grouped_product, groups_of, rms_norm, rotate
from tst_study.model.megatron_patches import working_on

SHAPE = batch, heads, length, head_size = 2, 3, 7, 8
THETA, EPSILON = 10_000.0, 1e-3
GROUP_SIZES = torch.tensor([3, 0, 6, 1])
OF_COPY = torch.tensor([0, 2, 3, 1, 2, 4, 0, 1, 4, 3])
COPIES_OF = OF_COPY.argsort(stable=True).view(5, 2)


def rotation_table() -> Tensor:
    with working_on(torch.device("cpu")):
        return RotaryTable(head_size, THETA)(length)


def rotated_as_complex_numbers(x: Tensor) -> Tensor:
    """x (length, batch, heads, head_size), Megatron's order."""
    first, second = x.permute(1, 2, 0, 3).double().chunk(2, dim=-1)
    exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
    angles = torch.outer(torch.arange(length, dtype=torch.float64), THETA**-exponents)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1).to(x.dtype)


def product_of_each_group(rows: Tensor, weights: Tensor) -> Tensor:
    groups = zip(rows.split(GROUP_SIZES.tolist()), weights, strict=True)
    return torch.cat([group @ weight.T for group, weight in groups])


@dataclass(frozen=True)
class Kernel:
    kernel: Callable[..., Tensor]
    formula: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]


KERNELS = {
    "rms_norm": Kernel(
        lambda x, weight: rms_norm(x, weight, EPSILON),
        lambda x, weight: F.rms_norm(x, (48,), weight, EPSILON),
        ((5, 3, 48), (48,)),
    ),
    "rotary": Kernel(
        lambda x: rotate(x.permute(1, 2, 0, 3), rotation_table()),
        rotated_as_complex_numbers,
        ((length, batch, heads, head_size),),
    ),
    "grouped_product": Kernel(
        lambda rows, weights: grouped_product(rows, weights, groups_of(GROUP_SIZES)),
        product_of_each_group,
        ((10, 16), (4, 8, 16)),
    ),
    "copied": Kernel(
        lambda rows: kernels.Copied.apply(rows, OF_COPY, COPIES_OF), lambda x: x[OF_COPY], ((5, 4),)
    ),
    "combined": Kernel(
        lambda rows: kernels.Combined.apply(rows, OF_COPY, COPIES_OF, kernels.sum_of_copies),
        lambda copies: copies[COPIES_OF].sum(dim=1),
        ((10, 4),),
    ),
}


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", KERNELS.values(), ids=KERNELS.keys())
def test_forward_and_backward_are_autograds(case, dtype):
    ours = [random(*shape, dtype=dtype).requires_grad_() for shape in case.shapes]
    plain = [x.detach().clone().requires_grad_() for x in ours]
    found, expected = case.kernel(*ours), case.formula(*plain)
    # As a later operation may leave it: not laid out in rows.
    gradient = random(*found.shape[::-1], dtype=dtype).permute(*reversed(range(found.dim())))
    found.backward(gradient)
    expected.backward(gradient)
    pairs = [(found, expected), *((x.grad, y.grad) for x, y in zip(ours, plain, strict=True))]
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    for mine, theirs in pairs:
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def test_every_kernel_is_among_them():
    passes = {one for one in vars(kernels).values() if hasattr(one, "backward")} - {Tensor}
    assert len(passes) == len(KERNELS)


def test_a_rotation_lies_head_by_head_and_is_computed_in_float32():
    x = random(*SHAPE, dtype=torch.bfloat16)
    found = rotate(x, rotation_table())
    assert found.shape == SHAPE
    assert found.is_contiguous()
    assert torch.equal(found, rotate(x.float(), rotation_table()).bfloat16())


def test_a_group_without_rows_gets_no_gradient_whatever_a_gpus_kernel_leaves_there(monkeypatch):
    """As reported of B200 (pytorch issue 172439)."""
    grouped_mm = F.grouped_mm

    def leaving_garbage(left: Tensor, right: Tensor, *, offs: Tensor) -> Tensor:
        product = grouped_mm(left, right, offs=offs)
        if product.dim() == 3:  # one matrix per group: the gradient of the weights
            product[1] = torch.nan
        return product

    monkeypatch.setattr(F, "grouped_mm", leaving_garbage)
    weights = random(len(GROUP_SIZES), 4, 8).requires_grad_()
    grouped_product(random(10, 8), weights, groups_of(GROUP_SIZES)).sum().backward()
    assert not weights.grad[1].any()
    assert weights.grad[[0, 2, 3]].any(dim=(1, 2)).all()


def test_attention_by_cudnn_is_used_only_where_it_is_asked_for(tmp_path, monkeypatch):
    """Flash stands for cuDNN's, which is nowhere but on a GPU; and torch would choose that."""
    monkeypatch.setitem(layers.ATTENTION, "cudnn", SDPBackend.FLASH_ATTENTION)
    monkeypatch.delitem(layers.ATTENTION, "flash")
    monkeypatch.setattr(layers, "TRUSTED", ("efficient", "math"))
    config, cpu = tiny(tmp_path, "numerics.dtype=bfloat16"), torch.device("cpu")
    assert layers.attention_backend(config, cpu) == "math"
    assert layers.attention_backend(config.executed(attention="cudnn"), cpu) == "cudnn"
