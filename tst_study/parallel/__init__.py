"""A step over ranks: `process_groups` → `forward_backward` over micro-batches → `optimizer` with
its `update_rules` and `optimizer_shards`. `events`: what is due after a step.
"""

import tst_study.model  # noqa: F401  # before megatron.core, which it prepares
