"""AdamW on float32 main parameters, with Megatron's gradient buffers and one fused step.

Megatron's own AdamW path without TransformerEngine costs three to four times a fused torch step
(one host synchronisation per parameter in its gradient norm); this is the same arithmetic in a
handful of kernels. Data-parallel ranks either all keep the whole optimizer state, or each its share
of Megatron's buffers (`pieces.py`); checkpoints are the same.
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
)
from megatron.core.distributed import finalize_model_grads
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared
from torch import Tensor

from tst_study.config import Optimizer
from tst_study.megatron.gradient_buffers import GradientBuffers
from tst_study.megatron.pieces import gathered, pieces_of_buffers

MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW:
    """One optimizer step: reduce, clip, update, write back."""

    def __init__(self, model: GradientBuffers, config: Optimizer) -> None:
        self.model = model
        self.config = config
        self.is_distributed = model.ddp_config.use_distributed_optimizer
        named = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
        decayed = [p for name, p in named if _decays(name, p, config)]
        others = [p for name, p in named if not _decays(name, p, config)]
        self.parameters: list[Tensor] = decayed + others
        # What this rank updates of each parameter, as a range of its numbers in a row.
        self.pieces = pieces_of_buffers(model) if self.is_distributed else {}
        self.main = [
            piece if piece.dtype == torch.float32 else piece.float()
            for piece in self._pieces([p.detach() for p in self.parameters])
        ]
        self._weights_of_norms = torch.tensor(
            [_weight_of_norm(p, self.is_distributed) for p in self.parameters],
            device=self.main[0].device,
        )
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

    def _pieces(self, tensors: list[Tensor]) -> list[Tensor]:
        """This rank's share of one tensor per parameter, as views."""
        rows = [x.view(-1) for x in tensors]
        if not self.is_distributed:
            return rows
        return [row[self.pieces[p]] for p, row in zip(self.parameters, rows, strict=True)]

    def zero_gradients(self) -> None:
        self.model.zero_grad_buffer()

    @torch.no_grad()
    def step(self, learning_rate: float) -> Tensor:
        """Update the weights from the gradient buffers; returns the global norm before clipping."""
        self.model.fill_unwritten()
        if dist.get_world_size() > 1:  # alone, it would copy every gradient through gloo
            finalize_model_grads([self.model])
        gradients = self._pieces([p.main_grad for p in self.parameters])  # type: ignore[attr-defined]
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
        norms = torch.stack(torch._foreach_norm(gradients))
        if dist.get_world_size() == 1:
            return torch.linalg.vector_norm(norms)
        square = (norms.square() * self._weights_of_norms).sum()
        dist.all_reduce(square)
        return square.sqrt()

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Write main parameters into the model, where they are not the same numbers, and to the
        ranks that do not have them."""
        if self.parameters[0].dtype != torch.float32:
            torch._foreach_copy_(self._pieces([p.detach() for p in self.parameters]), self.main)
        if self.is_distributed:
            self.model.start_param_sync()

    @torch.no_grad()
    def copy_from_model(self) -> None:
        """Take new weights of the model over into the main parameters."""
        for piece, main in zip(
            self._pieces([p.detach() for p in self.parameters]), self.main, strict=True
        ):
            # Where the model's weight is not new, the main one keeps the digits it has more.
            main.copy_(torch.where(main.to(piece.dtype) == piece, main, piece.float()))

    def reset(self) -> None:
        """Forget both moments and the step count, as a new optimizer would (an ablation)."""
        self.adamw.state.clear()

    def sharded_state_dict(self, model_state: ShardedStateDict) -> dict[str, Any]:
        """The state as Megatron's distributed checkpoints want it, for saving and for loading.

        All ranks together. Per parameter and in its shape, so that any layout can read it.
        """
        self._fill_empty_state()
        of_parameter = get_param_id_to_sharded_param_map(model_state, self.parameters)
        numbers = {name: [self.adamw.state[m][name] for m in self.main] for name in MOMENTS}
        if any(p.dtype != torch.float32 for p in self.parameters):
            numbers["main"] = self.main
        return {
            # AdamW counts steps per parameter; they all agree, so one number is stored.
            "steps_taken": float(self.adamw.state[self.main[0]]["step"]),
            "tensors": {
                name: [
                    make_sharded_optimizer_tensor(of_parameter[i], whole, f"optimizer.{name}")
                    for i, whole in enumerate(self._whole(pieces))
                ]
                for name, pieces in numbers.items()
            },
        }

    def _whole(self, pieces: list[Tensor]) -> list[Tensor]:
        """From this rank's pieces to tensors in the shape of the parameters."""
        if self.is_distributed:
            return gathered(self.model, dict(zip(self.parameters, pieces, strict=True)))
        return [x.view(p.shape) for x, p in zip(pieces, self.parameters, strict=True)]

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `sharded_state_dict` gave, filled in."""
        tensors = {name: self._pieces(whole) for name, whole in state["tensors"].items()}
        for number, main in enumerate(self.main):
            if "main" in tensors:
                main.copy_(tensors["main"][number])
            of_main = self.adamw.state[main]
            # A tensor each: fused AdamW counts in place, and a shared one would count many times.
            of_main["step"] = torch.tensor(
                state["steps_taken"], dtype=torch.float32, device=main.device
            )
            for name in MOMENTS:
                of_main[name].copy_(tensors[name][number])

    def _fill_empty_state(self) -> None:
        for main in self.main:
            if not self.adamw.state[main]:
                self.adamw.state[main] = {
                    "step": torch.zeros((), dtype=torch.float32, device=main.device),
                    **{name: torch.zeros_like(main) for name in MOMENTS},
                }


def _decays(name: str, parameter: Tensor, config: Optimizer) -> bool:
    """Weight decay by kind: matrices yes, norms never, embeddings and head by a setting."""
    if parameter.dim() < 2:
        return False
    is_embedding = "word_embeddings" in name or "output_layer" in name
    return config.decay_embeddings or not is_embedding


def _weight_of_norm(parameter: Tensor, is_distributed: bool) -> float:
    """How much of its square a rank adds, so that over all ranks every weight counts once."""
    of_experts = not getattr(parameter, "allreduce", True)
    if not param_is_not_shared(parameter):  # the head's copy of a tied embedding, on another stage
        return 0.0
    if not of_experts and not param_is_not_tensor_parallel_duplicate(parameter):
        return 0.0
    if is_distributed:
        return 1.0
    if of_experts:
        return 1.0 / parallel_state.get_expert_data_parallel_world_size()
    return 1.0 / parallel_state.get_data_parallel_world_size()
