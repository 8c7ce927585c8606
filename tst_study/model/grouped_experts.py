"""The experts of a rank. Each of their two projections is computed for all experts in one grouped
matrix product, without TransformerEngine."""

from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import (
    ReplicaId,
    ShardedStateDict,
    ShardedTensor,
    ShardedTensorFactory,
)
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from tst_study.model.kernels import Groups, grouped_product, weighted_swiglu


class GroupedExperts(MegatronModule):
    """SwiGLU experts whose matrices are stacked into one tensor for each projection. They compute
    what Megatron's SequentialMLP does, which runs one expert after another.

    A checkpoint holds them under SequentialMLP's names and shapes, whatever the number of ranks
    among which they are divided.
    """

    def __init__(
        self, experts: int, config: TransformerConfig, groups: ProcessGroupCollection
    ) -> None:
        """`experts`: how many of the model's experts this rank holds."""
        super().__init__(config)
        self.groups = groups
        width = config.moe_ffn_hidden_size // groups.expt_tp.size()
        self.linear_fc1 = self._stacked(experts, 2 * width, config.hidden_size)
        self.linear_fc2 = self._stacked(experts, config.hidden_size, width)
        self.activation = weighted_swiglu  # or the same function compiled

    def _stacked(self, *shape: int) -> torch.nn.Parameter:
        data = torch.empty(
            shape, device=torch.cuda.current_device(), dtype=self.config.params_dtype
        )
        parameter = torch.nn.Parameter(data)
        # Marks for Megatron. With several expert ranks, gradients are to be reduced only over ranks
        # that hold the same experts. The matrices are split over tensor ranks.
        like_the_rest = self.config.expert_model_parallel_size == 1
        parameter.allreduce = like_the_rest  # type: ignore[attr-defined]
        parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
        return parameter

    def forward(self, rows: Tensor, groups: Groups, weights: Tensor) -> Tensor:
        """rows (n, d), sorted by expert, and a weight (n,) for each -> outputs (n, d), times their
        weights. `groups`: the rows of each expert."""
        inner = self.activation(grouped_product(rows, self.linear_fc1, groups), weights)
        return grouped_product(inner, self.linear_fc2, groups)

    def sharded_state_dict(
        self,
        prefix: str = "",
        sharded_offsets: tuple[tuple[int, int, int], ...] = (),
        metadata: dict[str, Any] | None = None,
    ) -> ShardedStateDict:
        """Describe this rank's experts for Megatron's distributed checkpoints."""
        return {
            f"{prefix}{name}": self._factory(prefix, name, parts, axis, sharded_offsets)
            for name, parts, axis in (("linear_fc1", 2, 0), ("linear_fc2", 1, 1))
        }

    def _factory(
        self,
        prefix: str,
        name: str,
        parts: int,
        split_axis: int,
        layer: tuple[tuple[int, int, int], ...],
    ) -> ShardedTensorFactory:
        """Describe a stack of matrices for checkpoints.

        It is split into experts, and the matrix of each expert into `parts` (two for gate and up)
        along `split_axis`, which is also the axis that is divided among tensor ranks. `layer`: the
        offsets along the axis of layers, from Megatron.
        """
        parameter: Tensor = getattr(self, name)
        held, leading = parameter.shape[0], len(layer) + 1
        expert_rank, expert_ranks = self.groups.ep.rank(), self.groups.ep.size()
        rank, ranks = self.groups.expt_tp.rank(), self.groups.expt_tp.size()

        def build(
            key: str, data: Tensor, replica: ReplicaId, flattened: slice | None
        ) -> list[ShardedTensor]:
            return [
                ShardedTensor.from_rank_offsets(
                    key,
                    piece,
                    *layer,
                    (leading - 1, expert_rank * held + number, expert_ranks * held),
                    (leading + split_axis, part * ranks + rank, parts * ranks),
                    replica_id=replica,
                    prepend_axis_num=leading,
                )
                for number, expert in enumerate(data)
                for part, piece in enumerate(expert.chunk(parts, dim=split_axis))
            ]

        def merge(pieces: list[Tensor]) -> Tensor:
            experts = [
                torch.cat(pieces[start : start + parts], dim=split_axis)
                for start in range(0, len(pieces), parts)
            ]
            return torch.stack(experts)

        return ShardedTensorFactory(
            f"{prefix}experts.{name}.weight",
            parameter,
            build,
            merge,
            replica_id=(0, 0, self.groups.expt_dp.rank()),
        )
