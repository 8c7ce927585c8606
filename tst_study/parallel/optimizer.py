"""One optimizer step around any update rule: reduce, clip, update, write back; and checkpoints.

Megatron's own path without TransformerEngine costs three to four times a fused torch step (one host
synchronisation per parameter in its gradient norm); this is the same arithmetic in a handful of
kernels. Data-parallel ranks either all keep the whole optimizer state, or each keeps the state of
its share of Megatron's buffers (`optimizer_shards.py`); both write the same checkpoints.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.dist_checkpointing.optimizer import get_param_id_to_sharded_param_map
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from torch import Tensor

from tst_study.config.schema import Optimizer
from tst_study.parallel.optimizer_shards import parts_of, shards_of_parameters
from tst_study.parallel.update_rules import RULES, STATES, STEP, MainWeight, projections_of


class ModelOptimizer:
    """Float32 main weights of a model, and the rule that updates them from its gradients."""

    def __init__(self, model: DistributedDataParallel, config: Optimizer) -> None:
        self.model = model
        self.config = config
        self.is_distributed = model.ddp_config.use_distributed_optimizer
        named = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
        decays = {p: _decays(name, p, config) for name, p in named}
        named.sort(key=lambda entry: not decays[entry[1]])  # the norm's last bit depends on it
        self.parameters: list[Tensor] = [p for _, p in named]
        # The part of each flattened parameter that this rank updates; None: all of it.
        self.ranges: dict[Tensor, slice | None] = dict.fromkeys(self.parameters)
        if self.is_distributed:
            self.ranges |= shards_of_parameters(model)
        self.main = [
            local if local.dtype == torch.float32 else local.float()
            for local in self.local([p.detach() for p in self.parameters])
        ]
        self._weights_of_norms = torch.tensor(
            [_weight_of_norm(p, self.is_distributed) for p in self.parameters],
            device=self.main[0].device,
        )
        self.steps_taken = 0
        weights = [
            MainWeight(main, decays[p], projections_of(name, p.shape, model.config))
            for main, (name, p) in zip(self.main, named, strict=True)
        ]
        self._optimizers = RULES[config.kind](weights, config)
        self._optimizer_of = {
            main: optimizer
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for main in group["params"]
        }

    def local(self, tensors: list[Tensor]) -> list[Tensor]:
        """This rank's share of tensors, one per parameter and of its shape, as flat views."""
        ranges = (self.ranges[p] or slice(None) for p in self.parameters)
        return [x.view(-1)[share] for x, share in zip(tensors, ranges, strict=True)]

    def zero_gradients(self) -> None:
        self.model.zero_grad_buffer()

    @torch.no_grad()
    def step(self, learning_rate: float) -> Tensor:
        """Update the weights from the gradient buffers; returns the gradients' global norm before
        clipping."""
        # A single rank has nothing to reduce, and would copy every gradient through gloo.
        if dist.get_world_size() > 1:
            finalize_model_grads([self.model])
        gradients = self.local([p.main_grad for p in self.parameters])  # type: ignore[attr-defined]
        norm = self._norm(gradients)
        if self.config.gradient_clip > 0:
            factor = (self.config.gradient_clip / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(gradients, factor)
        for main, gradient in zip(self.main, gradients, strict=True):
            main.grad = gradient
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()
        self.steps_taken += 1
        for main in self.main:
            main.grad = None
        self.copy_to_model()
        return norm

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        """The 2-norm of the whole model's gradient, in which every weight counts once."""
        norms = torch.stack(torch._foreach_norm(gradients))
        if dist.get_world_size() == 1:
            return torch.linalg.vector_norm(norms)
        square = (norms.square() * self._weights_of_norms).sum()
        dist.all_reduce(square)
        return square.sqrt()

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Write the main weights into the model, and let distributed ranks gather each other's
        shares. The main weights of a float32 model are views of its parameters and need no copy."""
        if self.parameters[0].dtype != torch.float32:
            torch._foreach_copy_(self.local([p.detach() for p in self.parameters]), self.main)
        if self.is_distributed:
            self.model.start_param_sync()

    @torch.no_grad()
    def copy_from_model(self) -> None:
        """Copy weights that have been changed in the model into the main weights."""
        weights = self.local([p.detach() for p in self.parameters])
        for weight, main in zip(weights, self.main, strict=True):
            # Where the model's weight has not changed, the main one keeps its further digits.
            main.copy_(torch.where(main.to(weight.dtype) == weight, main, weight.float()))

    def reset(self) -> None:
        """Forget all moments and the step count, as a new optimizer would (an ablation)."""
        for optimizer in self._optimizers:
            optimizer.state.clear()
        self.steps_taken = 0

    def state_of(self, main: Tensor) -> dict[str, Tensor]:
        """The update rule's state of a main weight; empty until it is updated, saved or
        restored."""
        state: dict[str, Tensor] = self._optimizer_of[main].state.get(main, {})
        return state

    def sharded_state_dict(self, model_state: ShardedStateDict) -> dict[str, Any]:
        """Return the state as Megatron's distributed checkpoints want it, for saving and for
        loading.

        The tensors are views of this rank's own part: nothing is gathered, and loading fills them
        in place. They are named after the weights and have their shapes and offsets, so that any
        layout can read them.
        """
        of_parameter = get_param_id_to_sharded_param_map(model_state, self.parameters)
        sharded = {p: of_parameter[number] for number, p in enumerate(self.parameters)}
        return {
            # AdamW counts steps per parameter; they all agree, so one number is stored.
            "steps_taken": float(self.steps_taken),
            "tensors": {
                name: [
                    part
                    for p, mine in local.items()
                    for part in parts_of(p, sharded[p], mine, f"optimizer.{name}", self.ranges[p])
                ]
                for name, local in self._stored().items()
            },
        }

    def restored(self, steps_taken: int) -> None:
        """Go on from a state that was read into the tensors of `sharded_state_dict`."""
        self.steps_taken = steps_taken
        for main in self.main:
            if STEP in self.state_of(main):
                self.state_of(main)[STEP].fill_(steps_taken)
        self.copy_to_model()

    def _stored(self) -> dict[str, dict[Tensor, Tensor]]:
        """This rank's shares of all that a checkpoint holds beside the model's weights and the step
        count, by name and parameter: the rule's states, made as zeros where there are none yet, and
        the main weights of a model that is not in float32."""
        stored: dict[str, dict[Tensor, Tensor]] = {}
        for parameter, main in zip(self.parameters, self.main, strict=True):
            optimizer = self._optimizer_of[main]
            for name in STATES[type(optimizer)]:
                # Each weight has its own count of steps: fused AdamW counts in place, so that a
                # shared one would run ahead.
                zeros = main.new_zeros(() if name == STEP else main.shape)
                value = optimizer.state[main].setdefault(name, zeros)
                if name != STEP:
                    stored.setdefault(name, {})[parameter] = value
        if any(p.dtype != torch.float32 for p in self.parameters):
            stored["main"] = dict(zip(self.parameters, self.main, strict=True))
        return stored


def _decays(name: str, parameter: Tensor, config: Optimizer) -> bool:
    """Whether a parameter decays: matrices do, norms do not, embeddings and head by a setting."""
    if parameter.dim() < 2:
        return False
    is_embedding = "word_embeddings" in name or "output_layer" in name
    return config.decay_embeddings or not is_embedding


def _weight_of_norm(parameter: Tensor, is_distributed: bool) -> float:
    """The factor with which this rank adds the squared norm of a parameter's gradient to the sum
    over all ranks, so that every weight counts once there."""
    of_experts = not getattr(parameter, "allreduce", True)
    if not of_experts and not param_is_not_tensor_parallel_duplicate(parameter):
        return 0.0
    if is_distributed:
        return 1.0
    if of_experts:
        return 1.0 / parallel_state.get_expert_data_parallel_world_size()
    return 1.0 / parallel_state.get_data_parallel_world_size()
