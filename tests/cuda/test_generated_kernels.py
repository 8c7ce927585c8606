"""What torch.compile makes of head and loss for a GPU, read and not run: the GPU is made up.

Needs triton, which comes with torch built for CUDA, and no GPU: `make test-fake-cuda`.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from tst_study.superposition.linear_loss import softmax_and_gradient

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="a GPU would be asked in the H100's place"
    ),
]
ROWS, WORDS, BAG_SIZE = 4096, 128_256, 4
H100 = {
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "regs_per_multiprocessor": 65_536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
    "shared_memory_per_block_optin": 232_448,
}


@pytest.fixture
def made_up_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers all that inductor asks before it writes a kernel."""
    compiler = pytest.importorskip("triton.backends.compiler")
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.fx_passes import fuse_attention, misc_patterns, pad_mm
    from torch._inductor.runtime.hints import DeviceProperties
    from torch.utils import _triton
    from triton.runtime import driver

    class Driver:
        def get_current_target(self) -> Any:
            return compiler.GPUTarget("cuda", 90, 32)

    hints = {"type": "cuda", "index": 0, "cc": 90} | H100
    hints = {name: hints.get(name) for name in DeviceProperties._fields}
    answers: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            "get_device_properties": SimpleNamespace(**H100),
            "get_device_capability": (9, 0),
            "current_device": 0,
            "device_count": 1,
            "is_available": True,
        },
        CudaInterface: {
            "get_compute_capability": 90,
            "is_available": True,
            "is_triton_capable": True,
            "raise_if_triton_unavailable": None,
        },
        CudaInterface.Worker: {
            "get_device_properties": SimpleNamespace(**H100),
            "current_device": 0,
        },
        DeviceProperties: {"create": DeviceProperties(**hints)},
        _triton: {"triton_hash_with_backend": "none"},
        # Patterns that are traced on the device, none of them of ours.
        fuse_attention: {"_sfdp_init": None},
        pad_mm: {"_pad_mm_init": None},
        misc_patterns: {"_misc_patterns_init": None},
    }
    for owner, named in answers.items():
        for name, answer in named.items():
            said = lambda *unused, answer=answer, **named: answer  # noqa: E731
            monkeypatch.setattr(
                owner, name, staticmethod(said) if isinstance(owner, type) else said
            )
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    driver.set_active(Driver())


def generated(function: Any, *shapes: tuple[tuple[int, ...], torch.dtype]) -> str:
    """Inductor's code for `function` of CUDA tensors."""
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    with FakeTensorMode() as fake, V.set_fake_mode(fake), DebugContext():
        inputs = [torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in shapes]
        traced = make_fx(function, select_decomp_table(), tracing_mode="fake")(*inputs)
        FakeTensorProp(traced, fake).propagate(*inputs)
        joint_graph_passes(traced)
        post_grad_passes(traced, True)
        FakeTensorProp(traced, fake).propagate(*inputs)
        graph = GraphLowering(traced, example_inputs=inputs, is_inference=True)
        with V.set_graph_handler(graph), V.set_extern_kernel_nodes([]):
            graph.run(*inputs)
            wrapper = graph.codegen()[0]
    return str(getattr(wrapper, "value", wrapper))


@pytest.mark.usefixtures("made_up_h100")
def test_one_kernel_reads_the_logits_twice_and_writes_their_gradient() -> None:
    """6 bytes per logit; the eager path moves 34."""
    code = generated(
        softmax_and_gradient,
        ((ROWS, WORDS), torch.bfloat16),
        ((ROWS, BAG_SIZE), torch.int64),
        ((ROWS, 1), torch.float32),
    )
    of_rows, of_targets = re.split(r"@triton\.jit", code)[1:]
    of_rows = of_rows.partition("''', device_str")[0]
    assert "online_softmax" in of_rows
    assert of_rows.count("in tl.range(0, r0_numel") == 2
    over_words = [line for line in of_rows.splitlines() if f"{WORDS}*x0" in line]
    assert sum("tl.load" in line for line in over_words) == 2
    assert sum("tl.store" in line for line in over_words) == 1
    assert "tl.range" not in of_targets.partition("''', device_str")[0]
    assert "empty_strided_cuda((4096, 128256), (128256, 1), torch.bfloat16)" in code
    assert "empty_strided_cuda((4096, 128256), (128256, 1), torch.float32)" not in code
