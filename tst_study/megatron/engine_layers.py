"""Megatron's own layers on TransformerEngine, in the place of ours: experimental, never run.

Held to the reference by what can be known without a GPU: names, shapes, initial values, what
decays, checkpoints. Embedding, last norm, head, loss and router stay ours.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig

from tst_study.config import Config
from tst_study.errors import UserError
from tst_study.megatron.experts import Router
from tst_study.megatron.recomputation import RecomputableLayer

REFERENCE_NAMES = {
    "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
    "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm.",
}
"""Norms that TransformerEngine keeps within the products behind them, and what the reference calls
them. Checkpoints, initial values and exports know weights by the reference's names alone."""


def with_kernels(config: Config, device: torch.device) -> Config:
    """The config with `"torch"` or `"te"` in the place of `execution.kernels = "auto"`.

    Raises `UserError` where TransformerEngine is asked for and cannot serve.
    """
    asked = config.execution.kernels
    if asked == "torch":
        return config
    problem = _problem(config, device)
    if asked == "te" and problem is not None:
        raise UserError(f"execution.kernels = 'te': {problem}; set it to 'torch', or to 'auto'")
    return config.executed(kernels="torch" if problem else "te")


def _problem(config: Config, device: torch.device) -> str | None:
    parallel = config.execution.parallel
    if device.type == "cpu":
        return "TransformerEngine computes on GPUs alone"
    # Not before it is asked for: where TransformerEngine is not, its classes derive from a mock.
    from megatron.core.extensions.transformer_engine import HAVE_TE

    if not HAVE_TE:
        return "TransformerEngine is not installed here"
    if config.execution.compile is True:
        return "torch.compile makes no graph of its layers (execution.compile = true)"
    if config.model.experts is None or parallel == "auto":
        return None
    if parallel.tensor > 1 and parallel.expert == 1:
        return "experts on several tensor ranks need execution.parallel.expert > 1 with it"
    return None


def engine_layer_specification(config: TransformerConfig, expert_products: str) -> ModuleSpec:
    """One layer, with the names of the reference in checkpoints and its recomputation."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec

    layer: ModuleSpec = get_gpt_layer_with_transformer_engine_spec(
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=expert_products == "grouped",
        qk_layernorm=config.qk_layernorm,
    )
    layer.module = RecomputableLayer
    parts: Any = layer.submodules
    parts.sharded_state_dict_keys_map = REFERENCE_NAMES
    if config.num_moe_experts is not None:
        # A specification of Megatron's in 0.16, a partial since.
        mlp = parts.mlp.keywords if isinstance(parts.mlp, partial) else vars(parts.mlp)
        mlp["submodules"].router = Router
    return layer
