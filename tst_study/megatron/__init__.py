"""Everything that touches megatron.core. The rest of the package does not know that it is there.

process_groups.py → kernels/ → layers.py → model.py → initialization.py
    → forward_backward.py → gradient_buffers.py → optimizer.py (update_rules.py) → checkpoint.py
cpu_backend.py: what a machine without a GPU needs; imported first, no effect on a GPU
"""

import warnings

# megatron.core says at import, once per module, that Apex and TransformerEngine are missing. Here
# they are missing by choice: the same layers run on a CPU and on a GPU, so that tests cover both.
warnings.filterwarnings("ignore", message=".*(Apex|Transformer Engine).*", module="megatron.*")
# It also warns that its own defaults and its own calls of torch are deprecated.
warnings.filterwarnings("ignore", message="full scope is deprecated", module="megatron.*")
warnings.filterwarnings("ignore", category=FutureWarning, module=r"megatron.*|torch\.distributed.*")

from tst_study.megatron import cpu_backend as cpu_backend  # noqa: E402
