"""The model, built on Megatron-Core; importing this package prepares megatron.core.

kernels.py → experts.py, grouped_experts.py → layers.py → model.py
initialization.py: draws the weights of the model
megatron_patches.py: patches of Megatron-Core, imported first
"""

import os
import warnings

from tst_study.config.megatron_version import check_megatron_version

check_megatron_version()

# torch and megatron.core ask at import whether there is a GPU. Asked this way, they look at the
# driver's list and leave CUDA alone, so that a process that has imported them can still fork.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

# megatron.core warns at import, once per module, that Apex and TransformerEngine are missing (in
# every version). Here they are missing by choice: the same layers run on a CPU and on a GPU, so
# that tests cover both.
warnings.filterwarnings("ignore", message=".*(Apex|Transformer Engine).*", module="megatron.*")
# 0.16 warns of its own default of `cuda_graph_scope`; 0.19 has another default.
warnings.filterwarnings("ignore", message="full scope is deprecated", module="megatron.*")
# megatron.core (every version) calls functions that torch has deprecated.
warnings.filterwarnings("ignore", category=FutureWarning, module=r"megatron.*|torch\.distributed.*")

from tst_study.model import megatron_patches as megatron_patches  # noqa: E402
