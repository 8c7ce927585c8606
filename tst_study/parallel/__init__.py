"""A training step on any number of ranks.

`process_groups` sets up the ranks, `forward_backward` computes gradients over micro-batches, and
`optimizer` updates the weights, with its `update_rules` and `optimizer_shards`. `events` tells what
is due after a step.
"""

import tst_study.model  # noqa: F401  # before megatron.core, which it prepares
