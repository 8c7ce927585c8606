"""The optimizer, which is everything around an update rule: it sums gradients over ranks and clips
them, has the rule update the main weights, writes these back into the model, and describes its
state for checkpoints.

Without TransformerEngine, Megatron's own optimizer takes three to four times as long as a fused
torch step, because its gradient norm makes the host wait for the device once for each parameter.
This module does the same arithmetic in a handful of kernels. Data-parallel ranks either all keep
the whole optimizer state, or each keeps the state of its share of Megatron's buffers
(`optimizer_shards.py`). Checkpoints are the same in both cases.
"""

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
    """The float32 main weights of a model, and the rule that updates them from its gradients.

    The rule updates the main weights. If the model trains in float32, they are its own weights. In
    bfloat16, its own weights are copies of them.
    """

    def __init__(self, model: DistributedDataParallel, config: Optimizer) -> None:
        self.model = model
        self.config = config
        self.is_distributed = model.ddp_config.use_distributed_optimizer
        named = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
        decays = {p: _decays(name, p, config) for name, p in named}
        named.sort(key=lambda entry: not decays[entry[1]])  # the order changes the norm's last bit
        self.parameters: list[Tensor] = [p for _, p in named]
        # The part of each flattened parameter that this rank updates; None stands for all of it.
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
        """Return flat views of this rank's shares of some tensors. There is one tensor for each
        parameter, in the order and with the shapes of `parameters`."""
        ranges = (self.ranges[p] or slice(None) for p in self.parameters)
        return [x.view(-1)[share] for x, share in zip(tensors, ranges, strict=True)]

    def zero_gradients(self) -> None:
        """Set the gradient buffers to zero before a step."""
        self.model.zero_grad_buffer()

    @torch.no_grad()
    def step(self, learning_rate: float) -> Tensor:
        """Update the weights from the gradient buffers, and return the norm of the whole model's
        gradient before clipping."""
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
        """Return the 2-norm of the whole model's gradient, in which every weight counts once."""
        norms = torch.stack(torch._foreach_norm(gradients))
        if dist.get_world_size() == 1:
            return torch.linalg.vector_norm(norms)
        square = (norms.square() * self._weights_of_norms).sum()
        dist.all_reduce(square)
        return square.sqrt()

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Write the main weights into the model, and with a distributed optimizer let the ranks
        gather each other's shares. In float32 the main weights are views of the model's parameters,
        so that nothing is copied."""
        if self.parameters[0].dtype != torch.float32:
            torch._foreach_copy_(self.local([p.detach() for p in self.parameters]), self.main)
        if self.is_distributed:
            self.model.start_param_sync()

    @torch.no_grad()
    def copy_from_model(self) -> None:
        """Update the main weights from weights of the model that something other than the optimizer
        has changed."""
        weights = self.local([p.detach() for p in self.parameters])
        for weight, main in zip(weights, self.main, strict=True):
            # Where the model's weight still equals the rounded main weight, the main weight keeps
            # its further digits.
            main.copy_(torch.where(main.to(weight.dtype) == weight, main, weight.float()))

    def reset(self) -> None:
        """Forget all moments and the step count, so that the optimizer is as new. This serves an
        ablation, `superposition.optimizer_at_switch = "reset"`."""
        for optimizer in self._optimizers:
            optimizer.state.clear()
        self.steps_taken = 0

    def state_of(self, main: Tensor) -> dict[str, Tensor]:
        """Return, by name, the tensors that the update rule keeps for a main weight, such as its
        moments. There are none until the weight is first updated, saved or restored."""
        state: dict[str, Tensor] = self._optimizer_of[main].state.get(main, {})
        return state

    def sharded_state_dict(self, model_state: ShardedStateDict) -> dict[str, Any]:
        """Return the state in the form of Megatron's distributed checkpoints, for saving and for
        loading.

        `model_state`: the model's state, in the same form. The tensors are views of this rank's own
        part, so that nothing is gathered, and loading fills them in place. They are named after the
        weights and have their shapes and offsets, so that any layout can read them.
        """
        of_parameter = get_param_id_to_sharded_param_map(model_state, self.parameters)
        sharded = {p: of_parameter[number] for number, p in enumerate(self.parameters)}
        return {
            # AdamW counts steps for each parameter. All counts agree, so one number is stored.
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
        """Take over a state that has been read into the tensors of `sharded_state_dict`, and write
        its main weights into the model. `steps_taken`: the optimizer's step count in that
        state."""
        self.steps_taken = steps_taken
        for main in self.main:
            if STEP in self.state_of(main):
                self.state_of(main)[STEP].fill_(steps_taken)
        self.copy_to_model()

    def _stored(self) -> dict[str, dict[Tensor, Tensor]]:
        """Return this rank's shares of what a checkpoint holds besides the model's weights and the
        step count, by name and parameter.

        These are the states of the update rule, created as zeros if there are none yet, and the
        main weights of a model that is not in float32.
        """
        stored: dict[str, dict[Tensor, Tensor]] = {}
        for parameter, main in zip(self.parameters, self.main, strict=True):
            optimizer = self._optimizer_of[main]
            for name in STATES[type(optimizer)]:
                # Each weight has a count of steps of its own, because fused AdamW adds one to it in
                # place: a shared count would be raised once for each weight.
                zeros = main.new_zeros(() if name == STEP else main.shape)
                value = optimizer.state[main].setdefault(name, zeros)
                if name != STEP:
                    stored.setdefault(name, {})[parameter] = value
        if any(p.dtype != torch.float32 for p in self.parameters):
            stored["main"] = dict(zip(self.parameters, self.main, strict=True))
        return stored


def _decays(name: str, parameter: Tensor, config: Optimizer) -> bool:
    """Return whether a parameter has weight decay. Matrices have it and norms do not; for the
    embedding and the head, `optimizer.decay_embeddings` decides."""
    if parameter.dim() < 2:
        return False
    is_embedding = "word_embeddings" in name or "output_layer" in name
    return config.decay_embeddings or not is_embedding


def _weight_of_norm(parameter: Tensor, is_distributed: bool) -> float:
    """Return the factor with which this rank adds the squared norm of a parameter's gradient to the
    sum over all ranks, so that every weight counts once in that sum."""
    of_experts = not getattr(parameter, "allreduce", True)
    if not of_experts and not param_is_not_tensor_parallel_duplicate(parameter):
        return 0.0
    if is_distributed:
        return 1.0
    if of_experts:
        return 1.0 / parallel_state.get_expert_data_parallel_world_size()
    return 1.0 / parallel_state.get_data_parallel_world_size()
