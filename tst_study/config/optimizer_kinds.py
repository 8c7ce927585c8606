"""The optimizers by name, with the facts that other modules need. Imports without torch.

The rules themselves are in `parallel/update_rules.py`.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

OptimizerName: TypeAlias = Literal["adamw", "muon"]


@dataclass(frozen=True)
class OptimizerKind:
    states_per_projection_weight: int
    """float32 numbers of optimizer state for each weight of the attention and feed-forward
    projections, the main weight itself not counted."""
    states_per_other_weight: int
    """The same for each weight of embeddings, head, norms and routers."""
    needs_whole_matrices: bool = False
    """Whether an entry's update depends on the whole matrix; then neither tensor parallelism nor
    the distributed optimizer, which split matrices over ranks, can be used."""


OPTIMIZER_KINDS: dict[OptimizerName, OptimizerKind] = {
    "adamw": OptimizerKind(2, 2),
    "muon": OptimizerKind(1, 2, needs_whole_matrices=True),
}
