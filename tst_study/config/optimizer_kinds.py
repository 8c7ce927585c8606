"""The optimizers by name, with the facts that the memory model and the rules for layouts need.

The update rules themselves are in `parallel/update_rules.py`. This module does not import torch.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

OptimizerName: TypeAlias = Literal["adamw", "muon"]


@dataclass(frozen=True)
class OptimizerKind:
    """The storage that an update rule takes, and whether it needs whole matrices."""

    states_per_projection_weight: int
    """The number of float32 values that the optimizer stores for each weight of the attention and
    feed-forward projections, not counting a float32 copy of the weight itself."""
    states_per_other_weight: int
    """The same for each weight of embeddings, head, norms and routers."""
    needs_whole_matrices: bool = False
    """Whether the update of one entry depends on the whole matrix. Tensor parallelism and the
    distributed optimizer split matrices over ranks, so they exclude such a rule."""


OPTIMIZER_KINDS: dict[OptimizerName, OptimizerKind] = {
    "adamw": OptimizerKind(2, 2),
    "muon": OptimizerKind(1, 2, needs_whole_matrices=True),
}
