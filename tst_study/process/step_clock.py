"""Times steps, and derives tokens per second and MFU; also reports peak memory."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tst_study.config.phase_plan import PhasePlan
from tst_study.cost.devices import peak_flops


class StepClock:
    """Counts seconds of training over all launches of a run, without evaluation and checkpoints."""

    def __init__(
        self, device: torch.device, world_size: int, flops_per_step: int, dtype: str
    ) -> None:
        self.device = device
        self.flops_per_step = flops_per_step
        self.training_seconds = 0.0  # a launch that resumes adds to those before it
        self._peak_flops: float | None = None
        if device.type == "cuda":
            of_one = peak_flops(torch.cuda.get_device_name(device), dtype)
            self._peak_flops = of_one * world_size if of_one else None
        self._seconds = 0.0
        self._steps = 0

    @contextmanager
    def timing(self, steps: int = 0) -> Iterator[None]:
        """Time the launch of so many steps, or work that belongs to earlier ones, such as reading
        their loss from a GPU."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self._steps += steps
        self._seconds += seconds
        self.training_seconds += seconds

    def speed(self, plan: PhasePlan, done: int) -> dict[str, Any]:
        """Speed of the steps since the last call, of which step `done` was the last. The first
        steps of a launch and of a phase include what torch.compile takes."""
        seconds, steps = self._seconds, self._steps
        self._seconds, self._steps = 0.0, 0
        flops = self.flops_per_step * steps
        return {
            "step_seconds": seconds / steps,
            "training_seconds": self.training_seconds,
            "tokens_per_second": (plan.raw_tokens(done) - plan.raw_tokens(done - steps)) / seconds,
            "mfu": flops / seconds / self._peak_flops if self._peak_flops else None,
            "peak_memory": self._peak_memory(),
        }

    def _peak_memory(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
