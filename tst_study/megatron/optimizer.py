"""AdamW on float32 main parameters, with Megatron's gradient buffers and one fused step.

Megatron's own AdamW path without TransformerEngine costs three to four times a fused torch step
(one host synchronisation per parameter in its gradient norm); this is the same arithmetic in a
handful of kernels. Parameters are replicated over data-parallel ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.dist_checkpointing.optimizer import (
    get_param_id_to_sharded_param_map,
    make_sharded_optimizer_tensor,
    optim_state_to_sharding_state,
)
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from torch import Tensor

from tst_study.config import Optimizer
from tst_study.megatron.model import SuperposedGPT


def with_gradient_buffers(model: SuperposedGPT) -> DistributedDataParallel:
    """Megatron's data parallelism: gradients summed in float32, over micro-batches and ranks."""
    return DistributedDataParallel(
        model.config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), model
    )


class AdamW:
    """One optimizer step: reduce, clip, update, write back."""

    def __init__(self, model: DistributedDataParallel, config: Optimizer) -> None:
        self.model = model
        self.config = config
        named = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
        decayed = [p for name, p in named if _decays(name, p, config)]
        others = [p for name, p in named if not _decays(name, p, config)]
        self.parameters: list[Tensor] = decayed + others
        self.main = [p if p.dtype == torch.float32 else p.detach().float() for p in self.parameters]
        self._counted = [param_is_not_tensor_parallel_duplicate(p) for p in self.parameters]
        groups = [
            {"params": self.main[: len(decayed)], "weight_decay": config.weight_decay},
            {"params": self.main[len(decayed) :], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=True,
        )

    def zero_gradients(self) -> None:
        self.model.zero_grad_buffer()

    @torch.no_grad()
    def step(self, learning_rate: float) -> Tensor:
        """Update the weights from the gradient buffers; returns the global norm before clipping."""
        if dist.get_world_size() > 1:  # alone, it would copy every gradient through gloo
            finalize_model_grads([self.model])
        gradients: list[Tensor] = [p.main_grad for p in self.parameters]  # type: ignore[attr-defined]
        norm = self._norm(gradients)
        if self.config.gradient_clip > 0:
            factor = (self.config.gradient_clip / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(gradients, factor)
        for main, gradient in zip(self.main, gradients, strict=True):
            main.grad = gradient
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        self.adamw.step()
        for main in self.main:
            main.grad = None
        self.copy_to_model()
        return norm

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        """Global 2-norm, every weight of the whole model counted once."""
        counted = [g for g, counts in zip(gradients, self._counted, strict=True) if counts]
        norms = torch._foreach_norm(counted)
        group = parallel_state.get_model_parallel_group()
        if dist.get_world_size(group) == 1:
            return torch.linalg.vector_norm(torch.stack(norms))
        square = torch.stack(norms).square().sum()
        dist.all_reduce(square, group=group)
        return square.sqrt()

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Write main parameters into the model, where they are not the same tensors."""
        pairs = [(p, m) for p, m in zip(self.parameters, self.main, strict=True) if p is not m]
        if pairs:
            torch._foreach_copy_([p for p, _ in pairs], [m for _, m in pairs])

    @torch.no_grad()
    def copy_from_model(self) -> None:
        """Take new weights of the model over into the main parameters."""
        for parameter, main in zip(self.parameters, self.main, strict=True):
            if main is not parameter:
                # Where the model's weight is not new, the main one keeps the digits it has more.
                is_new = main.to(parameter.dtype) != parameter
                main.copy_(torch.where(is_new, parameter.float(), main))

    def reset(self) -> None:
        """Forget both moments and the step count, as a new optimizer would (an ablation)."""
        self.adamw.state.clear()

    def sharded_state_dict(self, model_state: ShardedStateDict) -> dict[str, Any]:
        """The state as Megatron's distributed checkpoints want it, for saving and for loading."""
        self._fill_empty_state()
        of_parameter = get_param_id_to_sharded_param_map(model_state, self.parameters)
        state = self.adamw.state_dict()
        # AdamW counts steps per parameter; they all agree, so one number is stored.
        state["steps_taken"] = float(state["state"][0]["step"])
        state["state"] = {
            number: {name: value for name, value in values.items() if name != "step"}
            for number, values in state["state"].items()
        }
        optim_state_to_sharding_state(state, of_parameter)
        if any(p is not m for p, m in zip(self.parameters, self.main, strict=True)):
            state["main_parameters"] = [
                make_sharded_optimizer_tensor(of_parameter[number], main, "optimizer.main")
                for number, main in enumerate(self.main)
            ]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        taken = state.pop("steps_taken")
        main = state.pop("main_parameters", None)
        for values in state["state"].values():
            # A tensor each: fused AdamW counts in place, and a shared one would count many times.
            values["step"] = torch.tensor(taken, dtype=torch.float32)
        self.adamw.load_state_dict(state)
        if main is not None:
            with torch.no_grad():
                for mine, loaded in zip(self.main, main, strict=True):
                    mine.copy_(loaded)

    def _fill_empty_state(self) -> None:
        for main in self.main:
            if not self.adamw.state[main]:
                self.adamw.state[main] = {
                    "step": torch.zeros((), dtype=torch.float32, device=main.device),
                    "exp_avg": torch.zeros_like(main),
                    "exp_avg_sq": torch.zeros_like(main),
                }


def _decays(name: str, parameter: Tensor, config: Optimizer) -> bool:
    """Weight decay by kind: matrices yes, norms never, embeddings and head by a setting."""
    if parameter.dim() < 2:
        return False
    is_embedding = "word_embeddings" in name or "output_layer" in name
    return config.decay_embeddings or not is_embedding
