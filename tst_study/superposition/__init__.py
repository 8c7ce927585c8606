"""Token superposition: everything that differs between the two phases (paper, section 3).

The data flow of a superposed step, in file names::

    steps.py: what a step reads and predicts, by its number
    method.py: the same as a trainer calls it, with its checks

    bags.py -> embedding.py -> (the model, unchanged) -> linear_loss.py (with the head, where a rank
                                                      |                  has all of the vocabulary)
                                                      `> losses.py
                                                           |- weighting.py, loss_kinds.py
                                                           |- log_probabilities.py   (softmax)
                                                           `- one_vs_rest.py         (BCE, hinge)

Importing this package does not import torch: the configuration validates weightings and loss
kinds without it. Names that need torch are loaded on first use (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tst_study.superposition.loss_kinds import (
    BAG_LOSS_KINDS,
    BagLoss,
    BagLossKind,
    check_loss_kind,
)
from tst_study.superposition.steps import Objective, Phases
from tst_study.superposition.weighting import (
    NamedWeighting,
    Weighting,
    WeightingOverSteps,
    offset_weights,
    weight_rows,
    weighting_at,
)

if TYPE_CHECKING:
    from tst_study.superposition.bags import (
        bag_inputs,
        bag_targets,
        count_valid_targets,
        shuffle_bags,
    )
    from tst_study.superposition.embedding import bag_embedding
    from tst_study.superposition.linear_loss import linear_bag_loss
    from tst_study.superposition.log_probabilities import bag_log_probabilities
    from tst_study.superposition.losses import bag_loss
    from tst_study.superposition.method import Superposition

__all__ = [
    "BAG_LOSS_KINDS",
    "BagLoss",
    "BagLossKind",
    "NamedWeighting",
    "Objective",
    "Phases",
    "Superposition",
    "Weighting",
    "WeightingOverSteps",
    "bag_embedding",
    "bag_inputs",
    "bag_log_probabilities",
    "bag_loss",
    "bag_targets",
    "check_loss_kind",
    "count_valid_targets",
    "linear_bag_loss",
    "offset_weights",
    "shuffle_bags",
    "weight_rows",
    "weighting_at",
]

_NEED_TORCH = ("bags", "embedding", "linear_loss", "log_probabilities", "losses", "method")


def __getattr__(name: str) -> Any:
    for module in _NEED_TORCH if name in __all__ else ():
        found = vars(import_module(f"{__name__}.{module}"))
        if name in found:
            globals()[name] = found[name]  # the next access does not come here
            return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
