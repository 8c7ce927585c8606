"""Importing the package, or training on processors, touches no GPU that a machine may have."""

import os
import subprocess
import sys

import pytest
import torch

from tests.test_imports import LAYERS, ROOT, every_module
from tst_study.config.schema import Execution
from tst_study.errors import UserError
from tst_study.parallel.process_groups import choose_device

NOBODY_TOUCHES_CUDA = """
import importlib, os, sys, types
from pathlib import Path
import torch

OURS = {ours!r}
TORCH = str(Path(torch.__file__).parent)
SILENT = ("_is_compiled", "_is_in_bad_fork")  # they ask how torch was built, and Python's state

def asker():
    frame = sys._getframe(2)
    while frame.f_code.co_filename.startswith((TORCH, "<frozen")):
        frame = frame.f_back
    return frame.f_code.co_filename

def raising(name):
    def touched(*args, **named):
        # Megatron and torch ask, while they are imported, whether there is a GPU. With this
        # variable that is a look at the driver's list, after which a process can still fork.
        if name == "is_available" and not asker().startswith(OURS):
            assert os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") == "1", asker()
            return True
        if name == "manual_seed_all":  # kept by torch for the day that CUDA is set up
            return
        raise AssertionError(f"torch.cuda.{{name}} by {{asker()}}")
    return touched

for name, value in list(vars(torch.cuda).items()):
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType) and name not in SILENT:
        setattr(torch.cuda, name, raising(name))
for kind in (torch.cuda.Stream, torch.cuda.Event):
    kind.__new__ = raising(kind.__name__)
# A build for CUDA says so, and whoever hears it asks whether a GPU is there, and for its stream.
torch._C._accelerator_getAccelerator = lambda: torch.device("cuda")
torch.accelerator.current_stream = raising("current_stream")
"""


def test_training_on_processors_and_importing_any_module_of_ours_touches_no_cuda(words, tmp_path):
    modules = [name for name in every_module() if name != "tst_study.evaluation.tasks"]  # lm-eval's
    assert {"tst_study.train", "tst_study.experiments.local.warm_server"} <= set(modules)
    program = f"""
from tst_study.train import train
from tests.tiny_runs import MIXTURE, tiny
for number, kind in enumerate(((), MIXTURE, ('execution.micro_batch=1',))):
    config = tiny(Path({str(words)!r}), "execution.device=cpu", *kind)
    assert train(config, Path({str(tmp_path)!r}) / str(number), progress=False) == "done"
assert not {{"torch._inductor.compile_fx", "wandb"}} & sys.modules.keys()  # seconds of every start
assert torch.compile.__module__ == "torch"
for name in {modules!r}:
    importlib.import_module(name)
"""
    ours = tuple(f"{ROOT / package}{os.sep}" for package in LAYERS)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NOBODY_TOUCHES_CUDA.format(ours=ours) + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("there", "device", "more", "chosen"),
    [
        (8, "auto", {}, "cuda:5"),
        (1, "cuda", {"SLURM_PROCID": "13"}, "cuda:0"),  # a task of Slurm that sees its GPU alone
        (8, "cpu", {}, "cpu"),
        (0, "auto", {}, "cpu"),
        (0, "cuda", {}, "execution.device = 'cuda': no GPU here"),
        (4, "auto", {}, "8 ranks on this node, but GPUs: 4"),
        (1, "auto", {}, "8 ranks on this node, but GPUs: 1"),
    ],
)
def test_a_rank_takes_the_gpu_of_its_number_or_the_processor_or_names_what_lacks(
    monkeypatch, there, device, more, chosen
):
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    for name, value in {"LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8", **more}.items():
        monkeypatch.setenv(name, value)
    try:
        found = str(choose_device(Execution(device=device)))
    except UserError as error:
        found = str(error)
    assert found.startswith(chosen)
    assert [str(one) for one in taken] == [chosen] * chosen.startswith("cuda")
