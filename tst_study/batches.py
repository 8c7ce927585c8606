"""A rank's tokens of each step, on its device."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from tst_study.config.phase_plan import PhasePlan
from tst_study.config.schema import Config
from tst_study.data.permutation import permutation_key, permuted
from tst_study.data.run_data import open_stream
from tst_study.parallel.process_groups import Ranks
from tst_study.superposition.bags import shuffle_bags


class StepBatches:
    """Token ids and labels (b, raw length) of this rank's `share` of the sequences of a step.

    For a GPU a thread reads the next step's while the GPU works on this one. An error of the thread
    is raised when its step is asked for.
    """

    def __init__(self, config: Config, plan: PhasePlan, ranks: Ranks, share: int) -> None:
        self.config, self.plan, self.device = config, plan, ranks.device
        self.start, self.stop = ranks.data_rank * share, (ranks.data_rank + 1) * share
        self.stream = open_stream(config)
        self._thread: ThreadPoolExecutor | None = None
        self._next: dict[int, Future[list[Tensor]]] = {}
        if _reads_ahead(self.device):
            self._thread = ThreadPoolExecutor(
                1, "batches", initializer=_use, initargs=(self.device,)
            )

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        if self._thread is None:
            ids, labels = self._read(step)
        else:
            read = self._next.pop(step, None) or self._thread.submit(self._read, step)
            if step + 1 < self.config.schedule.last_step:
                self._next = {step + 1: self._thread.submit(self._read, step + 1)}
            ids, labels = read.result()
        return ids.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def close(self) -> None:
        """Wait until the thread has ended, and drop what it has read ahead."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._next = {}  # no cycle of references outlives the run

    def _read(self, step: int) -> list[Tensor]:
        """Ids and labels on the host, where a GPU can copy them while it computes."""
        if self.config.superposition.shuffle_targets and step < self.plan.superposed_steps:
            tensors = [rows[self.start : self.stop] for rows in self._shuffled(step)]
        else:
            arrays = self.stream.batch(step, self.start, self.stop)
            tensors = [torch.from_numpy(array) for array in arrays]
        return [x.pin_memory() for x in tensors] if self.device.type == "cuda" else tensors

    def _shuffled(self, step: int) -> list[Tensor]:
        """All sequences of a step, the bags of their labels in places that depend on seed and step
        alone: each rank sees the same order."""
        arrays = self.stream.batch(step, 0, self.config.batch.sequences)
        ids, labels = (torch.from_numpy(array) for array in arrays)
        size = self.plan.bag_size
        bags = labels.shape[0] * (labels.shape[1] // size - 1)
        key = permutation_key(self.config.order_seed, step)
        order = torch.from_numpy(permuted(np.arange(bags), bags, key))
        return [ids, shuffle_bags(labels, size, order)]


def _reads_ahead(device: torch.device) -> bool:
    """On processors a thread would take the time that it saves."""
    return device.type == "cuda"


def _use(device: torch.device) -> None:
    """Tell a new thread its GPU: otherwise it pins memory for the first one, and fills a part of
    it."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
