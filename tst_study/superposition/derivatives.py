"""What the kernels of this package do where more than a gradient is asked of them: second
derivatives (`create_graph=True`), the transforms of `torch.func`, and forward-mode derivatives.

A kernel computes its gradient by itself, so autograd cannot differentiate that gradient again. With
`torch.autograd.function.once_differentiable` this would go unnoticed: the error comes only if the
incoming gradient needs a gradient, which that of a loss, the constant 1, does not. So a backward
pass that runs while gradients are enabled computes by torch's own operations, or refuses.
"""

import torch
from torch import Tensor


def in_torch_func() -> bool:
    """Return whether a transform of `torch.func` (grad, vmap, jvp, …) is active. Kernels of our own
    do not take part in these."""
    if torch.compiler.is_compiling():
        return False
    active: bool = torch._C._are_functorch_transforms_active()
    return active


def gradient_of(outputs: Tensor, inputs: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of `inputs` for the gradient `grad` of `outputs`, so that it can be
    differentiated again. For a backward pass in which gradients are enabled."""
    if not inputs.requires_grad:  # then nobody asks for its gradient
        return torch.zeros_like(inputs)
    return torch.autograd.grad(outputs, inputs, grad, create_graph=True)[0]


def refuse_second_derivative(of: str) -> None:
    """Raise RuntimeError if a backward pass is to be differentiated again."""
    if torch.is_grad_enabled():
        raise RuntimeError(f"{of} has no second derivative: {_REMEDY}")


def refuse_torch_func(of: str) -> None:
    """Raise RuntimeError within a transform of `torch.func`."""
    if in_torch_func():
        raise RuntimeError(f"{of} cannot be used within torch.func: {_REMEDY}")


ONE_PASS = "linear_loss"
SPLIT = "a vocabulary that is split over ranks"
_REMEDY = "use loss(head(hidden), …) with the whole vocabulary on each rank"
