"""The training loop's clock: seconds per step, tokens per second and model FLOPs utilisation (MFU)
for the log, with the peak memory."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tst_study.config.phase_plan import PhasePlan
from tst_study.cost.devices import peak_flops


class StepClock:
    """Counts the seconds of training steps over all launches of a run, without evaluation and
    checkpoints.

    `flops`: returns the FLOPs of the first steps of the run, over all ranks. `dtype`: the number
    format of the model, on which a GPU's peak FLOPs per second depend.
    """

    def __init__(
        self, device: torch.device, world_size: int, flops: Callable[[int], int], dtype: str
    ) -> None:
        self.device = device
        self.flops = flops
        self.training_seconds = 0.0  # a launch that resumes sets it to the checkpoint's value
        self._peak_flops: float | None = None
        if device.type == "cuda":
            of_one = peak_flops(torch.cuda.get_device_name(device), dtype)
            self._peak_flops = of_one * world_size if of_one else None
        self._seconds = 0.0
        self._steps = 0

    @contextmanager
    def timing(self, steps: int = 0) -> Iterator[None]:
        """Add the time that the block takes. The block runs `steps` steps; on a GPU it only queues
        them. With `steps` 0, the block waits for earlier steps to finish, for example by reading
        their loss."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self._steps += steps
        self._seconds += seconds
        self.training_seconds += seconds

    def speed(self, plan: PhasePlan, done: int) -> dict[str, Any]:
        """Return the values of a log row that tell the speed of the steps since the last call.

        `done`: the steps done so far; at least one of them must have been timed since the last
        call. If layers are compiled, the first steps of a launch and of a phase include the time
        that torch.compile takes.

        "step_seconds" is the mean over the steps since the last call, and "training_seconds" the
        total so far. "tokens_per_second" counts raw tokens over all ranks. "mfu" is None on a CPU,
        on an unknown GPU, and in number formats other than bfloat16. "peak_memory" is in bytes,
        since the process began: the most that torch has allocated on this rank's GPU or, on a CPU,
        the largest resident size.
        """
        seconds, steps = self._seconds, self._steps
        self._seconds, self._steps = 0.0, 0
        flops = self.flops(done) - self.flops(done - steps)
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
        # macOS counts bytes, Linux KiB.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * (1 if sys.platform == "darwin" else 1024)
