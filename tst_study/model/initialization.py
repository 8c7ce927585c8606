"""Draws the initial weights of this rank's part of a model, so that the whole model begins with the
same weights in every parallel layout.

Each matrix of the whole model has a random generator of its own, seeded by the run's seed, the
weight's global name, and its layer and expert. A rank that holds only a slice of a matrix draws the
whole and keeps its slice. The weights of norms begin as ones.
"""

import hashlib
import math
from collections.abc import Callable, Iterator

import torch
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace, nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

from tst_study.config.schema import Model

# These matrices write into the residual stream, where variances add up over layers. Their standard
# deviation is divided by the square root of the number of such matrices, two in each layer.
RESIDUAL_PROJECTIONS = ("self_attention.linear_proj.weight", "linear_fc2.weight")
EMBEDDINGS = ("embedding.word_embeddings.weight", "output_layer.weight")
"""Global names of the embedding and of the output head."""


def initialize(
    model: torch.nn.Module,
    config: Model,
    seed: int,
    only: Callable[[str], bool] = lambda name: True,
) -> None:
    """Fill the weights of this rank in place. `only`: takes the global name of a weight and returns
    whether to fill it; by default all are filled."""
    residual_deviation = config.initial_deviation / math.sqrt(2 * config.layers)
    with torch.no_grad():
        for shard in shards(model):
            if not only(shard.key):
                continue
            if "norm" in shard.key:
                shard.data.fill_(1.0)
                continue
            residual = shard.key.endswith(RESIDUAL_PROJECTIONS)
            _draw(shard, residual_deviation if residual else config.initial_deviation, seed)


def shards(model: torch.nn.Module) -> Iterator[ShardedTensor]:
    """Yield this rank's shards of the model's weights, with their global names and offsets. Their
    data are views of the parameters."""
    sharded = model.sharded_state_dict()  # type: ignore[operator]
    # A factory splits one parameter into parts, each of which is sharded by itself: gate and up of
    # SwiGLU, and the experts of a rank.
    dict_list_map_inplace(
        lambda x: x.build() if isinstance(x, ShardedTensorFactory) else x, sharded
    )
    for value in nested_values(sharded):
        if isinstance(value, ShardedTensor) and value.data is not None:
            yield value


def _draw(shard: ShardedTensor, deviation: float, seed: int) -> None:
    # Layers and experts are leading axes of the global shape. Each has its own generator, so that a
    # rank draws only those whole matrices of which it holds a part.
    axes = shard.prepend_axis_num
    indices = ".".join(str(offset) for offset in shard.global_offset[:axes])
    digest = hashlib.sha256(f"{seed}/{shard.key}/{indices}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    whole = torch.empty(shard.global_shape[axes:]).normal_(0.0, deviation, generator=generator)
    copy_slice(shard, whole)


def copy_slice(shard: ShardedTensor, whole: torch.Tensor) -> None:
    """Fill a shard from `whole`, the full tensor of its layer and expert, in the shard's dtype."""
    offsets = shard.global_offset[shard.prepend_axis_num :]
    for axis, (offset, size) in enumerate(zip(offsets, shard.data.shape, strict=True)):
        whole = whole.narrow(axis, offset, size)
    shard.data.copy_(whole.to(shard.data.dtype))
