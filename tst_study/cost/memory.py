"""Predicts, from the config alone, the memory of the rank that needs the most memory.

Weights, gradients and optimizer state follow from the layout. The activations are the tensors that
the layers of `model/layers.py` keep for the backward pass. Tests compare the predicted total with
the peak of allocated tensors on a CPU. On a GPU the norms, SwiGLU and the projections of queries
and keys keep other tensors than on a CPU; the sizes of these come from reading the kernels, not
from a measurement.
"""

import math
from dataclasses import dataclass

from tst_study.config.optimizer_kinds import OPTIMIZER_KINDS
from tst_study.config.schema import Config, Model, Parallel
from tst_study.cost.compute import count_parameters
from tst_study.cost.parallel_layout import data_ranks, layout_of
from tst_study.superposition.loss_kinds import loss_of
from tst_study.superposition.row_chunks import GPU_CHUNK_ELEMENTS, rows_with_head

UNEVEN_LOAD = 1.5
"""The load that is assumed for the busiest of several expert ranks, as a multiple of a balanced
load. It does not apply to a rank that holds all experts: the load of such a rank does not depend on
the routing."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank at the peak of a step, by part.

    The head and the loss free their tensors before the backward pass of the layers begins. So a
    layer's backward pass reuses the memory of `logits`, and only what it needs beyond that is
    counted: in `activations`, up to the size of the activations that are computed again, and the
    rest in `buffers`.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    """Tensors that are kept for the backward pass of a micro-batch."""
    logits: int
    """Tensors that the output head and the loss hold at the same time."""
    buffers: int
    """Gradients inside one layer's backward pass."""
    total: int


def estimate_memory(config: Config, ranks: int = 1, *, on_gpu: bool = False) -> Memory:
    """Predict the memory of the rank that needs most, in a step of either phase.

    `ranks`: processes in all. Raises `ValueError` if the layout is still `"auto"`.
    """
    model, parallel = config.model, layout_of(config)
    width = 2 if config.numerics.dtype == "bfloat16" else 4
    held = held_parameters(model, parallel)
    number = held.dense + held.experts

    share = config.batch.sequences // data_ranks(parallel, ranks)
    micro_batch = config.execution.micro_batch or share
    positions = micro_batch * config.batch.sequence_length

    sharers = parallel.tensor if parallel.sequence_parallel else 1
    residual = width * model.hidden_size // sharers
    kept, again = _layer_bytes(model, parallel, width, sharers, on_gpu), 0
    if config.execution.recompute == "layer":
        kept, again = residual, kept - residual

    logits = _head(config, parallel, positions, width, on_gpu)
    # The tensors of head and loss are freed before the backward pass of the layers begins, so only
    # what a layer needs beyond them counts (see `Memory`).
    backward = max(0, positions * (again + 8 * residual) - logits)
    again_bytes = min(backward, positions * again)
    parts = {
        "weights": number * width,
        "gradients": number * 4,
        "optimizer": _optimizer(config, held, ranks),
        "activations": positions * kept * model.layers + again_bytes,
        "logits": logits,
        "buffers": backward - again_bytes,
    }
    return Memory(**parts, total=sum(parts.values()))


@dataclass(frozen=True)
class HeldParameters:
    """The number of weights that one rank holds."""

    dense: int
    """The weights outside the experts; all data-parallel ranks hold the same ones."""
    experts: int
    """Weights of this rank's experts."""
    projections: int
    """The part of `dense` that is in the matrices of attention and feed-forward layers."""


def held_parameters(model: Model, parallel: Parallel) -> HeldParameters:
    """Count the weights of one rank, exactly as Megatron allocates them."""
    whole = count_parameters(model)
    projections, of_experts = whole.attention, 0
    if model.experts is None:
        projections += whole.feed_forward
    else:
        of_experts = whole.feed_forward // (parallel.expert * parallel.expert_tensor_ranks)
    projections //= parallel.tensor
    tables = (whole.input_embedding + whole.output_head) // parallel.tensor
    dense = projections + whole.router + whole.norms + tables
    return HeldParameters(dense, of_experts, projections)


def _optimizer(config: Config, held: HeldParameters, ranks: int) -> int:
    """Return the bytes of the optimizer's state on a rank. If the model's weights are bfloat16,
    this includes the float32 copy of them that the optimizer updates."""
    parallel, kind = layout_of(config), OPTIMIZER_KINDS[config.optimizer.kind]
    main = 4 if config.numerics.dtype == "bfloat16" else 0
    per_projection = main + 4 * kind.states_per_projection_weight
    per_other = main + 4 * kind.states_per_other_weight
    dense = per_projection * held.projections + per_other * (held.dense - held.projections)
    experts = per_projection * held.experts
    if parallel.optimizer == "replicated":
        return dense + experts
    of_experts = parallel.expert * parallel.expert_tensor_ranks
    return dense // data_ranks(parallel, ranks) + experts * of_experts // ranks


def _layer_bytes(model: Model, parallel: Parallel, width: int, sharers: int, on_gpu: bool) -> int:
    """Return the bytes that one layer keeps for the backward pass, per latent position of a
    micro-batch. `width`: bytes per number. `sharers`: the number of tensor ranks over which
    positions are divided outside the matrices (in the norms and the residual stream); 1 without
    sequence parallelism."""
    tensor = parallel.tensor
    hidden = model.hidden_size
    query = model.attention_heads * model.head_size // tensor
    key_value = model.key_value_heads * model.head_size // tensor
    heads = model.attention_heads // tensor
    # A norm keeps its output. On a GPU it also keeps its input; on a CPU, the normalised input
    # and, with bfloat16, a copy of the input, these two in float32.
    cpu_bfloat16 = width == 2 and not on_gpu
    norm = width + (4 + 4 if cpu_bfloat16 else width)
    # The rotated queries and keys, the values laid out head by head, and attention's output
    # twice: in its own order and in Megatron's. Then, in float32, one number for each head (the
    # log of its sum of exponentials) and the scale of each of the two norms.
    attention = 2 * norm * hidden // sharers + width * (3 * query + 2 * key_value)
    attention += 4 * (heads + 2)
    if model.qk_norm:
        if on_gpu or cpu_bfloat16:
            attention += width * (query + 2 * key_value)  # the projections' common output
        if not on_gpu:
            attention += (8 if cpu_bfloat16 else 4) * (query + key_value) + 8 * heads
    experts = model.experts
    if experts is None:
        # Gate and up projections, the product of SiLU(gate) and up, and on a CPU SiLU(gate).
        inner = (3 if on_gpu else 4) * width * model.feed_forward_size
        return attention + inner // tensor
    ffn = experts.feed_forward_size // parallel.expert_tensor_ranks
    copies = experts.per_token * parallel.expert_tensor_ranks
    if parallel.expert > 1:
        copies = math.ceil(copies * UNEVEN_LOAD)
    per_copy = width * (5 * ffn + hidden) + 16
    return attention + (copies * per_copy + 9 * experts.count) // sharers


def _head(config: Config, parallel: Parallel, positions: int, width: int, on_gpu: bool) -> int:
    """Return the peak bytes of head and loss: the scratch memory for a chunk of logits, the
    gradient of the head's weight, and four tensors of the size of the head's input. If the loss
    cannot be computed in one pass with the head (`linear_loss.py`), all logits and their gradient
    come on top, and with label smoothing three copies more."""
    hidden = config.model.hidden_size
    vocabulary = config.model.vocabulary_size // parallel.tensor
    smoothed = config.label_smoothing is not None
    one_pass = loss_of(config.superposition.loss).in_one_pass and not smoothed
    in_one_pass = parallel.tensor == 1 and one_pass
    if in_one_pass or not on_gpu:
        chunk = rows_with_head(positions, vocabulary, on_gpu=on_gpu) * vocabulary
    else:
        chunk = min(positions * vocabulary, GPU_CHUNK_ELEMENTS)
    # With bfloat16, a chunk is held in bfloat16 and in float32 (6 bytes an element); 8 are counted,
    # which leaves room for temporary tensors. The gradient of the head's weight is held in both
    # formats, too (6 bytes).
    logits = (4 if width == 4 else 8) * chunk + (
        0 if in_one_pass else (5 if smoothed else 2) * width * positions * vocabulary
    )
    matrix = (4 if width == 4 else 6) * vocabulary * hidden
    return logits + matrix + 4 * width * positions * hidden
