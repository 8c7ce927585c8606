"""The model, built on Megatron-Core.

    megatron_patches.py  patches of Megatron-Core, imported first
    kernels.py           operations with backward passes of our own
    experts.py           routing of positions to experts, and the balance loss
    grouped_experts.py   the experts of a rank
    layers.py            the decoder's layers, made of these
    initialization.py    draws the weights
    model.py             the whole model

Importing this package checks Megatron's version and prepares `megatron.core`: it sets an
environment variable, silences known warnings, spares imports that no run needs and imports the
patches.
"""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from tst_study.config.megatron_version import check_megatron_version

check_megatron_version()

# torch and megatron.core ask at import whether there is a GPU. With this variable, torch answers
# from the driver's list of GPUs and does not initialise CUDA, so that the process can still fork.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

# megatron.core (every version) warns at import, once per module, that Apex and TransformerEngine
# are missing. They are missing by choice: the same layers run on a CPU and on a GPU, so that tests
# cover both.
warnings.filterwarnings("ignore", message=".*(Apex|Transformer Engine).*", module="megatron.*")
# Megatron 0.16 warns about its own default of `cuda_graph_scope`; 0.19 has another default.
warnings.filterwarnings("ignore", message="full scope is deprecated", module="megatron.*")
# megatron.core (every version) calls functions that torch has deprecated.
warnings.filterwarnings("ignore", category=FutureWarning, module=r"megatron.*|torch\.distributed.*")


_compile, _spares_wandb = torch.compile, "wandb" not in sys.modules


def _compile_but_not_megatron(function: Any = None, **options: Any) -> Callable[..., Any]:
    own = getattr(function, "__module__", "").startswith("megatron.")
    return function if own else _compile(function, **options)


# At import, megatron.core (every version) hands functions that no model here calls to
# torch.compile, which loads Inductor, and imports wandb: almost half of the seconds of a start.
torch.compile = _compile_but_not_megatron  # type: ignore[assignment]
sys.modules.setdefault("wandb", None)  # type: ignore[arg-type]
try:
    from tst_study.model import megatron_patches as megatron_patches
finally:
    torch.compile = _compile
    if _spares_wandb:
        del sys.modules["wandb"]
