"""Binary cross-entropy and hinge loss: V independent yes/no questions per position, "is token v in
the next bag?".

Both did worse than the baseline in the paper's ablation. They are here to reproduce it. Chunks of
rows are computed again in the backward pass, so that no further tensor of the logits' size is kept.
"""

from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tst_study.superposition.derivatives import in_torch_func
from tst_study.superposition.row_chunks import chunk_rows
from tst_study.superposition.vocabulary_shard import VocabularyShard, sum_over_group


def one_vs_rest_means(
    kind: Literal["binary_cross_entropy", "hinge"],
    logits: Tensor,
    targets: Tensor,
    members: Tensor,
    shard: VocabularyShard | None = None,
) -> Tensor:
    """Compute 1/V sum_v phi(t_v · z_v) for each row of logits z, with t_v = +1 for the tokens of
    the bag and -1 for all others.

    phi(x) is log(1 + exp(-x)) for `binary_cross_entropy` and max(0, 1 - x) for `hinge`.

    Args:
        logits: (N, V) for the whole vocabulary; with `shard`, this rank's columns.
        targets: (N, s) int64 ids of the whole vocabulary.
        members: (N, s) bool, True at exactly one occurrence of each token of the bag. The other
            entries of `targets` are not counted.
        shard: which columns these are; None for the whole vocabulary.

    Returns:
        (N,) in float32 (float64 for float64 logits).
    """
    vocabulary = logits.shape[1]
    if shard is not None:
        targets, is_local = shard.to_local(targets)
        members, vocabulary = members & is_local, shard.vocabulary_size
    kept = partial(checkpoint, _sums, use_reentrant=False, preserve_rng_state=False)
    of_chunk = _sums if in_torch_func() else kept  # these transforms take no checkpoints
    chunks = (torch.split(each, chunk_rows(logits)) for each in (logits, targets, members))
    sums = torch.cat(
        [of_chunk(z, y, own, kind == "hinge") for z, y, own in zip(*chunks, strict=True)]
    )
    return (sums if shard is None else sum_over_group(sums, shard.group)) / vocabulary


def _sums(logits: Tensor, targets: Tensor, members: Tensor, hinge: bool) -> Tensor:
    """Sum phi over the columns of each row: as if every token were absent from the bag, then
    corrected for the tokens that are in it."""
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    z_members = z.gather(1, targets)
    if hinge:
        absent, present = (1.0 + z).relu(), (1.0 - z_members).relu() - (1.0 + z_members).relu()
    else:
        absent, present = F.softplus(z), -z_members  # softplus(-z) - softplus(z)
    return absent.sum(dim=1) + torch.where(members, present, 0.0).sum(dim=1)
