"""A step over ranks: `process_groups` → `forward_backward` over micro-batches → `gradient_buffers`
→ `optimizer` with its `update_rules`; `timed_events` are what ranks decide together by the clock.
"""

import tst_study.model  # noqa: F401  # before megatron.core, which it prepares
