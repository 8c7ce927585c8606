"""Token Superposition Training: single runs, studies of many runs, and the analysis of both.

One run, in the order of the data flow: `config/` says what a run is, and `cost/` estimates its
FLOPs and memory. `data/` prepares and reads its text, `superposition/` is the method, and `model/`
the decoder, built on Megatron-Core. `parallel/` computes a step over ranks, `train` is the loop,
and `process/` looks after the process that it runs in. `checkpoints/` and `record/` write the run
folder. `evaluation/` measures trained runs; `huggingface/` exports them, and starts runs from
Hugging Face models. `conformance/` checks other implementations of the method.

Many runs: `experiments/` trains the runs of a study, `analysis/` compares them, and
`paper_figures/` draws them. `command_line` is the program `tst-study`. Its verbs are in the module
`cli` of each of these three packages, and those for one run in `tst_study.cli`.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def loaded_on_first_use(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package whose names are loaded from
    their modules on first use (PEP 562), so that importing it stays fast.

    `homes`: the module of each name, without `tst_study.` in front.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"tst_study.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next access does not come here
        return value

    return load, lambda: list(homes)
