"""The model, of Megatron-Core's layers; importing this package prepares megatron.core.

kernels.py → layers.py, experts.py → model.py → initialization.py
cpu_backend.py: what a run on processors needs; imported first, no effect on a GPU
"""

import logging
import os
import warnings

from tst_study.config.megatron_version import check_megatron_version

check_megatron_version()

# torch and megatron.core ask at import whether there is a GPU. Asked this way, they look at the
# driver's list and leave CUDA alone, so that a process that has imported them can still fork.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

# megatron.core says at import, once per module, that Apex and TransformerEngine are missing. Here
# they are missing by choice: the same layers run on a CPU and on a GPU, so that tests cover both.
warnings.filterwarnings("ignore", message=".*(Apex|Transformer Engine).*", module="megatron.*")
# It also warns that its own defaults and its own calls of torch are deprecated.
warnings.filterwarnings("ignore", message="full scope is deprecated", module="megatron.*")
# Their calls of torch pass through cpu_backend where a device is named outright.
warnings.filterwarnings(
    "ignore",
    category=FutureWarning,
    module=r"megatron.*|torch\.distributed.*|tst_study\.model\.cpu_backend",
)
# From 0.19 on it also logs, at every model and save, that newer classes of its own are to come.
for name in ("models.gpt.gpt_model", "dist_checkpointing.strategies.torch"):
    logging.getLogger(f"megatron.core.{name}").setLevel(logging.ERROR)

from tst_study.model import cpu_backend as cpu_backend  # noqa: E402
