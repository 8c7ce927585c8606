"""Superposition in Megatron-LM: what changes in `pretrain_gpt.py`.

Needs megatron-core and `tst_study.superposition`. A test runs these functions with megatron-core's
own GPTModel and schedule on one processor. `get_batch` is that of core 0.14 to 0.17: from 0.18 on
wrap it, as it returns ten values by name. Not tried: Megatron-LM's script itself, several ranks,
GPUs. Refused: sequence parallelism, which scatters positions inside the embedding. Pipeline stages
do not work.

    model = model_provider(...)            # as before
    superpose(model, tst)                  # once
    forward_step = partial(superposed_forward_step, tst, get_batch, lambda: args.curr_iteration)

The loader must give `tst.raw_length(step)` tokens a sequence. Megatron's data sets have one length,
so train the two phases as two launches, the first with a `--seq-length` of s · L. Give both the
`--train-samples` of the whole run, so that the learning rate is scheduled over it, and stop the
first after r · T iterations. Give the second text that the first has not read: each launch cuts and
shuffles its own rows, so with the same text a run would read some of it twice. Use rotary
positions, which have no weights: a table of learned ones would have another length in each launch.
In the first launch the FLOPs that Megatron prints are those of s · L positions, which is too many.
Attention is causal over the whole row: documents in a row are not separated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from tst_study.superposition import Superposition, bag_loss


def superpose(model: Any, tst: Superposition) -> None:
    """Bag the outputs of a GPTModel's word embeddings."""
    if model.pre_process:
        tst.attach(model.embedding.word_embeddings)


def superposed_forward_step(
    tst: Superposition,
    get_batch: Callable[[Any], Any],
    iteration: Callable[[], int],
    data_iterator: Any,
    model: Any,
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]]]:
    """Megatron's `forward_step`: logits without labels, then the bag loss."""
    tst.advance(to=iteration())
    # Newer versions return more behind these five.
    tokens, labels, loss_mask, attention_mask, position_ids = tuple(get_batch(data_iterator))[:5]
    positions = tokens.shape[1] // tst.objective().stride
    labels = labels.masked_fill(loss_mask == 0, -100)
    if not model.training:  # Megatron's evaluation: next-token loss of the first L tokens
        tokens, labels = tokens[:, :positions], labels[:, :positions]
    if attention_mask is not None:  # (B, 1, s·L, s·L), causal
        attention_mask = attention_mask[..., :positions, :positions]
    logits = model(tokens, position_ids[:, :positions], attention_mask)
    return logits, partial(loss_func, tst if model.training else None, labels)


def loss_func(
    tst: Superposition | None, labels: Tensor, logits: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Megatron's `loss_func`: the loss of `tst`, or without it the next-token loss. logits (B, L, V
    / tensor ranks)."""
    group = parallel_state.get_tensor_model_parallel_group()
    start = parallel_state.get_tensor_model_parallel_rank() * logits.shape[-1]
    if tst is None:
        loss = bag_loss(logits, labels, 1, vocabulary_start=start, group=group)
    else:
        loss = tst.loss(logits, labels, vocabulary_start=start, group=group)
    # Of two numbers Megatron reports the sum over data ranks of the first by that of the second. A
    # single number would be that of one rank.
    return loss, {"lm loss": torch.stack([loss.detach(), loss.new_ones(())])}
