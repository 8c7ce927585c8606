"""Loss and gradients of one step, as the trainer computes them in any layout."""

from __future__ import annotations

import torch
from megatron.core.distributed import finalize_model_grads

from tst_study.config import Config
from tst_study.data.of_config import open_stream
from tst_study.megatron.model import NEXT_TOKEN, build_model, superposition_objective
from tst_study.megatron.optimizer import with_gradient_buffers
from tst_study.megatron.process_groups import process_groups
from tst_study.phase_plan import plan_phases
from tst_study.train import _micro_batches, _share_of_batch


def step_gradients(config: Config, step: int) -> tuple[float, dict[str, torch.Tensor]]:
    """On every rank: the mean loss of step `step` at the initial weights, and its gradient."""
    with process_groups(config.execution) as ranks:
        model = build_model(config)
        data_parallel = with_gradient_buffers(model)
        share = _share_of_batch(config, ranks)
        superposed = plan_phases(config).phase(step) == "superposition"
        objective = superposition_objective(config.superposition) if superposed else NEXT_TOKEN
        loss = torch.zeros(())
        for bags, targets in _micro_batches(
            open_stream(config),
            step,
            objective,
            ranks,
            share,
            config.execution.micro_batch or share,
            config,
        ):
            part = data_parallel(bags, targets)
            part.backward()
            loss += part.detach()
        finalize_model_grads([data_parallel])
        gradients = {name: p.main_grad.clone() for name, p in model.named_parameters()}
        return float(ranks.sum_over_data(loss)), gradients


def assert_close(
    one: tuple[float, dict[str, torch.Tensor]], other: tuple[float, dict[str, torch.Tensor]]
) -> None:
    """Losses and gradients within 1e-6, relative to the norm of each parameter's gradient."""
    assert abs(one[0] - other[0]) <= 1e-6 * abs(other[0])
    for name, gradient in other[1].items():
        assert (one[1][name] - gradient).norm() <= 1e-6 * gradient.norm(), name
