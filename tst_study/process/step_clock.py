"""The timing of steps, from which tokens per second and MFU follow; and peak memory."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tst_study.config.phase_plan import PhasePlan
from tst_study.cost.devices import peak_flops


class StepClock:
    """Counts seconds of training over all launches of a run, without evaluation and checkpoints.
    `flops_per_step`: of all ranks together."""

    def __init__(
        self, device: torch.device, world_size: int, flops_per_step: int, dtype: str
    ) -> None:
        self.device = device
        self.flops_per_step = flops_per_step
        self.training_seconds = 0.0  # a launch that resumes sets it to that of the checkpoint
        self._peak_flops: float | None = None
        if device.type == "cuda":
            of_one = peak_flops(torch.cuda.get_device_name(device), dtype)
            self._peak_flops = of_one * world_size if of_one else None
        self._seconds = 0.0
        self._steps = 0

    @contextmanager
    def timing(self, steps: int = 0) -> Iterator[None]:
        """Time the block: it queues `steps` steps, or, with none, waits for earlier ones, as by
        reading their loss from a GPU."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self._steps += steps
        self._seconds += seconds
        self.training_seconds += seconds

    def speed(self, plan: PhasePlan, done: int) -> dict[str, Any]:
        """Return the speed of the steps since the last call, after `done` steps; at least one has
        to be among them. The first steps of a launch and of a phase include the time of
        torch.compile.

        "mfu" is None on a CPU or an unknown GPU. "peak_memory" is in bytes: the most that torch has
        allocated on this rank's GPU, or on a CPU the largest resident size of the process.
        """
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
