"""What a step costs by arithmetic is what its model computes."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.config.test_phase_plan import SMALL_STEPS, rival_keys
from tests.tiny_runs import MIXTURE, built, tiny
from tst_study.batches import StepBatches
from tst_study.config.phase_plan import plan_phases
from tst_study.cost.compute import flops_until
from tst_study.errors import UserError
from tst_study.model import model as of_model
from tst_study.parallel.forward_backward import micro_batches

KINDS = {
    "baseline": ("superposition={}",),
    "both sides": (),
    "input only": ("superposition.mode=input_only",),
    "output only": ("superposition.mode=output_only",),
    "shuffled targets": ("superposition.shuffle_targets=true",),
    "sum to one": ("superposition.loss=sum_to_one",),
    "binary cross-entropy": ("superposition.loss=binary_cross_entropy",),
    "hinge": ("superposition.loss=hinge",),
    "power law": ("superposition.weighting=power_law",),
    "smoothed labels": ("superposition={}", "label_smoothing={epsilon = 0.2, last_step = 1}"),
    "tied": ("model.tied_embeddings=true",),
    "mixture": MIXTURE,
    "micro-batches": ("execution.micro_batch=1",),
    **{rival: rival_keys(rival, 24, 0.5) for rival in SMALL_STEPS},
}


def product(_: Any, one: torch.Size, other: torch.Size, **__: Any) -> int:
    """FLOPs of products that are added to a sum in place."""
    return 2 * one[0] * one[1] * other[1]


def grouped(one: torch.Size, other: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * one[0] * one[1] * other[-1]


UNCOUNTED = {torch.ops.aten.addmm_: product, torch.ops.aten._grouped_mm: grouped}
"""Products that torch's counter leaves out."""


@pytest.mark.parametrize("overrides", KINDS.values(), ids=KINDS.keys())
def test_the_flops_of_a_step_are_those_that_torch_counts(words, overrides):
    """In the first step of each stage."""
    config = tiny(words, *overrides)
    plan, model_shape = plan_phases(config), config.model
    # Only the plain kernel of attention consists of products that torch counts.
    with sdpa_kernel(SDPBackend.MATH), built(config) as (model, ranks):
        batches = StepBatches(config, plan, ranks)
        for step in plan.stages:
            objective, (ids, labels) = plan.objective(step), batches(step)
            counts, size = objective.count_targets(labels), config.execution.micro_batch or 4
            with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
                for bags, targets in micro_batches(ids, labels, objective, counts, size):
                    model(bags, targets).backward()
            until = [flops_until(model_shape, plan, done) for done in (step, step + 1)]
            assert counter.get_total_flops() == until[1] - until[0]


def test_a_model_with_weights_that_its_cost_leaves_out_is_not_trained(words, monkeypatch):
    class TwoHeads(of_model.SuperposedGPT):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.second_head = torch.nn.Linear(16, 64, bias=False)

    monkeypatch.setattr(of_model, "SuperposedGPT", TwoHeads)
    weights = "has 9,296 weights on this rank, but its cost counts 8,272: teach count_parameters"
    with pytest.raises(UserError, match=weights), built(tiny(words)):
        pass
