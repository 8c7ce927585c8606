"""The token ids and labels that a rank reads in each step, on its device."""

from __future__ import annotations

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
    """Maps a step to this rank's token ids and labels, (`share`, raw tokens per sequence) each.

    Of the sequences of a step, each data-parallel rank reads `share`, in the order of the ranks.
    """

    def __init__(self, config: Config, plan: PhasePlan, ranks: Ranks, share: int) -> None:
        self.config, self.plan, self.device = config, plan, ranks.device
        self.start, self.stop = ranks.data_rank * share, (ranks.data_rank + 1) * share
        self.stream = open_stream(config)

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        if self.config.superposition.shuffle_targets and step < self.plan.superposed_steps:
            ids, labels = (rows[self.start : self.stop] for rows in self._shuffled(step))
        else:
            arrays = self.stream.batch(step, self.start, self.stop)
            ids, labels = (torch.from_numpy(array) for array in arrays)
        if self.device.type == "cuda":  # which copies from pinned memory while it computes
            ids, labels = ids.pin_memory(), labels.pin_memory()
        return ids.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def _shuffled(self, step: int) -> list[Tensor]:
        """Read all sequences of a step and permute the target bags among them, for the control
        `superposition.shuffle_targets`. The order depends on the data seed and the step alone, so
        that all ranks permute alike."""
        arrays = self.stream.batch(step, 0, self.config.batch.sequences)
        ids, labels = (torch.from_numpy(array) for array in arrays)
        size = self.plan.bag_size
        bags = labels.shape[0] * (labels.shape[1] // size - 1)
        key = permutation_key(self.config.order_seed, step)
        order = torch.from_numpy(permuted(np.arange(bags), bags, key))
        return [ids, shuffle_bags(labels, size, order)]
