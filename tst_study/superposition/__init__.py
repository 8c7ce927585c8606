"""Token superposition: what the steps of the two phases read and predict, and by which loss (paper,
section 3).

`method.py` has the class `Superposition`, which adds all this to any trainer, and `misuse.py` finds
mistakes in calls of it. `steps.py` says what a step reads and predicts. The data of a superposed
step flow through these files::

    bags.py -> embedding.py -> (the model, unchanged) -> linear_loss.py, or losses.py

    linear_loss.py: output head and loss in one pass, for `mce` without label smoothing on a rank
                    that has the whole vocabulary
    losses.py: all losses, from logits
        |- weighting.py, loss_kinds.py
        |- log_probabilities.py   (losses from a softmax)
        `- one_vs_rest.py         (binary cross-entropy, hinge)

Importing this package does not import torch, because the configuration validates weightings and
losses without torch. Each name is loaded from its module on first use.
"""

from typing import TYPE_CHECKING

from tst_study import loaded_on_first_use

if TYPE_CHECKING:
    from tst_study.superposition.bags import bag_inputs as bag_inputs
    from tst_study.superposition.bags import bag_targets as bag_targets
    from tst_study.superposition.bags import document_labels as document_labels
    from tst_study.superposition.embedding import bag_embedding as bag_embedding
    from tst_study.superposition.linear_loss import linear_bag_loss as linear_bag_loss
    from tst_study.superposition.loss_kinds import BagLoss as BagLoss
    from tst_study.superposition.losses import bag_loss as bag_loss
    from tst_study.superposition.method import Superposition as Superposition
    from tst_study.superposition.steps import Objective as Objective
    from tst_study.superposition.steps import Phases as Phases
    from tst_study.superposition.steps import steps_of_budget as steps_of_budget

_HOME = {
    "BagLoss": "superposition.loss_kinds",
    "Objective": "superposition.steps",
    "Phases": "superposition.steps",
    "Superposition": "superposition.method",
    "bag_embedding": "superposition.embedding",
    "bag_inputs": "superposition.bags",
    "bag_loss": "superposition.losses",
    "bag_targets": "superposition.bags",
    "document_labels": "superposition.bags",
    "linear_bag_loss": "superposition.linear_loss",
    "steps_of_budget": "superposition.steps",
}
__all__ = list(_HOME)
__getattr__, __dir__ = loaded_on_first_use(__name__, _HOME)
